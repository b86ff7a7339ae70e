"""A parent's logits of the evaluation texts, kept on disk so that the next student is quick.

What is kept is the normed last hidden state of each position and, once per parent, the head: for
the default model 576 numbers a position in place of 49,152. Knows files and one matrix product.
Invariant: what is found was made from this parent and this text; a damaged file is a miss, and a
folder that cannot be written costs only time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cedagent.errors import UsageError
from cedagent.upcycle.evaluation.parent import ParentSource, head_of, last_rows
from cedagent.upcycle.evaluation.texts import text_digest
from cedagent.upcycle.source import Parent, Progress, silent

_VERSION = "1"
"""Raised when the parent's forward changes in its values."""


class ParentRows:
    """Logits of a parent at every position of some texts."""

    def __init__(self, head: Tensor, rows: Sequence[Tensor]) -> None:
        """Take head [V, D] and one [T, D] per text."""
        self._head = head
        self._rows = list(rows)

    def logits(self, text: int, start: int, stop: int) -> Tensor:
        """Return logits [stop - start, V] float32 that follow these positions of a text."""
        with torch.inference_mode():
            return self._rows[text][start:stop] @ self._head.t()


def parent_rows(
    source: ParentSource,
    texts: Sequence[Sequence[int]],
    *,
    folder: Path,
    progress: Progress = silent,
) -> ParentRows:
    """Return the parent's rows of all texts, from `folder` where they are there.

    Raises UsageError when the parent must be run and cannot be read, or lacks an id of the texts.
    """
    head_place, *places = _places(source, texts, folder)
    head, rows = _load(head_place), [_load(place) for place in places]
    missing = [i for i, found in enumerate(rows) if found is None]
    if head is not None and not missing:
        return ParentRows(head, [found for found in rows if found is not None])
    parent = source.read()
    _check_ids(parent, texts)
    head = head_of(parent)
    _save(head_place, head)
    total, done = sum(len(texts[i]) for i in missing), 0

    def advanced(n_tokens: int) -> None:
        progress("parent in float32", done + n_tokens, total)

    for i in missing:
        made = last_rows(parent, texts[i], advanced=advanced)
        done += len(texts[i])
        rows[i] = made
        _save(places[i], made)
    return ParentRows(head, [found for found in rows if found is not None])


def missing_tokens(source: ParentSource, texts: Sequence[Sequence[int]], *, folder: Path) -> int:
    """Return how many tokens the parent would have to be run over; reads no file."""
    places = _places(source, texts, folder)[1:]
    return sum(len(text) for text, place in zip(texts, places, strict=True) if not place.is_file())


def _places(source: ParentSource, texts: Sequence[Sequence[int]], folder: Path) -> list[Path]:
    """Return the file of the head and those of the texts."""
    home = folder / f"{source.key[:32]}-{_VERSION}"
    return [home / f"{name}.safetensors" for name in ("head", *map(text_digest, texts))]


def _load(place: Path) -> Tensor | None:
    try:
        return load_file(place)["values"]
    except (OSError, SafetensorError, KeyError):
        return None


def _save(place: Path, values: Tensor) -> None:
    # A cache: whatever keeps it from being written, the values are in memory.
    with suppress(OSError, SafetensorError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f".{secrets.token_hex(4)}")
        try:
            save_file({"values": values.clone()}, temporary)
            os.replace(temporary, place)
        finally:
            temporary.unlink(missing_ok=True)


def _check_ids(parent: Parent, texts: Sequence[Sequence[int]]) -> None:
    largest = max(max(text) for text in texts)
    if largest >= parent.config.vocab_size:
        raise UsageError(
            f"the parent has {parent.config.vocab_size} tokens, the student's texts have token "
            f"{largest}: expected the checkpoint that the student was made from"
        )
