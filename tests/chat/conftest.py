"""Small real tokenizers for the chat tests: a tiny one, and one with awkward tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedagent.chat import ChatFormat, Tokenizer, chat_format
from cedagent.model.tokenizer_build import build_smollm, build_tiny, byte_alphabet

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


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    build_tiny(397).save(str(tmp_path / "tokenizer.json"))
    return tmp_path
