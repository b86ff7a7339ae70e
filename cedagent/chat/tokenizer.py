"""Text to token ids and back, over a byte-level `tokenizer.json`.

Knows nothing of turns or tools. Invariant: content never turns into a control token. Whatever a
text says, `encode` returns ordinary tokens; control tokens are reached by `control_id` alone.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from llguidance import LLTokenizer, TokenizerWrapper

from cedagent.errors import ChatFormatError, ConfigError
from cedagent.model.tokenizer_build import byte_alphabet

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The vocabulary of one model, with content and control tokens kept apart."""

    def __init__(self, source: str) -> None:
        """Read the text of a `tokenizer.json`; raises ConfigError if it is not byte-level BPE."""
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        """SHA-256 of the file, in hex."""
        try:
            spec: dict[str, Any] = json.loads(source)
            self._control: dict[str, int] = {
                t["content"]: t["id"] for t in spec.get("added_tokens") or ()
            }
            self._vocab: dict[str, int] = dict(spec["model"]["vocab"])
            if not _mentions(spec.get("decoder"), "ByteLevel"):
                raise ConfigError("expected a byte-level BPE tokenizer.json, got another kind")
            for name in self._control:
                self._vocab.pop(name, None)
            content = {
                **spec,
                "added_tokens": [],
                "post_processor": None,
                "truncation": None,
                "padding": None,
                "model": {**spec["model"], "vocab": self._vocab},
            }
            self._content = tokenizers.Tokenizer.from_str(json.dumps(content))
        except ConfigError:
            raise
        # The library raises bare Exception for a file that it cannot read.
        except Exception as error:
            raise ConfigError(f"expected a tokenizer.json, got one that fails: {error}") from error
        self._matcher_vocabularies: dict[tuple[frozenset[int], int], LLTokenizer] = {}
        self.control_ids = frozenset(self._control.values())
        """Ids of all added tokens: none of them is ever content."""
        self.vocab_size = 1 + max((*self._vocab.values(), *self.control_ids))
        """One more than the largest id."""

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read `tokenizer.json` of a model directory; raises ConfigError if it cannot."""
        path = Path(model_dir) / "tokenizer.json"
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"expected a readable {path}, got: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of content; the names of control tokens in it are plain text.

        A character that the vocabulary cannot spell, or half a surrogate pair, becomes U+FFFD.
        """
        return self._content.encode(self._spellable(text), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; control tokens have none, invalid UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes(i) or b"" for i in ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of an ordinary token; None for control tokens and unknown ids."""
        return self._bytes.get(token)

    def token_name(self, token: int) -> str:
        """Return what to show a person for one id: its text, or the control token's name."""
        for name, control in self._control.items():
            if control == token:
                return name
        data = self.token_bytes(token)
        return f"[{token}]" if data is None else data.decode(errors="replace")

    def control_id(self, name: str) -> int:
        """Return the id of a control token; raises ChatFormatError if there is none."""
        try:
            return self._control[name]
        except KeyError:
            # Some vocabularies have a thousand, most of them placeholders.
            known = sorted(self._control)
            some = ", ".join(known[:12]) or "none"
            raise ChatFormatError(
                f"expected the control token {name} in tokenizer.json, got only {some}"
                f"{f' and {len(known) - 12} more' if len(known) > 12 else ''}; "
                "use the chat format of this model"
            ) from None

    def stream(self) -> TextStream:
        """Return a fresh decoder for ids that come one by one."""
        return TextStream(self)

    def matcher_vocabulary(self, stop_ids: frozenset[int], vocab_size: int) -> LLTokenizer:
        """Return the vocabulary as llguidance wants it; built once (0.4 s for 49,152 tokens).

        Every control token is marked special in it, so that no grammar matches one as text; and
        what a grammar forces is spelled by `encode`, so that the name of one stays text too.
        Raises ConfigError for fewer ids than the tokenizer has.
        """
        if vocab_size < self.vocab_size:
            raise ConfigError(
                f"expected logits for the tokenizer's {self.vocab_size} ids, got {vocab_size}"
            )
        key = (stop_ids, vocab_size)
        if key not in self._matcher_vocabularies:
            self._matcher_vocabularies[key] = LLTokenizer(
                _MatcherSource(self, stop_ids, vocab_size), eos_token=sorted(stop_ids)
            )
        return self._matcher_vocabularies[key]

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        byte_of = {char: byte for byte, char in byte_alphabet().items()}
        table = {}
        for token, i in self._vocab.items():
            # A few vocabularies hold ordinary tokens outside the byte alphabet; they are text.
            try:
                table[i] = bytes([byte_of[char] for char in token])
            except KeyError:
                table[i] = token.encode()
        return table

    @cached_property
    def _unspellable_bytes(self) -> bytes:
        present = {data[0] for data in self._bytes.values() if len(data) == 1}
        return bytes(byte for byte in range(256) if byte not in present)

    def _spellable(self, text: str) -> str:
        missing = self._unspellable_bytes
        try:
            data = text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            data = text.encode()
        if not any(byte in data for byte in missing):
            return text
        return "".join(
            REPLACEMENT if any(byte in missing for byte in char.encode()) else char for char in text
        )


class TextStream:
    """Decodes ids one by one, holding back a character until all its bytes are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the text that became complete; a control token ends a character early."""
        data = self._tokenizer.token_bytes(token)
        return self.flush() if data is None else self._decoder.decode(data)

    def flush(self) -> str:
        """End the text: an incomplete character becomes U+FFFD."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class _MatcherSource(TokenizerWrapper):
    """A vocabulary in the shape that llguidance reads from Python."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int], vocab_size: int) -> None:
        # Not the base's: that one tries whether bytes can be encoded, and takes them from then on.
        self.is_tokenizer_wrapper = True
        self.bos_token_id = None
        self.eos_token_id = min(stop_ids)
        self.special_token_ids = sorted(tokenizer.control_ids)
        # An id without bytes is in no mask.
        self.tokens = [tokenizer.token_bytes(i) or b"" for i in range(vocab_size)]
        for i in tokenizer.control_ids:
            self.tokens[i] = tokenizer.token_name(i).encode()
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _mentions(part: Any, kind: str) -> bool:
    """Whether a decoder in tokenizer.json is of a kind, itself or as a member of a sequence."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == kind or any(_mentions(p, kind) for p in part.get("decoders") or ())
