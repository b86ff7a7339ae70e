"""Words for why ids hit or miss the prefix store: `kv why`.

The store speaks of ids and fields; here they become text, with the neighbours of the first token
that differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cedagent.cli.render import printable
from cedagent.errors import SessionError
from cedagent.paths import sessions_dir

if TYPE_CHECKING:
    from ced_kvstore import Explanation
    from cedagent.chat.tokenizer import Tokenizer

NEIGHBOURS = 8
"""Tokens shown before and after the first one that differs."""


def session_ids(name: str) -> list[int]:
    """Return the ids of a session's log; raises SessionError."""
    from cedagent.agent.log import check_name, read_entries

    path = sessions_dir() / f"{check_name(name)}.jsonl"
    try:
        entries, _ = read_entries(path.read_bytes(), path=path)
    except OSError:
        raise SessionError(f"no session {name}; `cedagent sessions ls` lists them") from None
    if not entries:
        raise SessionError(f"session {name}: {path} holds no whole entry")
    return [token for entry in entries for token in entry["ids"]]


def lines_of(found: Explanation, ids: Sequence[int], model_dir: Path) -> list[str]:
    """Return the explanation in lines for people, the reason first."""
    from cedagent.chat.tokenizer import Tokenizer

    known = f"{found.blocks * 128:,} of {len(ids):,} tokens are stored"
    if found.reason == "hit":
        rest = len(ids) - found.blocks * 128
        return [f"hit: {known}" + (f"; the last {rest} make no whole block" if rest else "")]
    lines = [f"{found.reason}: {known}; {_meaning(found)}"]
    if found.stored_id is not None and found.given_id is not None:
        lines += _difference(found, ids, Tokenizer.load(model_dir))
    return lines


def _meaning(found: Explanation) -> str:
    kind = found.reason.partition(":")[0]
    if kind == "fingerprint":
        return f"{found.field} was {found.stored!r} when they were stored and is {found.ours!r} now"
    if kind == "evicted":
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.when or 0))
        return f"the next block was there until {when} ({found.stored})"
    return {
        "short": "fewer than 128 tokens make no block, nothing is looked up",
        "never_stored": "nothing that begins so was ever stored",
        "diverged": f"what is stored goes on differently from token {found.position:,} on",
        "corrupt": f"the next block is damaged ({found.stored}); `cedagent kv verify --fix` drops "
        "it",
        "read_only": "the store was read-only, so nothing new was kept",
        "disabled": f"the store cannot be used ({found.stored})",
    }.get(kind, "no further reason is known")


def _difference(found: Explanation, ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    at = found.position
    stored = [*ids[: found.block_position], *found.stored_ids]
    return [
        f"first difference at token {at:,}:",
        f"  stored: {_around(stored, at, tokenizer)}",
        f"  given:  {_around(ids, at, tokenizer)}",
    ]


def _around(ids: Sequence[int], at: int, tokenizer: Tokenizer) -> str:
    """Return the token at a position in brackets, between its neighbours."""

    def text(part: Sequence[int]) -> str:
        return "".join(_visible(token, tokenizer) for token in part)

    before, after = ids[max(0, at - NEIGHBOURS) : at], ids[at + 1 : at + 1 + NEIGHBOURS]
    return f"{text(before)} [{_visible(ids[at], tokenizer)}] {text(after)}"


def _visible(token: int, tokenizer: Tokenizer) -> str:
    return printable(tokenizer.token_name(token)).replace("\n", "\\n").replace("\t", "\\t")
