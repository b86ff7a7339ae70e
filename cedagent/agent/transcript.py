"""A conversation as token ids: what was appended, what was written, and what may come next.

Knows the chat format and the log file; no engine, no tools. Invariant: ids are only ever added at
the end, and an entry is in the file before it counts here. An append is one entry with its prefill
end; an output is one entry, written when it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cedagent.agent.entries import choices_of, foreign_id, problem_of
from cedagent.agent.log import Entry, LogFile
from cedagent.chat.output import Call, Output
from cedagent.chat.template import ChatFormat
from cedagent.errors import SessionError
from cedagent.events import one_line

Ending = Literal["end", "limit", "context", "cancelled"]
_NOT_RUN = "Error: not run: the user went on before it was"
_INTERRUPTED = "Error: interrupted before it was run"


@dataclass(frozen=True, slots=True)
class Part:
    """One entry with the token positions it covers."""

    entry: Entry
    start: int
    end: int


class Transcript:
    """The ids of one session and the state that follows from them."""

    def __init__(self, head: Entry, *, fmt: ChatFormat, log: LogFile | None) -> None:
        self.head = head
        self.ids: list[int] = list(head["ids"])
        """All ids so far; never changed, only extended."""
        self.parts: list[Part] = []
        self.open: list[int] | None = None
        """Ids of the model's turn that is not closed yet, or None when it is."""
        self.choice = "auto"
        """The tool choice under which the open turn is written."""
        self.unanswered: tuple[Call, ...] = ()
        """Calls of the last output that have no results yet."""
        self.n_results = 0
        self.model_digest: str = head["model_digest"]
        """The model that wrote last."""
        self.format = fmt
        self._log = log
        self._written = False

    @classmethod
    def load(
        cls,
        entries: Sequence[Entry],
        *,
        fmt: ChatFormat,
        log: LogFile | None,
        vocab_size: int | None,
    ) -> Transcript:
        """Rebuild from entries; raises SessionError where they do not fit together.

        The head is to be checked before. Ids are checked against `vocab_size`, None trusts them.
        """
        transcript = cls(entries[0], fmt=fmt, log=log)
        choices = choices_of(entries[0])
        for number, entry in enumerate(entries, 1):
            problem = None
            if number > 1:
                n_before = len(transcript.ids)
                problem = problem_of(entry, n_before=n_before, choices=choices)
            if problem is None and vocab_size is not None:
                problem = foreign_id(entry["ids"], vocab_size=vocab_size)
            if problem is not None:
                raise SessionError(
                    f"session {transcript.head['name']}: entry {number}: {one_line(problem)}; "
                    "restore the log from a copy or begin another session"
                )
            if number > 1:
                transcript._take(entry)
        transcript._written = True
        return transcript

    @property
    def pending(self) -> bool:
        """True when the last append has no output yet: it is to be prefilled and answered."""
        return bool(self._spoken) and self._spoken[-1].entry["kind"] == "append"

    @property
    def _spoken(self) -> list[Part]:
        return [part for part in self.parts if part.entry["kind"] != "model"]

    @property
    def unfinished(self) -> Literal["append", "calls", "output"] | None:
        """What a run without a message would go on with."""
        if self.unanswered:
            return "calls"
        if self.pending:
            return "append"
        return "output" if self.open is not None else None

    @property
    def turn_starts(self) -> list[int]:
        """Indices into `parts` of the user turns."""
        return [i for i, p in enumerate(self.parts) if p.entry.get("role") == "user"]

    def known_before_append(self) -> int:
        """Return how many ids a prefill of the pending append starts from, as it did live."""
        if not self.pending:
            return len(self.ids) if self._spoken else 0
        return self._spoken[-1].start if len(self._spoken) > 1 else 0

    def user_ids(self, text: str) -> list[int]:
        """Return the ids that a user turn appends, closing first what is still open."""
        ids: list[int] = []
        calls = self.unanswered
        if self.open is not None:
            ids += self.format.closing(self.open)
            calls = runnable(self.parse(self.open))
        if calls:
            ids += self.format.results([_NOT_RUN] * len(calls)) + self.format.closing([])
        return ids + self.format.user(text)

    def append(self, ids: Sequence[int], *, role: str, choice: str = "auto", **more: Any) -> None:
        """Append ids (perhaps none) that the model is to answer; durable when this returns."""
        end = len(self.ids) + len(ids)
        entry: Entry = {"kind": "append", "role": role, "at": len(self.ids), "ids": list(ids)}
        self._write([entry | {"prefill_end": end, "choice": choice} | more])

    def output(self, ids: Sequence[int], *, ending: Ending) -> None:
        """End an output: what was written, and the ids that close it unless it may go on."""
        self._write([self._output_entry(ids, ending=ending)])

    def answer_and_close(self, texts: Sequence[str], **more: Any) -> None:
        """Append the results of interrupted calls and close the turn without another output."""
        ids = self.format.results(texts)
        end = len(self.ids) + len(ids)
        first = {"kind": "append", "role": "results", "at": len(self.ids), "ids": ids}
        first |= {"prefill_end": end, "choice": "auto"} | more
        closing = self.format.closing([])
        last = {"kind": "output", "at": end, "ids": closing, "n": 0, "ending": "cancelled"}
        self._write([first, last])

    def switch_model(self, digest: str) -> None:
        """Note that another model goes on from here."""
        self._write([{"kind": "model", "at": len(self.ids), "ids": [], "digest": digest}])

    def parse(self, ids: Sequence[int]) -> Output:
        """Read output ids as text and calls."""
        parser = self.format.parser()
        for token in ids:
            parser.push(token)
        return parser.finish()

    def _output_entry(self, ids: Sequence[int], *, ending: Ending) -> Entry:
        written = [*(self.open or ()), *ids]
        closing: list[int] = []
        if ending == "end":
            closing = self.format.closing(written)
        elif ending == "cancelled":
            closing = self.format.closing(written)
            calls = runnable(self.parse(written))
            if calls:
                closing += self.format.results([_INTERRUPTED] * len(calls))
                closing += self.format.closing([])
        entry: Entry = {"kind": "output", "at": len(self.ids), "ids": [*ids, *closing]}
        # The text is for people who read the log; only the ids count.
        parsed = self.parse(written)
        spoken = {"text": parsed.text, "calls": [call.raw for call in parsed.calls]}
        return entry | {"n": len(ids), "ending": ending} | spoken

    def _write(self, entries: list[Entry]) -> None:
        if self._log is not None:
            self._log.append(entries if self._written else [self.head, *entries])
        self._written = True
        for entry in entries:
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        ids, kind = entry["ids"], entry["kind"]
        start = len(self.ids)
        self.ids.extend(ids)
        self.parts.append(Part(entry, start, len(self.ids)))
        if kind == "append":
            # An append of zero tokens goes on with the open turn; any other opens a new one.
            self.open = [] if ids or self.open is None else self.open
            self.choice = entry["choice"]
            self.unanswered = ()
            self.n_results += entry.get("n_results") or 0
        elif kind == "output":
            written = [*(self.open or ()), *ids[: entry["n"]]]
            closed = entry["ending"] in ("end", "cancelled")
            self.open = None if closed else written
            self.unanswered = self.parse(written).calls if entry["ending"] == "end" else ()
        else:
            self.model_digest = entry["digest"]


def runnable(output: Output) -> tuple[Call, ...]:
    """Return the complete calls of an output."""
    return tuple(call for call in output.calls if call.error is None)
