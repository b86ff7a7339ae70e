"""The built-in tools: calculator, now, list_files, read_file, search_files. They change nothing.

The file tools see one folder and nothing outside it: links are followed first and judged after,
`..` is refused. Results are bounded here, so none of them needs paging.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import itertools
import os
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

from cedagent.agent.calculator import ArithmeticProblem, evaluate
from cedagent.agent.tools import Context, Tool, ToolError, tool

_MAX_ENTRIES = 200
_MAX_LINES = 400
_MAX_MATCHES = 50
_MAX_LINE_CHARS = 500
_MAX_SEARCHED_BYTES = 2_000_000


def builtin_tools(root: Path | None = None) -> tuple[Tool, ...]:
    """Return the built-in tools; the file tools see `root`, by default the working directory."""
    files = _Folder(root)
    return (
        calculator,
        now,
        tool(paged=False, timeout=30)(files.list_files),
        tool(paged=False, timeout=30)(files.read_file),
        tool(paged=False, timeout=60)(files.search_files),
    )


@tool(paged=False, examples=[("What is 5% of 80?", {"expression": "5% of 80"})])
def calculator(expression: str) -> str:
    """Calculate a formula."""
    # Few words on purpose: of five wordings tried on eight sums with the untrained default model,
    # this one got 7 sentences that repeat the result, the others 3 to 5.
    try:
        return evaluate(expression)
    except ArithmeticProblem as problem:
        raise ToolError(str(problem)) from None


@tool(paged=False)
def now(timezone: str | None = None) -> str:
    """Tell the current date, weekday and time.

    Args:
        timezone: A name such as Europe/Rome; the local time if left out.
    """
    try:
        zone = zoneinfo.ZoneInfo(timezone) if timezone else None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(
            f"unknown time zone {timezone!r}; expected a name such as Europe/Rome"
        ) from None
    moment = datetime.datetime.now(zone).astimezone(zone)
    return f"{moment:%A} {moment.isoformat(sep=' ', timespec='seconds')}"


class _Folder:
    """File tools that see one folder."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def list_files(self, folder: str = ".", pattern: str = "*") -> str:
        """List the files of a folder, subfolders with a slash at the end.

        Args:
            folder: The folder, relative to the working directory.
            pattern: Which names, for example *.py.
        """
        path = self._inside(folder)
        if not path.is_dir():
            raise ToolError(f"{folder} is no folder; read_file reads a file")
        with _one_line(folder):
            names = sorted(e.name + "/" * e.is_dir() for e in os.scandir(path))
        found = [name for name in names if fnmatch.fnmatchcase(name.rstrip("/"), pattern)]
        lines = found[:_MAX_ENTRIES]
        if len(found) > len(lines):
            lines.append(f"[{len(found) - len(lines)} more; narrow the pattern]")
        return "\n".join(lines) or f"[no file in {folder} is called {pattern}]"

    def read_file(self, path: str, first_line: int = 1, lines: int = 200) -> str:
        """Read lines of a text file.

        Args:
            path: The file, relative to the working directory.
            first_line: The line to start at.
            lines: How many lines, at most 400.
        """
        if first_line < 1 or lines < 1:
            raise ToolError("expected first_line and lines of at least 1")
        n = min(lines, _MAX_LINES)
        with _one_line(path), self._file(path).open("rb") as file:
            if b"\0" in file.read(8_192):
                raise ToolError(f"{path} is no text file")
            file.seek(0)
            wanted = list(itertools.islice(_lines(file), first_line - 1, first_line + n))
        if not wanted:
            raise ToolError(f"{path} has no line {first_line}")
        text = "\n".join(wanted[:n])
        if len(wanted) > n:
            text += f"\n[more from line {first_line + n}]"
        return text

    def search_files(self, ctx: Context, text: str, folder: str = ".", pattern: str = "*") -> str:
        """Find a text in the files below a folder, ignoring case.

        Args:
            text: What to find, literally.
            folder: Where, relative to the working directory.
            pattern: Which file names, for example *.py.
        """
        start = self._inside(folder)
        root = self._top()
        wanted = text.casefold()
        if not wanted:
            raise ToolError("expected a text to find, got nothing")
        found: list[str] = []
        for path in _walk(start, pattern):
            if ctx.cancelled:
                break
            try:
                inside = path.resolve(strict=True)
                is_ours = inside.is_relative_to(root) and inside.is_file()
                if not is_ours or inside.stat().st_size > _MAX_SEARCHED_BYTES:
                    continue
                data = inside.read_bytes()
            # Gone or unreadable in the meantime: not a file to search.
            except OSError:
                continue
            if b"\0" in data[:8_192]:
                continue
            name = path.relative_to(root)
            for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
                if wanted in line.casefold():
                    found.append(f"{name}:{number}: {line.strip()[:_MAX_LINE_CHARS]}")
                    if len(found) >= _MAX_MATCHES:
                        return "\n".join([*found, "[more; narrow the search]"])
        return "\n".join(found) or f"[{text!r} does not occur]"

    def _top(self) -> Path:
        return (self._root or Path.cwd()).resolve()

    def _inside(self, name: str) -> Path:
        """Return the real path of a name below the root; raises ToolError."""
        root = self._top()
        if ".." in Path(name).parts:
            raise ToolError(f"{name}: '..' is not allowed; expected a path below the folder")
        try:
            path = (root / name).resolve()
        except (OSError, ValueError, RuntimeError):
            raise ToolError(f"{name!r} is no path") from None
        if not path.is_relative_to(root):
            raise ToolError(f"{name} is outside the working directory")
        if not path.exists():
            raise ToolError(f"there is no {name}; list_files shows what there is")
        return path

    def _file(self, name: str) -> Path:
        path = self._inside(name)
        # A pipe or a device could be read for ever.
        if not path.is_file():
            raise ToolError(f"{name} is no file; list_files lists a folder")
        return path


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn an OSError into a ToolError that names the path as the model wrote it."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{name}: {error.strerror}") from None


def _lines(file: Iterator[bytes]) -> Iterator[str]:
    for line in file:
        text = line.decode(errors="replace").rstrip("\r\n")
        cut = len(text) - 4 * _MAX_LINE_CHARS
        yield f"{text[: 4 * _MAX_LINE_CHARS]} [{cut} characters left out]" if cut > 0 else text


def _walk(start: Path, pattern: str) -> Iterator[Path]:
    """Yield files below `start` in a fixed order, without hidden folders and linked ones."""
    if start.is_file():
        yield start
        return
    for folder, folders, files in os.walk(start):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if fnmatch.fnmatchcase(name, pattern):
                yield Path(folder) / name
