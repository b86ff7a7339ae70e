"""What was typed at the prompt, kept in a private file; without one where it cannot be written.

It knows the line editor's history alone. Trouble with the file is one notice, never an exception in
the middle of a chat.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory


class PromptHistory(FileHistory):
    """A file of lines; `notice` says once that it could not be read or written."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self.notice: str | None = None
        self._has_failed = False

    def load_history_strings(self) -> Iterable[str]:
        """Return the lines of the file, newest first; none if it cannot be read."""
        try:
            return list(super().load_history_strings())
        except OSError as error:
            self._fail(error)
            return []

    def store_string(self, string: str) -> None:
        """Add a line to the file, as long as that works."""
        if self._has_failed:
            return
        try:
            super().store_string(string)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._has_failed, self.notice = True, trouble(self._path, error)


def open_history(path: Path) -> tuple[History, str | None]:
    """Return the history in a file and None, or one in memory alone and a line that says why."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What was typed is as private as the sessions are; the library would use the umask.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600))
    except OSError as error:
        return InMemoryHistory(), trouble(path, error)
    return PromptHistory(path), None


def trouble(path: Path, error: OSError) -> str:
    """Return one line about a history that cannot be kept."""
    return f"no history is kept: {path}: {error.strerror or error}"
