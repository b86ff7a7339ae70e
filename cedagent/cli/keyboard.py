"""The keyboard while the chat is busy: keys are taken from the terminal as they come, not echoed.

A terminal that nobody reads holds 4 KB, and behind those not even Ctrl-C gets through. So a thread
reads, Ctrl-C stays a signal, and what was typed or pasted becomes the text of the next prompt. It
knows no chat; the terminal is as it was found when the keyboard is given back.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cedagent.cli.render import printable

PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_KEY_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
_CTRL_D, _CTRL_U, _ERASE = "\x04", "\x15", "\x08\x7f"
_POLL_S = 0.1
_QUIET_S = 0.05
"""A paste is over when nothing came for this long ..."""
_PASTE_S = 2.0
"""... or, where the terminal marks its ends, when the mark came, or after this long without it."""


class Keyboard:
    """Holds a terminal's input; `hold` makes one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.RLock()
        self._came = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._wake: tuple[int, int] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._raw = ""
        """Keys since the last prompt, as the terminal sends them."""
        self._asked_at: int | None = None
        """Where in `_raw` the answer to a question begins."""

    @classmethod
    @contextmanager
    def hold(cls, fd: int = 0) -> Iterator[Keyboard]:
        """Take the keys of a terminal until the block ends, then give it back as it was."""
        before = termios.tcgetattr(fd)
        busy = termios.tcgetattr(fd)
        busy[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        busy[3] |= termios.ISIG
        # A read never waits: Ctrl-C may empty the queue after it was seen to hold something.
        busy[6][termios.VMIN], busy[6][termios.VTIME] = 0, 0
        keyboard = cls(fd)
        try:
            # At once and without emptying the queue: what was typed before now is kept, too.
            termios.tcsetattr(fd, termios.TCSANOW, busy)
            keyboard._start()
            yield keyboard
        finally:
            keyboard._stop()
            _mark_pastes(False)
            # The terminal itself may have gone.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(fd, termios.TCSADRAIN, before)

    @contextmanager
    def given_away(self) -> Iterator[str]:
        """Let a line editor read the keys; yields what was typed ahead, to be edited.

        Raises EOFError when that is Ctrl-D alone.
        """
        try:
            self._stop()
            self._settle()
            raw, self._raw = self._raw, ""
            if _CTRL_D in raw and not edited(raw):
                raise EOFError
            yield edited(raw)
        finally:
            self._start()

    def feed(self, keys: str) -> None:
        """Add keys that somebody else has read."""
        with self._lock:
            self._raw += keys
            self._came.notify_all()

    def discard(self) -> None:
        """Forget what was typed ahead; may be called in a signal handler."""
        with self._lock:
            self._raw = ""
            self._decoder.reset()
            if self._asked_at is not None:
                self._asked_at = 0

    def ask(self, question: str, is_stopped: Callable[[], bool]) -> str | None:
        """Ask, and return a line that is typed from now on, with echo; None once `is_stopped`.

        What was typed or pasted before is no answer, and no paste is: they stay typed ahead.
        """
        with self._lock:
            self._asked_at, shown = len(self._raw), ""
            _show(question)
            try:
                while not is_stopped():
                    if not _is_in_paste(self._raw):
                        end = self._raw.rfind(PASTE_ENDS) + len(PASTE_ENDS)
                        if end > self._asked_at and PASTE_ENDS in self._raw:
                            self._asked_at = end
                        rest = self._raw[self._asked_at :].replace("\r", "\n")
                        line, has_ended, _ = rest.partition("\n")
                        shown = _echo(edited(line), shown)
                        if has_ended:
                            stop = self._asked_at + len(line) + 1
                            self._raw = self._raw[: self._asked_at] + self._raw[stop:]
                            _show("\n")
                            return edited(line)
                    self._came.wait(_POLL_S)
            finally:
                self._asked_at = None
        return None

    def _start(self) -> None:
        if self._thread is None:
            _mark_pastes(True)
            self._wake = os.pipe()
            self._thread = threading.Thread(
                target=self._read_keys, args=(self._wake[0],), name="cedagent-keyboard", daemon=True
            )
            self._thread.start()

    def _stop(self) -> None:
        if self._thread is not None and self._wake is not None:
            thread, (receiver, sender) = self._thread, self._wake
            self._thread = self._wake = None
            os.close(sender)
            thread.join()
            os.close(receiver)

    def _read_keys(self, woken: int) -> None:
        while True:
            ready = select.select([self._fd, woken], [], [])[0]
            if woken in ready:
                return
            if not self._read_once():
                # Emptied by Ctrl-C, or hung up: a signal comes, and this must not spin until then.
                time.sleep(_QUIET_S)

    def _read_once(self) -> bool:
        with self._lock:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            self.feed(self._decoder.decode(data))
            return bool(data)

    def _settle(self) -> None:
        """Read what is still on its way, so that a paste is not cut in two by a prompt."""
        patience = 0.0
        while select.select([self._fd], [], [], patience)[0] and self._read_once():
            patience = _PASTE_S if _is_in_paste(self._raw) else _QUIET_S


def edited(raw: str) -> str:
    """Return the text that keys make: erasing keys erase, other keys that are no text vanish."""
    raw = raw.replace("\r\n", "\n").replace("\r", "\n")
    text: list[str] = []
    for key in _KEY_SEQUENCE.sub("", raw):
        if key in _ERASE:
            del text[-1:]
        elif key == _CTRL_U:
            while text and text[-1] != "\n":
                text.pop()
        else:
            text.append(key)
    return printable("".join(text)).rstrip("\n")


def _is_in_paste(raw: str) -> bool:
    return raw.rfind(PASTE_BEGINS) > raw.rfind(PASTE_ENDS)


def _echo(text: str, shown: str) -> str:
    """Show what has changed of an answer being typed; return what is shown now."""
    if text.startswith(shown):
        _show(text[len(shown) :])
    else:
        _show("\b \b" * len(shown) + text)
    return text


def _mark_pastes(wanted: bool) -> None:
    """Let the terminal mark where a paste begins and ends, or no longer."""
    if os.environ.get("TERM", "dumb") != "dumb":
        _show(f"\x1b[?2004{'h' if wanted else 'l'}")


def _show(text: str) -> None:
    # The terminal may have gone; what is to be done about that is not the keyboard's business.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
