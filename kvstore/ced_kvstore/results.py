"""What the store takes and returns: small frozen records, no behaviour.

`position` is always a token index, `blocks` a number of whole blocks of 128 tokens. A reason is one
of: hit, short (fewer than 128 ids), never_stored, evicted, fingerprint:<field>, diverged, corrupt,
read_only, disabled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_TEXT_BYTES = 512
"""Most bytes of an anchor's label or kind: what names a thousand of them is still read whole."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One named sequence of rows; the store knows nothing of what is in them."""

    name: str
    block_bytes: int
    """Bytes of the rows of one block (128 tokens)."""

    def __post_init__(self) -> None:
        if not self.name or "," in self.name:
            raise ValueError(f"stream name must be non-empty and hold no comma, got {self.name!r}")
        if not 0 < self.block_bytes <= 1 << 30:
            raise ValueError(f"stream {self.name}: block_bytes must be in [1, 2**30]")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A named point where a session can resume; it keeps the path below it from being removed."""

    block_hash: bytes
    """The last whole block before the point; the store's root when there is none."""
    label: str
    """What it belongs to, for example `session:NAME`; one label may have many anchors."""
    kind: str = "prefill"
    """Free word: prefill, output, warm, fork."""
    pinned: bool = False
    """Never evicted; only `remove` drops it."""
    created: float = 0.0
    """Seconds since the epoch; 0 means now."""
    n_tokens: int = 0
    """The exact position of the point; 0 means the end of the block."""

    def __post_init__(self) -> None:
        # What gets into the index with another type can never be read again.
        check_hash(self.block_hash)
        text = f"a text of at most {MAX_TEXT_BYTES} bytes"
        is_label = _is_text(self.label) and self.label != ""
        _expect(is_label, "label", f"{text}, not empty", self.label)
        _expect(_is_text(self.kind), "kind", text, self.kind)
        _expect(isinstance(self.pinned, bool), "pinned", "True or False", self.pinned)
        is_time = _is_number(self.created, int, float) and 0 <= self.created < 2**53
        _expect(is_time, "created", "seconds since the epoch", self.created)
        # The end of the last block that 32 bits can place.
        is_position = _is_number(self.n_tokens, int) and 0 <= self.n_tokens < 2**32 + 128
        _expect(is_position, "n_tokens", "a token index", self.n_tokens)


@dataclass(frozen=True, slots=True)
class Match:
    """The longest stored prefix of some ids, as found in the index; no payload was read yet."""

    blocks: int
    hashes: tuple[bytes, ...]
    """The matched blocks' hashes, first block first."""
    reason: str
    """`hit` when every whole block is stored, else why the next block is not."""
    anchors: tuple[Anchor, ...] = ()
    """Anchors on the path, newest position first."""
    snapshots: tuple[int, ...] = ()
    """Positions on the path that have a snapshot, newest first."""
    raw_ids: bytes = field(default=b"", repr=False)
    """The matched ids as stored, which `read` compares."""

    @property
    def position(self) -> int:
        """Tokens that need not be encoded again."""
        return self.blocks * 128

    def block_hash(self, position: int) -> bytes:
        """Return the hash of the block that ends at `position`, a multiple of 128 above 0."""
        return self.hashes[position // 128 - 1]


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit published."""

    blocks: int
    """Blocks newly written."""
    skipped: int
    """Blocks that were already there."""
    reason: str | None = None
    """Why something was not stored; None when everything asked for is now on disk."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why some ids are, or are not, served from the store."""

    reason: str
    position: int
    """First differing token when a stored block says what came instead, else the matched tokens."""
    blocks: int
    """Whole blocks matched."""
    stored_id: int | None = None
    given_id: int | None = None
    """The ids at `position`; None when there is nothing stored or given to compare."""
    field: str | None = None
    """The first fingerprint field that differs."""
    stored: str | int | None = None
    ours: str | int | None = None
    """That field's values, or for `evicted` and `corrupt` what happened (in `stored`)."""
    when: float | None = None
    """When it was evicted, in seconds since the epoch."""
    block_position: int = 0
    """Where the compared stored block starts."""
    stored_ids: tuple[int, ...] = ()
    """All ids of that stored block, so that neighbours can be shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding of `verify`."""

    kind: str
    """corrupt, hole, index; where nothing was checked or mended: disabled, read_only, busy."""
    where: str
    detail: str
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """What one `remove` dropped."""

    anchors: int
    blocks: int
    bytes: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """What one `gc` gave back."""

    blocks: int
    """Blocks dropped because nothing needed them."""
    segments: int
    """Segment files that went."""
    bytes: int
    """Bytes given back to the disk."""
    reason: str | None = None
    """Why nothing, or not everything, was done."""
    waiting: int = 0
    """Segment files with dead bytes that wait for another process to be done with them, or for
    room to move what else is in them."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Sizes now, and counts since this process opened the store."""

    blocks: int
    snapshots: int
    anchors: int
    segments: int
    bytes_live: int
    bytes_on_disk: int
    """Segments and index; what the budget limits."""
    bytes_index: int
    max_bytes: int
    read_only: bool
    notice: str | None
    lookups: int
    """Calls of `match` with at least one whole block."""
    hits: int
    """Of these, how many found at least one block."""
    blocks_matched: int
    blocks_read: int
    blocks_written: int
    blocks_evicted: int
    """Blocks that this process dropped; `evicted` has them by reason."""
    blocks_bad: int
    reasons: dict[str, int]
    """Lookups by reason."""
    evicted: dict[str, int] = field(default_factory=dict)
    """Dropped blocks by reason: byte budget, nobody pointed at it, removed, damaged."""


def check_hash(key: object) -> None:
    """Raise ValueError unless this can be a block's hash."""
    if not isinstance(key, bytes) or len(key) != 32:
        raise ValueError(f"a block hash: expected 32 bytes, got {key!r:.80}")


def _expect(is_so: bool, name: str, expected: str, got: object) -> None:
    if not is_so:
        raise ValueError(f"anchor: expected {name} to be {expected}, got {got!r:.80}")


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False


def _is_number(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
