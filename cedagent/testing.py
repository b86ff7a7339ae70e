"""ScriptedModel: an engine that writes given outputs, to test tools and agents without a model.

Satisfies `EngineLike` without torch. What it writes next is a function of the ids alone: the n-th
answer header of a sequence is followed by the n-th output of the script. So forks, resumed sessions
and outputs that go on after a limit come out as they would with a model.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cedagent.chat.chatml import render_call
from cedagent.chat.dsml_parser import marked_ids
from cedagent.chat.template import ChatFormat, load_chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine.protocol import Cancelled, PrefillUsage, Progress, Sampling
from cedagent.errors import ContextLimitError, EngineError
from cedagent.model.tokenizer_build import build_tiny, build_tiny_dsml

_TILE = 128


def call(name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Return the text of a call as the default chat format has it, for a script."""
    return render_call(name, {**(arguments or {}), **more})


class ScriptedModel:
    """Replays `outputs`: texts (of `dsml`, with marks by name), or ids without the stop id."""

    store: None = None
    """It has no prefix store."""

    def __init__(
        self,
        outputs: Sequence[str | Sequence[int]],
        *,
        model_dir: Path | None = None,
        context_limit: int = 8_192,
        token_s: float = 0.0,
        tile_s: float = 0.0,
        model_digest: str = "scripted",
        chat_format: str = "chatml",
        thinking: bool = False,
    ) -> None:
        """Read `tokenizer.json` in `model_dir`, or build a tiny one; `*_s` slow it down."""
        self._remove_own: Callable[[], object] = lambda: None
        if model_dir is None:
            model_dir = Path(tempfile.mkdtemp(prefix="cedagent-scripted-"))
            # Also when it is never closed.
            self._remove_own = weakref.finalize(self, shutil.rmtree, model_dir, ignore_errors=True)
            write_tiny_tokenizer(model_dir, chat_format)
        self.chat_format = chat_format
        self.model_dir = model_dir
        self.context_limit = context_limit
        self.token_s = token_s
        self.tile_s = tile_s
        self.model_digest = hashlib.sha256(model_digest.encode()).hexdigest()
        self.tokenizer = Tokenizer.load(model_dir)
        self.format: ChatFormat = load_chat_format(
            model_dir, chat_format, tokenizer=self.tokenizer, thinking=thinking
        )
        self.vocab_size = self.tokenizer.vocab_size
        self.outputs = tuple(outputs)
        self.prefills: list[tuple[int, int]] = []
        """(ids before, ids after) of every prefill that came to its end."""
        self.notices: list[str] = []
        """One-line warnings for the user, as an engine has them; none by itself."""
        # What every answer begins with, whatever stands before it.
        self._header = _common_end(self.format.user("a"), self.format.results(["b"]))

    def sequence(self, ids: Sequence[int] = ()) -> ScriptedSequence:
        """Open a sequence over ids that are known but not yet run."""
        return ScriptedSequence(self, ids)

    def warm(
        self, ids: Sequence[int], *, label: str = "warm", progress: Progress | None = None
    ) -> PrefillUsage:
        """Pretend to encode the whole tiles, every time anew: without a store none is kept."""
        stop = len(ids) // _TILE * _TILE
        for done in range(_TILE, stop + 1, _TILE):
            time.sleep(self.tile_s)
            if progress is not None:
                progress(done, stop, 0)
        return PrefillUsage(encoded=stop)

    def close(self) -> None:
        """Remove the model directory if it is one of its own."""
        self._remove_own()

    def next_id(self, ids: Sequence[int]) -> int:
        """Return the id that the script has after `ids`; raises EngineError if it has none."""
        starts = _ends_of(self._header, ids)
        if not starts:
            raise EngineError("the script was asked to write where no answer begins")
        number = len(starts)
        if number > len(self.outputs):
            raise EngineError(
                f"the script has {len(self.outputs)} outputs, output {number} was asked for"
            )
        output = self.outputs[number - 1]
        written = list(ids[starts[-1] :])
        stop = min(self.format.stop_ids)
        if not isinstance(output, str):
            return output[len(written)] if len(written) < len(output) else stop
        # Compared as bytes: what a grammar forced may be split into other tokens.
        data, done = output.encode(), b"".join(map(self._spelled, written))
        if not data.startswith(done):
            raise EngineError(f"the script cannot go on with {output!r} after {done!r}")
        if data == done:
            return stop
        at = 0
        for token in self._ids_of(output):
            if at == len(done):
                return token
            at += len(self._spelled(token))
        rest = data[len(done) :].decode("utf-8", "ignore")
        return self._ids_of(rest)[0]

    def _ids_of(self, text: str) -> list[int]:
        encode = self.tokenizer.encode
        return marked_ids(self.tokenizer, text) if self.chat_format == "dsml" else encode(text)

    def _spelled(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token) or self.tokenizer.token_name(token).encode()


class ScriptedSequence:
    """A sequence of a ScriptedModel; counts its prefills as an engine without a store does."""

    def __init__(self, model: ScriptedModel, ids: Sequence[int], *, settled: int = 0) -> None:
        self._model = model
        self._ids = list(ids)
        self._settled = settled
        self._ready = False

    @property
    def ids(self) -> Sequence[int]:
        """All token ids so far."""
        return self._ids

    def prefill(
        self,
        new_ids: Sequence[int],
        *,
        progress: Progress | None = None,
        cancelled: Cancelled | None = None,
        label: str = "prefill",
    ) -> PrefillUsage:
        """Append ids and pretend to encode them tile by tile."""
        self._check_room(len(new_ids))
        before, known = len(self._ids), self._settled
        self._ids += new_ids
        total = len(self._ids)
        self._ready = False
        done = known
        while done < total:
            if cancelled is not None and cancelled():
                self._settled = done // _TILE * _TILE
                return PrefillUsage(reused_ram=known, encoded=done - known, cancelled=True)
            time.sleep(self._model.tile_s)
            done = min(done + _TILE, total)
            if progress is not None:
                progress(done, total, known)
        self._settled = total // _TILE * _TILE
        self._ready = True
        self._model.prefills.append((before, total))
        return PrefillUsage(
            reused_ram=known,
            encoded=total - known,
            reencoded=min(before - known, _TILE - 1) if known else 0,
            padded=-total % _TILE,
            replayed=min(total, _TILE),
        )

    def sample(
        self,
        sampling: Sampling,
        allowed: bytes | None = None,
        *,
        majority: int | None = None,
    ) -> int:
        """Return the script's next id; raises EngineError if it is not among the allowed."""
        if not self._ready:
            raise EngineError("sample was called before a prefill")
        time.sleep(self._model.token_s)
        token = self._model.next_id(self._ids)
        if allowed is not None and not allowed[token // 8] >> token % 8 & 1:
            text = self._model.tokenizer.decode(self._ids[-30:])
            raise EngineError(
                f"the script writes {self._model.tokenizer.token_name(token)!r} after {text!r}, "
                "which the call grammar does not allow"
            )
        return token

    def feed(self, token: int) -> None:
        """Append one token."""
        if not self._ready:
            raise EngineError("feed was called before a prefill")
        self._check_room(1)
        self._ids.append(token)

    def append_unseen(self, ids: Sequence[int]) -> None:
        """Append ids without running them."""
        self._check_room(len(ids))
        self._ids += ids
        self._ready = False

    def settle(self, label: str = "output") -> int:
        """Pretend to encode the complete tiles; returns their rows."""
        settled = len(self._ids) // _TILE * _TILE
        rows, self._settled = max(0, settled - self._settled), max(settled, self._settled)
        self._ready = False
        return rows

    def fork(self, n_tokens: int | None = None) -> ScriptedSequence:
        """Return a sequence that starts with the same ids and settled tiles."""
        n = len(self._ids) if n_tokens is None else n_tokens
        settled = min(self._settled, n // _TILE * _TILE)
        return ScriptedSequence(self._model, self._ids[:n], settled=settled)

    def close(self) -> None:
        """Forget what was encoded."""
        self._settled = 0
        self._ready = False

    def _check_room(self, n: int) -> None:
        limit = self._model.context_limit
        if len(self._ids) + n > limit:
            raise ContextLimitError(f"{len(self._ids)} + {n} tokens, the context holds {limit}")


def write_tiny_tokenizer(folder: Path, chat_format: str = "chatml") -> None:
    """Write a small byte-level `tokenizer.json` with a chat format's control tokens."""
    tokenizer = build_tiny_dsml() if chat_format == "dsml" else build_tiny()
    tokenizer.save(str(folder / "tokenizer.json"))


def _common_end(a: Sequence[int], b: Sequence[int]) -> list[int]:
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return list(a[len(a) - n :])


def _ends_of(needle: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Return the positions just after each occurrence of `needle`."""
    n, first = len(needle), needle[0]
    return [i + n for i in range(len(ids) - n + 1) if ids[i] == first and ids[i : i + n] == needle]
