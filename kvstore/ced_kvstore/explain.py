"""Say why ids are served from the store or not: the first token, field or event that differs.

Reads the headers and ids of the blocks that could have come next; no rows. Invariant: it changes
nothing, not even recency.
"""

from __future__ import annotations

from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE, BadRecord, told
from ced_kvstore.hashing import IDS_BYTES, Fingerprint, block_hash, token_ids
from ced_kvstore.lookup import differing_field, find, other_fingerprint
from ced_kvstore.record import Place
from ced_kvstore.results import Explanation

MAX_CHILDREN = 4096
"""Most blocks compared at one fork."""


def explain(core: Core, fingerprint: Fingerprint, raw_ids: bytes) -> Explanation:
    """Return the explanation; trouble with the disk is one, too."""
    try:
        return _explain(core, fingerprint, raw_ids)
    except TROUBLE as error:
        return Explanation("disabled", 0, 0, stored=told(error))


def _explain(core: Core, fingerprint: Fingerprint, raw_ids: bytes) -> Explanation:
    match = find(core, fingerprint, raw_ids)
    blocks, position, reason = match.blocks, match.position, match.reason
    key = match.hashes[-1] if match.hashes else fingerprint.root
    given = raw_ids[blocks * IDS_BYTES : (blocks + 1) * IDS_BYTES]
    with core.read() as tables:
        gone = tables.gone(block_hash(key, given))
        other = other_fingerprint(tables, fingerprint, raw_ids, blocks)
        entries = [tables.block(child) for child in tables.children(key)[:MAX_CHILDREN]]
    if reason == "evicted" and gone:
        return Explanation(reason, position, blocks, stored=gone[1], when=gone[0])
    if reason == "corrupt":
        return Explanation(reason, position, blocks, stored="its record on disk is damaged")
    if reason not in ("hit", "short") and other is not None:
        name, stored, ours = differing_field(fingerprint.fields, other)
        return Explanation(
            f"fingerprint:{name}", position, blocks, field=name, stored=stored, ours=ours
        )
    given_ids = token_ids(given)
    same, stored_ids = _nearest(core, [entry.place for entry in entries if entry], given_ids)
    differs = stored_ids and same < len(given_ids)
    if reason == "short" and differs:
        reason = "diverged"
    if reason == "never_stored" and core.read_only:
        reason = "read_only"
    if not differs:
        return Explanation(reason, position, blocks)
    return Explanation(
        reason,
        position + same,
        blocks,
        stored_id=stored_ids[same],
        given_id=given_ids[same],
        block_position=position,
        stored_ids=stored_ids,
    )


def _nearest(
    core: Core, places: list[Place], given: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Return how many ids agree with the stored block that agrees longest, and its ids.

    Of several the one that agrees in most places is meant: an edited text, not another one.
    """
    found: tuple[int, ...] = ()
    best = (-1, -1)
    for place in places:
        try:
            header, raw = core.segments.read_header(place, IDS_BYTES)
        except BadRecord:
            continue
        # The crc covers the header only; the ids are what the key was made of.
        if block_hash(header.parent, raw) != header.key:
            continue
        stored = token_ids(raw)
        agrees = [a == b for a, b in zip(stored, given, strict=False)]
        same = agrees.index(False) if False in agrees else len(agrees)
        if (same, sum(agrees)) > best:
            best, found = (same, sum(agrees)), stored
    return max(0, best[0]), found
