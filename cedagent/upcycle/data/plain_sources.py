"""Finds text that is on any machine with Python: documentation and sources of what is installed.

Knows files, no tokens. Invariants: the list of sources is sorted, so it is the same in every \
    process
of one installation; a source is on one side of the split, by a hash of its path alone; licences,
tests and copies that packages carry of each other are left out.
"""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

Kind = Literal["prose", "code", "data"]

_KINDS: Final[dict[str, Kind]] = {
    ".py": "code", ".pyi": "code", ".h": "code", ".c": "code", ".cpp": "code",
    ".md": "prose", ".rst": "prose", ".txt": "prose", "METADATA": "prose",
    ".json": "data", ".yaml": "data", ".yml": "data", ".csv": "data", ".toml": "data",
    ".cfg": "data", ".ini": "data",
}  # fmt: skip
_LEFT_OUT: Final = frozenset(
    ["__pycache__", "_vendor", "vendor", "vendored", "test", "tests", "testing", "licenses",
     "site-packages", "dist-packages", "cedagent", "ced_kernels", "ced_kvstore"]
)  # fmt: skip
_LEGAL: Final = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS", "top_level", "SOURCES")
_LEAST_BYTES: Final = 1_500
_MOST_BYTES: Final = 2_000_000
_HELDOUT_EVERY: Final = 16
_GENERATED: Final = 1_000
# Texts in triple quotes that begin a line: a parser takes ten times as long to find hardly more.
_DOCSTRING: Final = re.compile(r'^[ \t]*[rR]?"""(.+?)"""', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or one topic of Python's own help."""

    kind: Kind
    name: str
    """Path relative to where it was found; decides the split."""
    package: str
    path: Path | None
    n_bytes: int
    part: Literal["all", "docstrings", "topic"] = "all"

    @property
    def is_heldout(self) -> bool:
        """Whether it is never trained on."""
        return zlib.crc32(self.name.encode()) % _HELDOUT_EVERY == 0

    @property
    def folder(self) -> str:
        """Path of the folder that it lies in."""
        return self.name.rpartition("/")[0]

    def text(self) -> str:
        """Return the text; empty if it cannot be read as UTF-8."""
        if self.part == "topic":
            return _topics()[self.name.removeprefix("topics/")]
        assert self.path is not None
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
        if self.part == "docstrings":
            return _docstrings(text)
        # The head of a package's metadata is a list of fields; below it stands its readme.
        return text.partition("\n\n")[2] if self.path.name == "METADATA" else text


@lru_cache(maxsize=1)
def sources() -> tuple[Source, ...]:
    """Return all sources of this installation, sorted by name."""
    paths = sysconfig.get_paths()
    roots = sorted({paths["stdlib"], paths["purelib"], paths["platlib"]})
    found: dict[tuple[str, int], Source] = {}
    for root in roots:
        for path, n_bytes in _files(Path(root)):
            name = path.relative_to(root).as_posix()
            kind = _KINDS.get(path.name) or _KINDS.get(path.suffix)
            package = name.split("/")[0].split("-")[0].removesuffix(".py")
            if kind is None or path.name.startswith(_LEGAL) or package in _LEFT_OUT:
                continue
            # Same name and size: a copy.
            found.setdefault((path.name, n_bytes), Source(kind, name, package, path, n_bytes))
    topics = [
        Source("prose", f"topics/{name}", "topics", None, len(text), "topic")
        for name, text in sorted(_topics().items())
    ]
    docs = [
        Source("prose", source.name, source.package, source.path, source.n_bytes, "docstrings")
        for source in found.values()
        if source.name.endswith(".py") and source.n_bytes > 8 * _LEAST_BYTES
    ]
    return tuple(sorted([*found.values(), *topics, *docs], key=lambda s: (s.name, s.part)))


def heldout_sources() -> list[Source]:
    """Return the sources that are never trained on, less those whose text is trained on elsewhere.

    The topics of Python's help stand in one of its modules, too; and where a folder has a thousand
    files, a program wrote them, much the same text in each.
    """
    per_folder = Counter(source.folder for source in sources())
    return [
        source
        for source in sources()
        if source.is_heldout and source.part != "topic" and per_folder[source.folder] < _GENERATED
    ]


def _files(root: Path) -> Iterator[tuple[Path, int]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(names):
            if name in _KINDS or os.path.splitext(name)[1] in _KINDS:
                path = Path(folder) / name
                n_bytes = path.stat().st_size
                if _LEAST_BYTES <= n_bytes <= _MOST_BYTES:
                    yield path, n_bytes


@lru_cache(maxsize=1)
def _topics() -> dict[str, str]:
    # What `help()` shows; every Python has it.
    from pydoc_data.topics import topics

    return {name: text for name, text in topics.items() if len(text) >= _LEAST_BYTES}


def _docstrings(code: str) -> str:
    """Return the documentation inside a module."""
    found = (inspect.cleandoc(match[1]) for match in _DOCSTRING.finditer(code))
    return "\n\n".join(text for text in found if len(text) > 80)
