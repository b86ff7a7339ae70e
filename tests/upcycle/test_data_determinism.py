"""The same seed gives the same data in every process, whatever the hash seed."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys

import pytest

from cedagent.chat.template import chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data import KINDS, Example, plain_examples, tool_cases, tool_examples
from cedagent.upcycle.data.own_samples import chat_prompts

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from test_data_determinism import digest
print(digest(1, plain={plain}))
"""


def digest(seed: int, *, plain: bool) -> str:
    """Return a hash of some of everything; plain text needs the files of this machine."""
    tokenizer = Tokenizer(build_tiny().to_str())
    fmt = chat_format("chatml", tokenizer=tokenizer)
    found = hashlib.sha256()
    for split in ("train", "heldout"):
        for example in itertools.islice(tool_examples(fmt, tokenizer, split=split, seed=seed), 7):
            found.update(repr(example).encode())
        texts = plain_examples(tokenizer, split=split, seed=seed, lengths=(64, 256))
        for example in itertools.islice(texts, 8 if plain else 0):
            found.update(repr(example).encode())
        for prompt in itertools.islice(chat_prompts(split=split, seed=seed), 4):
            found.update(repr(prompt).encode())
    for kind in (*KINDS, "needle_500"):
        found.update(repr(tool_cases(kind=kind, seed=seed, n=3)).encode())
    return found.hexdigest()


@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_two_processes_draw_the_same(plain) -> None:
    program = PROGRAM.format(folder=os.path.dirname(__file__), plain=plain)
    path = os.pathsep.join(p for p in sys.path if p)
    # This process has a hash seed of its own, unless somebody set one: then it is not 4.
    other = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == digest(1, plain=plain)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


def taken(tokenizer: Tokenizer, seed: int, n: int) -> list[Example]:
    fmt = chat_format("chatml", tokenizer=tokenizer)
    return list(itertools.islice(tool_examples(fmt, tokenizer, split="train", seed=seed), n))


def test_another_seed_draws_others(tokenizer) -> None:
    assert taken(tokenizer, 1, 5) == taken(tokenizer, 1, 5)
    assert not set(taken(tokenizer, 1, 12)) & set(taken(tokenizer, 2, 12))


def test_examples_differ_from_each_other(tokenizer) -> None:
    examples = taken(tokenizer, 4, 25)
    assert len(set(examples)) == len(examples)
