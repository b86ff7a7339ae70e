"""The safetensors format: the header of a file to be written, strict views of one that was read.

A file is a u64 (length of the header), the header as JSON (name -> dtype, shape, begin and end) and
the tensors' bytes. Knows nothing of what is in a tensor. Invariant: the views that `parse` returns
cover the file from its header to its last byte, each byte once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ced_kvstore.errors import StoreError
from ced_kvstore.schema import fault, list_of, loads, refuse, table_of, whole

ITEM_BYTES = {"U8": 1, "U32": 4}
"""The types that an archive needs."""

MAX_HEADER = 1 << 20
"""Most bytes of a header, its length included."""

_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor without its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """Name, type and shape as they are told to people."""
        shape = " x ".join(map(str, self.shape))
        return f"{self.name[:80]} of type {self.dtype}, {shape or 'one number'}"

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)


def header(tensors: Sequence[Tensor]) -> bytes:
    """Return what comes before the tensors' bytes, which follow one behind the other."""
    rows, end = {}, 0
    for tensor in tensors:
        begin, end = end, end + tensor.n_bytes
        rows[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    raw = json.dumps(rows, separators=(",", ":")).encode()
    # Readers map the file; the tensors' bytes begin at a multiple of 8.
    raw += b" " * (-len(raw) % 8)
    if _LENGTH + len(raw) > MAX_HEADER:
        raise StoreError(f"{len(tensors)} tensors need a header of more than {MAX_HEADER} bytes")
    return len(raw).to_bytes(_LENGTH, "little") + raw


def parse(raw: memoryview, what: str) -> dict[Tensor, memoryview]:
    """Return each tensor's bytes; raises StoreError for anything that is not plain safetensors."""
    length = int.from_bytes(raw[:_LENGTH], "little")
    if len(raw) < _LENGTH or length > min(len(raw), MAX_HEADER) - _LENGTH:
        refuse(what, f"a safetensors header within {len(raw)} bytes", length)
    rows = loads(raw[_LENGTH : _LENGTH + length], f"{what}: safetensors header")
    data = raw[_LENGTH + length :]
    if not isinstance(rows, dict):
        refuse(f"{what}: safetensors header", "an object", rows)
    places: list[tuple[int, int, Tensor]] = []
    for name, value in rows.items():
        where = f"{what}: tensor {name[:80]!r}"
        row = table_of(value, where, {"dtype", "shape", "data_offsets"})
        if row["dtype"] not in tuple(ITEM_BYTES):
            refuse(f"{where}: dtype", "U8 or U32", row["dtype"])
        shape = list_of(row["shape"], f"{where}: shape")
        offsets = list_of(row["data_offsets"], f"{where}: data_offsets")
        if len(shape) > 2 or len(offsets) != 2:
            fault(where, "up to 2 dimensions and 2 offsets", f"got {len(shape)}, {len(offsets)}")
        # A dimension is bounded by the bytes there are, so that products stay small.
        sizes = [whole(size, f"{where}: shape", 0, len(data)) for size in shape]
        begin, end = (whole(at, f"{where}: data_offsets", 0, len(data)) for at in offsets)
        tensor = Tensor(name, row["dtype"], tuple(sizes))
        if end - begin != tensor.n_bytes:
            refuse(f"{where}: data_offsets", f"{tensor.n_bytes} bytes", end - begin)
        places.append((begin, end, tensor))
    places.sort(key=lambda place: place[:2])
    views, reached = {}, 0
    for begin, end, tensor in places:
        if begin != reached:
            fault(f"{what}: tensor {tensor.name[:80]!r}", f"it at {reached}", f"it is at {begin}")
        views[tensor], reached = data[begin:end], end
    if reached != len(data):
        fault(what, f"{reached} bytes of tensors", f"there are {len(data)}")
    return views
