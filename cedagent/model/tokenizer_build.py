"""Builds byte-level BPE tokenizers: SmolLM2's from GGUF fields, and tiny ones for tests.

Knows the `tokenizers` library and nothing of chat formats or weights. Invariant: all builders
split digits one by one before byte-level BPE, and control tokens keep the ids they came with, so
that a saved `tokenizer.json` reads the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN_TYPE = 3
"""GGUF's `tokenizer.ggml.token_type` for a control token."""

TINY_CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens of the tiny tokenizer; their ids are 0, 1 and 2."""

TINY_MIN_VOCAB = 320
"""Smallest tiny vocabulary: control tokens, 256 bytes, the merges below and a few spare ids."""

_BAR = "\N{FULLWIDTH VERTICAL LINE}"

TINY_DSML_CONTROL_TOKENS = (
    *(
        f"<{_BAR}{name}{_BAR}>"
        for name in (
            "begin▁of▁sentence", "end▁of▁sentence", "▁pad▁", "System", "User", "Assistant",
            "latest_reminder", "action", "query", "authority", "domain", "title", "read_url",
            "deepseek_image",
        )
    ),
    "<think>",
    "</think>",
    f"{_BAR}DSML{_BAR}",
)  # fmt: skip
"""Control tokens of the tiny DeepSeek-V4.1 tokenizer; their ids are 0, 1, 2, and so on. As in the
release the first three (Engram's pad among them) are special and the others are not."""

TINY_DSML_MIN_VOCAB = 352
"""Smallest vocabulary of the tiny DeepSeek-V4.1 tokenizer."""

# Pairs in merge order. `Ġ` is the byte-level spelling of a space. Common English pairs first, then
# what JSON calls are made of, so that tiny transcripts stay short.
_TINY_MERGES = (
    "h e", "i n", "e r", "a n", "r e", "o n", "a t", "e n", "n d", "o r", "i s", "i t",
    "Ġ t", "Ġ a", "Ġ s", "Ġ w", "Ġ o", "Ġ c", "Ġt he", "in g", "Ġa nd", "Ġo f",
    "t o", "o l", "to ol", "c a", "l l", "ca ll", "n a", "m e", "na me",
    "a r", "g u", "ar gu", "en t", "m ent", "argu ment", "argument s",
    '" :', '{ "', '" }', '" ,', "< /", "Ġ \"", "} }", "l e", "u s", "v e",
)  # fmt: skip


# What calls of the DSML format are made of: each tag's name is one token with its space, as in the
# release.
_TINY_DSML_MERGES = (
    *_TINY_MERGES,
    "a ll", "Ġc all", "Ġcall s", "o k", "ok e", "v oke", "in voke", "Ġ invoke",
    "p ar", "t er", "me ter", "a meter", "par ameter", "Ġ parameter",
)  # fmt: skip


def byte_alphabet() -> dict[int, str]:
    """Return the printable character that byte-level BPE writes for each of the 256 bytes.

    Bytes that are visible in Latin-1 stand for themselves; the others take the characters from
    U+0100 on, in byte order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, n_hidden = {}, 0
    for byte in range(256):
        if byte in visible:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(0x100 + n_hidden)
            n_hidden += 1
    return alphabet


def build_smollm(
    tokens: Sequence[str], token_types: Sequence[int], merges: Sequence[str]
) -> Tokenizer:
    """Build the `smollm` tokenizer from a GGUF file's fields.

    `tokens` are the byte-level spellings in id order, `token_types` their GGUF types, `merges`
    pairs like `"Ġ t"` in rank order. Tokens of type control become special added tokens.
    Raises ValueError if the fields do not fit together.
    """
    if len(tokens) != len(token_types):
        raise ValueError(
            f"expected one type per token, got {len(tokens)} tokens and {len(token_types)} types"
        )
    if len(set(tokens)) != len(tokens):
        raise ValueError("expected distinct tokens, got a token twice")
    control = [
        token for token, kind in zip(tokens, token_types, strict=True) if kind == CONTROL_TOKEN_TYPE
    ]
    return _byte_level({token: i for i, token in enumerate(tokens)}, merges, control)


def build_tiny(vocab_size: int = TINY_MIN_VOCAB) -> Tokenizer:
    """Build a small tokenizer in which every id below `vocab_size` exists and decodes.

    Ids: the control tokens, then the 256 bytes in byte order, then a few dozen merges, then spare
    tokens spelled `~ID`, which `encode` never produces. Raises ValueError below 320 ids.
    """
    if vocab_size < TINY_MIN_VOCAB:
        raise ValueError(f"expected at least {TINY_MIN_VOCAB} ids, got {vocab_size}")
    tokens = [*TINY_CONTROL_TOKENS, *byte_alphabet().values()]
    tokens += [merge.replace(" ", "") for merge in _TINY_MERGES]
    tokens += [f"~{i}" for i in range(len(tokens), vocab_size)]
    return _byte_level({t: i for i, t in enumerate(tokens)}, _TINY_MERGES, TINY_CONTROL_TOKENS)


def build_tiny_dsml(vocab_size: int = TINY_DSML_MIN_VOCAB) -> Tokenizer:
    """Build a small tokenizer with the control tokens of DeepSeek-V4.1, as build_tiny does.

    Raises ValueError below 352 ids.
    """
    if vocab_size < TINY_DSML_MIN_VOCAB:
        raise ValueError(f"expected at least {TINY_DSML_MIN_VOCAB} ids, got {vocab_size}")
    tokens = [*TINY_DSML_CONTROL_TOKENS, *byte_alphabet().values()]
    tokens += [merge.replace(" ", "") for merge in _TINY_DSML_MERGES]
    tokens += [f"~{i}" for i in range(len(tokens), vocab_size)]
    special, ordinary = TINY_DSML_CONTROL_TOKENS[:3], TINY_DSML_CONTROL_TOKENS[3:]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = _byte_level(vocab, _TINY_DSML_MERGES, special)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ordinary])
    return tokenizer


def _byte_level(vocab: dict[str, int], merges: Sequence[str], control: Sequence[str]) -> Tokenizer:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise ValueError(f"expected a merge of two tokens and one space, got {merge!r}")
        pairs.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    return tokenizer
