"""Ways in which a session log can be damaged: lines, fields under a right checksum, bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cedagent.agent.log import decode_line, encode_line

ANY = st.sampled_from(
    [None, True, -1, 0, 1, 3, 10**30, 1.5, "", "end", "a\nb", [], [1], ["a"], [10**9], {}, {"a": 1}]
)
KEYS = st.sampled_from(
    ["kind", "version", "name", "created", "system", "tools", "chat_format", "model", "seed", "ids",
     "model_digest", "tokenizer_digest", "parent", "role", "at", "prefill_end", "choice", "text",
     "thinking", "effort", "n_results", "calls", "results", "n", "ending", "digest"]
)  # fmt: skip
WHERE = st.integers(0, 5_000)
MUTATIONS = st.one_of(
    st.tuples(st.just("drop line"), WHERE, st.none(), st.none()),
    st.tuples(st.just("repeat line"), WHERE, st.none(), st.none()),
    st.tuples(st.just("swap lines"), WHERE, st.none(), st.none()),
    st.tuples(st.just("set"), WHERE, KEYS, ANY),
    st.tuples(st.just("lose"), WHERE, KEYS, st.none()),
    st.tuples(st.just("flip"), WHERE, st.none(), st.none()),
    st.tuples(st.just("cut"), WHERE, st.none(), st.none()),
    st.tuples(st.just("add"), WHERE, st.none(), st.none()),
)


def mutate(lines: list[bytes], mutation: tuple[str, int, Any, Any]) -> list[bytes]:
    kind, where, key, value = mutation
    if not lines:
        return lines
    i = where % len(lines)
    if kind == "drop line":
        return lines[:i] + lines[i + 1 :]
    if kind == "repeat line":
        return [*lines[: i + 1], *lines[i:]]
    if kind == "swap lines":
        return [*lines[:i], *reversed(lines[i : i + 2]), *lines[i + 2 :]]
    if kind in ("set", "lose"):
        entry = decode_line(lines[i][:-1])
        if entry is None:
            return lines
        entry.pop(key, None)
        entry |= {key: value} if kind == "set" else {}
        return [*lines[:i], encode_line(entry) if entry else b"\n", *lines[i + 1 :]]
    data = bytearray(b"".join(lines))
    at = where % max(1, len(data))
    if kind == "flip" and data:
        data[at] ^= 1 << where % 8
    elif kind == "cut":
        del data[at:]
    else:
        data += b"more" * (where % 3)
    return bytes(data).splitlines(keepends=True)
