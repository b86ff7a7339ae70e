"""The Engram token map: which token ids count as the same word when n-grams are hashed.

Technical report arXiv 2609.19969, the part on Engram; fields engram_compressed_vocab_size and
engram_pad_id, file engram_token_map.json. Knows token ids, their texts and classes, nothing of
hashes or weights. Invariant: a map has one class per id below vocab_size and exactly
engram_compressed_vocab_size classes, since every hash multiplier is drawn for that number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cedagent.errors import ConfigError
from cedagent.model.config_fields import shown, typed
from cedagent.model.v41_limits import check_engram_limits

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from cedagent.model.v41_config import V41Config

TOKEN_MAP_FILE = "engram_token_map.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

PAD_SPELLINGS = ("engram_pad_id", "engram_pad_token_id")
"""The release's config.json has the latter name, its own program and other readers the former."""


def config_field(config: Mapping[str, Any] | V41Config, name: str) -> Any:
    """Return vocab_size or one of engram_*; of a mapping, checked. Raises ConfigError.

    A list comes as a tuple. A V41Config was checked when it was made.
    """
    if not isinstance(config, Mapping):
        value = getattr(config, name, None)
    elif name == PAD_SPELLINGS[0]:
        value = pad_of(config)
    else:
        value = config.get(name)
    if value is None:
        raise ConfigError(f"missing {name}: expected it beside engram_layer_ids")
    if isinstance(config, Mapping):
        if name in ("engram_layer_ids", "engram_num_embeddings"):
            entries = list(value) if isinstance(value, tuple) else value
            value = typed(name, "tuple[int, ...]", entries, where="config")
        else:
            value = typed(name, "int", value, where="config")
        if name.startswith("engram_"):
            check_engram_limits(name, value)
    return value


def pad_of(fields: Mapping[str, Any]) -> Any:
    """Return the pad's id in either spelling, None without; raises ConfigError for two values."""
    given = {name: fields[name] for name in PAD_SPELLINGS if fields.get(name) is not None}
    values = list(given.values())
    if len(values) == 2 and values[0] != values[1]:
        told = " and ".join(f"{name} = {shown(value)}" for name, value in given.items())
        raise ConfigError(f"expected one pad, got {told}")
    return values[0] if values else None


def load_token_map(model_dir: Path, config: Mapping[str, Any] | V41Config) -> list[int]:
    """Return the class of every token id, from the model's files.

    Reads engram_token_map.json if it is there, else derives the map from tokenizer.json. Raises
    ConfigError when neither can be read, or when the map is not the config's.
    """
    n_ids = config_field(config, "vocab_size")
    n_classes = config_field(config, "engram_compressed_vocab_size")
    path = model_dir / TOKEN_MAP_FILE
    if path.exists():
        classes = _read(path)
    else:
        path = model_dir / "tokenizer.json"
        classes = _derive(path)
        # No sequence of this tokenizer holds the ids that only the embedding has.
        pad = config_field(config, "engram_pad_id")
        missing = max(0, n_ids - len(classes))
        classes += [classes[pad] if pad < len(classes) else 0] * missing
    found = max(classes, default=-1) + 1
    if found != n_classes:
        raise ConfigError(
            f"{path}: gives {found} classes of tokens, but engram_compressed_vocab_size is "
            f"{n_classes}; expected the file that belongs to these weights"
        )
    used = len(set(classes))
    if used != n_classes:
        raise ConfigError(
            f"{path}: has tokens of {used} classes, but engram_compressed_vocab_size is "
            f"{n_classes}; expected each class 0 .. {n_classes - 1} to have one"
        )
    if len(classes) != n_ids:
        raise ConfigError(f"{path}: maps {len(classes)} token ids, but vocab_size is {n_ids}")
    return classes


def derive_token_map(tokenizer: Tokenizer) -> list[int]:
    """Return the class of every id of a tokenizer, numbered by first appearance.

    Ids are of one class when their texts, decoded alone, differ only in case, accents,
    compatibility forms and white space. An id that is no complete character keeps its raw spelling
    as its key.
    """
    from tokenizers import Regex, normalizers

    # The library's own Unicode tables: Python's are of another version.
    fold = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        ]
    )
    strip = normalizers.Strip()
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    texts = tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)
    class_of: dict[str, int] = {}
    classes = []
    for i, text in zip(ids, texts, strict=True):
        if REPLACEMENT in text:
            key = tokenizer.id_to_token(i) or text
        else:
            folded = fold.normalize_str(text)
            # A lone space is a word of its own; other texts that fold to nothing stay as they are.
            key = folded if folded == " " else strip.normalize_str(folded) or text
        classes.append(class_of.setdefault(key, len(class_of)))
    return classes


def _derive(path: Path) -> list[int]:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ConfigError(
            f"no {TOKEN_MAP_FILE} and no tokenizer.json in {path.parent}: expected one of them, "
            "since Engram hashes classes of tokens"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The library raises bare Exception for a file that it cannot read.
    except Exception as error:
        raise ConfigError(f"{path}: expected a tokenizer.json, got: {error}") from error
    return derive_token_map(tokenizer)


def _read(path: Path) -> list[int]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read as JSON: nested too deeply") from None
    if not isinstance(values, list):
        raise ConfigError(f"{path}: expected a list of classes, got {type(values).__name__}")
    for i, value in enumerate(values):
        if type(value) is not int or value < 0:
            raise ConfigError(f"{path}: expected a class for token {i}, got {shown(value)}")
    return values
