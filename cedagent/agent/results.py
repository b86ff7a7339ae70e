"""Tool results as the model reads them: rendered once, cut by tokens, the whole kept.

Knows tokens only through a tokenizer. Nothing is cut in silence: the text says how much is missing
and, where the whole was kept, how to read on.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from cedagent.agent.schema import encode_other
from cedagent.agent.tools import Context, Tool, ToolError, tool
from cedagent.chat.tokenizer import Tokenizer
from cedagent.events import clean

# Only so much text is looked at per token of the cap; no vocabulary packs prose as densely.
_CHARS_PER_TOKEN = 16

NO_ROOM = "Error: the result does not fit into what is left of the context"


def render(value: Any) -> str:
    """Return a tool's result as text: a string as it is, all else as compact JSON.

    Raises TypeError for what JSON cannot say.
    """
    if isinstance(value, str):
        return clean(value)
    try:
        return msgspec.json.encode(value, enc_hook=encode_other).decode()
    except OverflowError:
        # Integers beyond 64 bits, which JSON itself does not mind.
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_other)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


class Kept:
    """Whole results by id: in a folder beside a session's log, or in memory without one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._texts: dict[str, str] = {}

    def put(self, result_id: str, text: str) -> None:
        """Keep a text; in memory alone where the folder cannot be written."""
        self._texts[result_id] = text
        if self.folder is not None:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (self.folder / f"{result_id}.txt").write_text(text, encoding="utf-8", newline="")
            except OSError:
                return
            del self._texts[result_id]

    def get(self, result_id: str) -> str | None:
        """Return a kept text, or None."""
        if result_id in self._texts or self.folder is None:
            return self._texts.get(result_id)
        if not result_id.removeprefix("r").isdigit():
            return None
        try:
            path = self.folder / f"{result_id}.txt"
            with path.open(encoding="utf-8", newline="") as file:
                return file.read()
        except OSError:
            return None

    def copy_to(self, other: Kept) -> None:
        """Give a fork the texts of its parent."""
        other._texts.update(self._texts)
        if self.folder is None or not self.folder.is_dir():
            return
        if other.folder is not None:
            shutil.copytree(self.folder, other.folder, dirs_exist_ok=True)
            return
        for path in self.folder.glob("r*.txt"):
            other._texts[path.stem] = path.read_text(encoding="utf-8")


class Cutter:
    """Cuts results to a number of tokens; one per batch of calls."""

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, kept: Kept, pages: bool) -> None:
        self.max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._kept = kept
        self._pages = pages

    def cut(self, text: str, *, result_id: str, max_chars: int | None, paged: bool) -> str:
        """Return the text, or its head and tail around a line that says what is missing."""
        if self._fits(text) and (max_chars is None or len(text) <= max_chars):
            return text
        keep = paged and self._pages
        if keep:
            self._kept.put(result_id, text)
        budget = self.max_tokens
        while budget > 0:
            head, tail = self._ends(text, budget)
            if max_chars is not None:
                head, tail = head[: max_chars * 2 // 3], _last(tail, max_chars // 3)
            missing = len(text) - len(head) - len(tail)
            how = f'; read on with more(result_id="{result_id}", offset={len(head)})'
            line = f"[{missing} of {len(text)} characters left out{how if keep else ''}]"
            shown = f"{head}\n{line}\n{tail}"
            excess = self._count(shown) - self.max_tokens
            if excess <= 0:
                return shown
            budget -= excess + 1
        return NO_ROOM

    def page(self, result_id: str, offset: int) -> str:
        """Return as much of a kept result from `offset` on as fits; raises ToolError."""
        text = self._kept.get(result_id)
        if text is None:
            raise ToolError(f"there is no result {result_id!r}")
        if not 0 <= offset < max(1, len(text)):
            raise ToolError(f"offset {offset}: the result has {len(text)} characters")
        rest = text[offset:]
        if self._fits(rest):
            return rest
        budget = self.max_tokens
        while budget > 0:
            head = self._head(rest, budget)
            end = offset + len(head)
            shown = f"{head}\n[{len(text) - end} characters follow from offset {end}]"
            excess = self._count(shown) - self.max_tokens
            if excess <= 0 and head:
                return shown
            budget -= max(excess, 0) + 1
        raise ToolError("not even one character of it fits into what is left of the context")

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def _fits(self, text: str) -> bool:
        if len(text) > self.max_tokens * _CHARS_PER_TOKEN:
            return False
        return self._count(text) <= self.max_tokens

    def _ends(self, text: str, budget: int) -> tuple[str, str]:
        """Return head and tail of about 2/3 and 1/3 of `budget` tokens that do not overlap."""
        head = self._head(text, budget * 2 // 3)
        rest = text[len(head) :]
        n_tail = budget // 3
        ids = self._tokenizer.encode(_last(rest, n_tail * _CHARS_PER_TOKEN))
        return head, self._text_of(ids[-n_tail:] if n_tail else [])

    def _head(self, text: str, n_tokens: int) -> str:
        ids = self._tokenizer.encode(text[: n_tokens * _CHARS_PER_TOKEN])
        return self._text_of(ids[:n_tokens])

    def _text_of(self, ids: list[int]) -> str:
        """Decode ids, without the pieces of characters at both ends."""
        data = b"".join(self._tokenizer.token_bytes(token) or b"" for token in ids)
        return data.decode("utf-8", "ignore")


def _last(text: str, n: int) -> str:
    return text[-n:] if n > 0 else ""


def make_more() -> Tool:
    """Return the tool that reads on in a result that was cut."""

    @tool(paged=False)
    def more(result_id: str, ctx: Context, offset: int = 0) -> str:
        """Read on in a result that was cut.

        Args:
            result_id: The id that the cut result names.
            offset: The character to start at.
        """
        return ctx.page(result_id, offset)

    return more
