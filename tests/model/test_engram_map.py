"""Token ids fold to the classes that Engram's hashes were trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from cedagent.errors import ConfigError
from cedagent.model.engram_map import derive_token_map, load_token_map
from cedagent.model.tokenizer_build import build_tiny_dsml, byte_alphabet

VECTORS = Path(__file__).parents[1] / "vectors" / "v41_tiny_engram"
ALPHABET = byte_alphabet()


def spelled(text: str) -> str:
    """The byte-level spelling of a text."""
    return "".join(ALPHABET[byte] for byte in text.encode())


def tokenizer_of(*texts: str | bytes) -> Tokenizer:
    """A byte-level tokenizer whose ids are these texts, in order."""
    tokens = [
        spelled(text) if isinstance(text, str) else "".join(ALPHABET[b] for b in text)
        for text in texts
    ]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def fields(n_ids: int, n_classes: int) -> dict[str, object]:
    return {
        "engram_layer_ids": [1], "vocab_size": n_ids, "engram_pad_id": 0,
        "engram_compressed_vocab_size": n_classes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The", " the"),
        ("naïve", "NAIVE"),
        ("ﬁn", "fin"),  # NFKC
        ("e\u0301", "É"),  # NFD, then accents
        ("a\t\r\n b", "A b"),
        ("x\n", "x"),
        (" ", "\n\t "),
        ("\u3000", " "),  # an ideographic space is a space after NFKC
    ],
)
def test_texts_that_read_alike_are_one_class(one: str, other: str) -> None:
    assert derive_token_map(tokenizer_of("q", one, other)) == [0, 1, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a b", "ab"),
        (" ", "a"),
        ("x", "y"),
        ("\u0301", "\u0300"),  # accents alone fold to nothing and stay as they are
        ("\u2003\u2028", " "),  # other white space is stripped, not made one space
    ],
)
def test_texts_that_read_differently_are_two(one: str, other: str) -> None:
    assert derive_token_map(tokenizer_of("q", one, other)) == [0, 1, 2]


def test_incomplete_characters_keep_their_raw_spelling() -> None:
    """As text both would be U+FFFD, one class; the release keeps them apart."""
    tokens = tokenizer_of(b"\xe4\xbd", b"\xa0", "ok", b"\xa0OK")
    assert derive_token_map(tokens) == [0, 1, 2, 3]


def test_special_tokens_are_read_by_their_names() -> None:
    tokenizer = tokenizer_of("<S>", "<s>", "other")
    tokenizer.add_special_tokens([AddedToken("<S>", special=True, normalized=False)])
    assert derive_token_map(tokenizer) == [0, 0, 1]


def test_classes_are_numbered_by_first_appearance() -> None:
    classes = derive_token_map(build_tiny_dsml(400))
    assert len(classes) == 400
    assert all(c <= max(classes[:i], default=-1) + 1 for i, c in enumerate(classes))
    names = [build_tiny_dsml(400).id_to_token(i) for i in range(400)]
    assert classes[names.index("t")] == classes[names.index("T")] == classes[names.index("Ġt")]
    assert classes[names.index("Ġ")] == classes[names.index("Ċ")] != classes[names.index("t")]


def test_the_map_beside_the_weights_goes_before_the_tokenizer(tmp_path: Path) -> None:
    config = json.loads((VECTORS / "config.json").read_text())["text_config"]
    stored = load_token_map(VECTORS, config)
    assert stored == json.loads((VECTORS / "engram_token_map.json").read_text())
    assert (len(stored), max(stored) + 1) == (512, 201)
    build_tiny_dsml(400).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "engram_token_map.json").write_text(json.dumps([3, 0, 1, 2, 3]))
    assert load_token_map(tmp_path, fields(5, 4)) == [3, 0, 1, 2, 3]


def test_without_a_file_the_map_follows_from_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = build_tiny_dsml(400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    derived = derive_token_map(tokenizer)
    n_classes = max(derived) + 1
    assert load_token_map(tmp_path, fields(400, n_classes)) == derived
    # Ids that the embedding has and the tokenizer has not: the pad's class.
    padded = load_token_map(tmp_path, fields(416, n_classes))
    assert padded == derived + [derived[0]] * 16


def test_a_tokenizer_of_more_ids_than_the_embedding_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tiny_dsml(400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    n_classes = max(derive_token_map(tokenizer)) + 1
    with pytest.raises(ConfigError, match="maps 400 token ids, but vocab_size is 399"):
        load_token_map(tmp_path, fields(399, n_classes))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_another_number_of_classes_is_refused_with_both_numbers(tmp_path: Path, wrong: int) -> None:
    tokenizer = build_tiny_dsml(400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    right = max(derive_token_map(tokenizer)) + 1
    with pytest.raises(ConfigError, match=rf"gives {right} classes .* is {right + wrong};") as told:
        load_token_map(tmp_path, fields(400, right + wrong))
    assert "\n" not in str(told.value)
    (tmp_path / "engram_token_map.json").write_text("[0, 1, 1, 0]")
    with pytest.raises(ConfigError, match=f"gives 2 classes .* is {2 + wrong};"):
        load_token_map(tmp_path, fields(4, 2 + wrong))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"a": 1}', "expected a list of classes, got dict"),
        ("[0, 1, 2.0]", "expected a class for token 2, got 2.0"),
        ("[0, -1]", "expected a class for token 1, got -1"),
        ("[0, true]", "expected a class for token 1, got True"),
        ("[0, 1, 2]", "maps 3 token ids, but vocab_size is 4"),
        ("[0, 1, 2, 2, 1]", "maps 5 token ids, but vocab_size is 4"),
        ("[0, 2, 2, 0]", "tokens of 2 classes, but engram_compressed_vocab_size is 3"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "gives 0 classes"),
    ],
)
def test_bad_maps_are_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "engram_token_map.json").write_text(content)
    with pytest.raises(ConfigError, match=message) as told:
        load_token_map(tmp_path, fields(4, 3))
    assert "\n" not in str(told.value)


def test_a_folder_without_map_and_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no engram_token_map\.json and no tokenizer\.json"):
        load_token_map(tmp_path, fields(4, 3))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: expected a tokenizer\.json, got: "):
        load_token_map(tmp_path, fields(4, 3))
