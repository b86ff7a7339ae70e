"""The text on which conversion fits the global projections.

`calibration.txt` is part of the package, so that the same parent gives the same model everywhere:
prose, questions and answers, tool schemas and calls, JSON, code, tables and a log. A line of five
equals signs parts one document from the next. ChatML markers in it become control tokens where the
tokenizer has them and plain text where not.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from tokenizers import Tokenizer

_MAX_TOKENS = 1024
_SEPARATOR = "\n=====\n"


def calibration_text() -> str:
    """Return the whole text."""
    file = resources.files("cedagent.upcycle") / "calibration.txt"
    return file.read_text(encoding="utf-8")


def calibration_digest() -> str:
    """Return the SHA-256 of the text as hex digits."""
    return hashlib.sha256(calibration_text().encode()).hexdigest()


def calibration_documents(tokenizer: Tokenizer, *, context: int) -> list[list[int]]:
    """Return the documents as token ids, each at most 1,024 and at most `context` tokens long."""
    documents = calibration_text().strip().split(_SEPARATOR)
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    return [list(document.ids[: min(_MAX_TOKENS, context)]) for document in encoded]
