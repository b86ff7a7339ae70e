"""Small real tokenizers for the chat tests: a tiny one, and one with awkward tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from cedagent.chat import ChatFormat, Tokenizer, chat_format
from cedagent.chat.control import Mark
from cedagent.chat.dsml import Dsml
from cedagent.model.tokenizer_build import (
    build_smollm,
    build_tiny,
    build_tiny_dsml,
    byte_alphabet,
)

# Tokens that a sampler can choose although `encode` never would: parts of tags, several JSON
# marks at once, long digit runs, numbers with exponents, lone UTF-8 bytes glued to marks.
AWKWARD = [
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "call>\n",
    '">',
    '": "',
    '"}}\n</',
    "}\n</tool_call>",
    "}}\n</tool_call>\n<tool_call>",
    '", "',
    "<|im",
    "_end|>",
    "999",
    "00000000000000",
    "e9",
    "e999",
    "1e5",
    ".9999999",
    "-9",
    "\\u",
    "\\ud8",
    "00",
    "\\n",
    "  ",
    "\n\n",
    "true",
    "null",
    "é",
    '日"',
]

AWKWARD_DSML = [
    *("</", "\n<", "\n</", "\n\n", "\n\n<", ".\n\n<", ">\n", '">\n', '">\n<', ">\n</"),
    *(" calls", " invoke", " parameter", ' name="', '" string="true">', '="false">', 'false">4'),
    *("999", "00000000000000", "e9", "e999", ".9999999", "-9", ", ", '": ', '"]', "}</", "1</"),
    *("true</", "null", "é", '日"', "\\n", "<think>x", "DSML", "a</b", "</thi"),
]


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer(build_tiny(397).to_str())


@pytest.fixture(scope="session")
def awkward() -> Tokenizer:
    """SmolLM2's rules, control tokens at odd ids, and tokens that cross every boundary."""
    alphabet = byte_alphabet()
    spelled = ["".join(alphabet[b] for b in text.encode()) for text in AWKWARD]
    half = [alphabet[0xE2], alphabet[0x82]]
    tokens = ["<|endoftext|>", *alphabet.values(), "<|im_start|>", *spelled, "".join(half)]
    tokens += ["<|im_end|>", "<repo_name>"]
    kinds = [3 if t.startswith(("<|e", "<|im_start", "<|im_end", "<repo")) else 1 for t in tokens]
    return Tokenizer(build_smollm(tokens, kinds, []).to_str())


@pytest.fixture(scope="session")
def chatml(tiny: Tokenizer) -> ChatFormat:
    return chat_format("chatml", tokenizer=tiny)


@pytest.fixture(scope="session")
def fmt(awkward: Tokenizer) -> ChatFormat:
    """ChatML over the awkward tokens."""
    return chat_format("chatml", tokenizer=awkward)


@pytest.fixture(scope="session")
def tiny_dsml() -> Tokenizer:
    return Tokenizer(build_tiny_dsml(397).to_str())


@pytest.fixture(scope="session")
def awkward_dsml() -> Tokenizer:
    """DSML's control tokens, not marked special, and tokens that cross every boundary."""
    alphabet = byte_alphabet()
    spelled = ["".join(alphabet[b] for b in text.encode()) for text in AWKWARD_DSML]
    spelled.append(alphabet[0xE2] + alphabet[0x82])
    marks = [str(mark) for mark in Mark]
    tokens = [*marks[:3], *alphabet.values(), *marks[3:9], *spelled, *marks[9:]]
    bpe = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return Tokenizer(bpe.to_str())


@pytest.fixture(scope="session")
def dsml(tiny_dsml: Tokenizer) -> Dsml:
    return chat_format("dsml", tokenizer=tiny_dsml)


@pytest.fixture(scope="session")
def reasoning(tiny_dsml: Tokenizer) -> Dsml:
    """DSML with thinking."""
    return chat_format("dsml", tokenizer=tiny_dsml, thinking=True)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    build_tiny(397).save(str(tmp_path / "tokenizer.json"))
    return tmp_path
