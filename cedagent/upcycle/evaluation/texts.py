"""The held-out texts on which a student is compared with its parent.

Stretches of equal length, cut from examples that training never sees, laid end to end where one is
too short. Knows token ids alone. Invariant: the same examples give the same texts, and a digest
says whether two machines had the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cedagent.errors import UsageError
from cedagent.upcycle.data import Example


def cut_texts(examples: Iterable[Example], *, n: int, length: int) -> list[list[int]]:
    """Return `n` texts of `length` ids, or as many as the examples fill.

    Raises UsageError when they fill not even one.
    """
    texts: list[list[int]] = []
    text: list[int] = []
    for example in examples:
        # What is left of an example that fills a text is dropped: no text begins in mid-sentence.
        text += example.ids[: length - len(text)]
        if len(text) == length:
            texts.append(text)
            text = []
            if len(texts) == n:
                break
    if not texts:
        raise UsageError(f"expected held-out text of at least {length:,} tokens, got {len(text):,}")
    return texts


def text_digest(ids: Sequence[int]) -> str:
    """Return the SHA-256 of ids, as hex digits."""
    return hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()
