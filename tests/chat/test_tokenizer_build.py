"""Tokenizers built from GGUF fields split digits; the tiny one has a token for every id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.chat import Tokenizer
from cedagent.model.tokenizer_build import (
    TINY_CONTROL_TOKENS,
    build_smollm,
    build_tiny,
    byte_alphabet,
)

MERGES = ["1 2", "Ġ 1", "h e", "l l", "he ll", "hell o", "Ġ he", "Ġ Ġ", "Ċ Ċ", "Ġ t"]


def small_smollm(left_out: tuple[int, ...] = ()) -> Tokenizer:
    alphabet = [char for byte, char in byte_alphabet().items() if byte not in left_out]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    kinds = [3] * 3 + [1] * (len(tokens) - 3)
    return Tokenizer(build_smollm(tokens, kinds, MERGES).to_str())


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


def test_byte_alphabet_is_the_usual_one() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet.values())) == 256
    assert (alphabet[0x20], alphabet[0x0A], alphabet[0x41]) == ("Ġ", "Ċ", "A")
    assert (alphabet[0x00], alphabet[0xAD], alphabet[0xFF]) == ("Ā", "Ń", "ÿ")


def test_digits_stand_alone_although_merges_join_them() -> None:
    tokenizer = small_smollm()
    assert pieces(tokenizer, "hello 12,312") == ["hello", " ", "1", "2", ",", "3", "1", "2"]
    # Other scripts' digits are split off too, into their bytes.
    assert len(tokenizer.encode("١٢")) == 4


def test_merges_apply_in_rank_order_and_spaces_lead_words() -> None:
    assert pieces(small_smollm(), "hell  he the") == ["hell", " ", " he", " t", "he"]


@settings(deadline=None, max_examples=60)
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    for tokenizer in (small_smollm(), Tokenizer(build_tiny().to_str())):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "  \t\n\n   x  ",
        "日本語、한국어 ไทย",
        "👩‍👩‍👧 🇮🇹 ✊🏽",
        "1,234.50 \N{MULTIPLICATION SIGN} 10⁻³ ½ Ⅷ",
        "\r\n\0\x7f",
        "é é",
    ],
)
def test_awkward_texts_come_back(text: str) -> None:
    tokenizer = small_smollm()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_characters_without_bytes_in_the_vocabulary_become_the_replacement_character() -> None:
    # SmolLM2's vocabulary lacks six control characters and two lead bytes of unassigned planes.
    tokenizer = small_smollm(left_out=(0x04, 0x1D, 0xF1, 0xF2, 0xC0, 0xFF))
    text = "a\x04b\N{SNOWMAN}\U0005f123c"
    assert tokenizer.decode(tokenizer.encode(text)) == "a\ufffdb\N{SNOWMAN}\ufffdc"


@pytest.mark.parametrize("vocab_size", [320, 321, 401, 1001])
def test_tiny_has_every_id_and_decodes_it_to_something_of_its_own(vocab_size: int) -> None:
    tokenizer = Tokenizer(build_tiny(vocab_size).to_str())
    assert tokenizer.vocab_size == vocab_size
    assert [tokenizer.control_id(name) for name in TINY_CONTROL_TOKENS] == [0, 1, 2]
    spelled = [tokenizer.token_bytes(i) for i in range(3, vocab_size)]
    assert None not in spelled
    assert len(set(spelled)) == vocab_size - 3
    assert spelled[:256] == [bytes([b]) for b in range(256)]


def test_tiny_merges_are_reachable() -> None:
    tokenizer = Tokenizer(build_tiny(400).to_str())
    call = '<tool_call>\n{"name": "the tool", "arguments": {"a": 12}}\n</tool_call>'
    assert len(tokenizer.encode(call)) < len(call) * 0.7
    assert {"tool", "name", "arguments"} <= set(pieces(tokenizer, call))


def test_fields_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one type per token, got 2 tokens and 1 types"):
        build_smollm(["a", "b"], [1], [])
    with pytest.raises(ValueError, match="distinct"):
        build_smollm(["a", "a"], [1, 1], [])
    for merge in ("ab", "a b c", " b", "a "):
        with pytest.raises(ValueError, match="two tokens and one space"):
            build_smollm(["a", "b", "ab"], [1, 1, 1], [merge])
    with pytest.raises(ValueError, match="at least 320 ids, got 319"):
        build_tiny(319)
