"""The last words of a command: one line on stderr, and streams that may be closed, full or gone.

It knows exit codes and file descriptors, no command. Nothing here fails for want of a stream.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import click

_WRONG_NAME = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
_ADVICE = {
    errno.EACCES: "change its permissions or name another",
    errno.EPERM: "change its permissions or name another",
    errno.EROFS: "name one on another disk",
    errno.ENOSPC: "make room and try again",
    errno.EDQUOT: "make room and try again",
}


def complain(message: str, *, exit_code: int = 2, where: click.Context | None = None) -> int:
    """Write one line to stderr and return the exit code; `where` adds a pointer to its help."""
    line = " ".join(message.split())
    if where is not None:
        line += f" (see: {where.command_path} --help)"
    # The exit code says it, too.
    with contextlib.suppress(OSError):
        click.echo(f"cedagent: {line}", err=True)
    return exit_code


def complain_of_file(error: OSError) -> int:
    """Say which file failed and why; return 2 for a name that means nothing, else 5."""
    if error.filename is None:
        # What has no name is the stream that was written to; its rest must not fail again at exit.
        reader_gone()
    place = "standard output" if error.filename is None else os.fsdecode(error.filename)
    is_name = error.errno in (*_WRONG_NAME, errno.EACCES, errno.EPERM)
    advice = _ADVICE.get(error.errno or 0, "name another" if is_name else "")
    reason = error.strerror or str(error)
    return complain(
        f"{place}: {reason}" + (f"; {advice}" if advice else ""), exit_code=2 if is_name else 5
    )


def reader_gone() -> int:
    """Send what is still unwritten nowhere: nobody reads it any more; return 0."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # Not even a descriptor in a program that calls this with streams of its own.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0


def open_standard_streams() -> bool:
    """Put /dev/null where stdin, stdout or stderr is closed; return whether stdout was open.

    A file that is opened later must not take the number of a stream that others write to.
    """
    was_open = sys.stdout is not None
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number, and that is this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    return was_open
