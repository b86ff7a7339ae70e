"""Find the longest stored prefix of some ids, and say why it is no longer.

Knows the index only: no payload is read here, nothing is written. Invariant: a block is counted
only when every block before it was.
"""

from __future__ import annotations

from ced_kvstore.core import Core
from ced_kvstore.hashing import IDS_BYTES, Fingerprint, Value, chain, root_hash
from ced_kvstore.results import Anchor, Match
from ced_kvstore.rows import Tables


def find(core: Core, fingerprint: Fingerprint, raw_ids: bytes) -> Match:
    """Return the match; raises one of errors.TROUBLE."""
    hashes: list[bytes] = []
    anchors: list[Anchor] = []
    snapshots: list[int] = []
    reason = "hit"
    with core.read() as tables:
        for key, is_stored, has_snapshot, at in tables.walk(chain(fingerprint.root, raw_ids)):
            if not is_stored or (core.bad and core.is_bad(key, tables)):
                reason = _why_not(tables, fingerprint, raw_ids, key, hashes)
                break
            hashes.append(key)
            anchors += at
            if has_snapshot and not (core.bad and tables.snapshot(key) in core.bad):
                snapshots.append(len(hashes) * 128)
    if len(raw_ids) < IDS_BYTES:
        reason = "short"
    return Match(
        blocks=len(hashes),
        hashes=tuple(hashes),
        reason=reason,
        anchors=tuple(reversed(anchors)),
        snapshots=tuple(reversed(snapshots)),
        raw_ids=raw_ids[: len(hashes) * IDS_BYTES],
    )


def _why_not(
    tables: Tables,
    fingerprint: Fingerprint,
    raw_ids: bytes,
    key: bytes,
    before: list[bytes],
) -> str:
    if tables.block(key) is not None:
        return "corrupt"
    if tables.gone(key):
        return "evicted"
    if not before:
        other = other_fingerprint(tables, fingerprint, raw_ids, 0)
        if other is not None:
            return f"fingerprint:{differing_field(fingerprint.fields, other)[0]}"
    parent = before[-1] if before else fingerprint.root
    return "diverged" if tables.children(parent) else "never_stored"


def other_fingerprint(
    tables: Tables, ours: Fingerprint, raw_ids: bytes, blocks: int
) -> dict[str, Value] | None:
    """Return the plain fields of the fingerprint under which more than `blocks` blocks of these
    ids are stored; the nearest one to ours when there are several."""
    candidates = []
    for digest, fields in tables.fingerprints().items():
        if digest == ours.digest:
            continue
        for count, key in enumerate(chain(root_hash(digest), raw_ids), start=1):
            if tables.block(key) is None:
                break
            if count > blocks:
                candidates.append((_distance(ours.fields, fields), digest, fields))
                break
    return min(candidates)[2] if candidates else None


def _distance(ours: dict[str, Value], theirs: dict[str, Value]) -> int:
    return sum(_differs(name, ours, theirs) for name in ours.keys() | theirs.keys())


def _differs(name: str, ours: dict[str, Value], theirs: dict[str, Value]) -> bool:
    one, other = ours.get(name), theirs.get(name)
    if (name in ours) != (name in theirs) or one != other:
        return True
    # True and 1 are equal, and hashed as two.
    return isinstance(one, bool) != isinstance(other, bool)


def differing_field(ours: dict[str, Value], theirs: dict[str, Value]) -> tuple[str, Value, Value]:
    """Return (name, their value, our value) of the first field that differs, by name.

    A field that one side does not have counts as None there.
    """
    for name in sorted(ours.keys() | theirs.keys()):
        if _differs(name, ours, theirs):
            return name, theirs.get(name), ours.get(name)
    return "", None, None
