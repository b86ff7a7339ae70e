"""Talk that needs no tool: questions, small talk, short texts, questions about what was pasted.

`talk.txt` holds questions with answers, written for this purpose; every fifth is held out, and so
is the last wording of every other. Knows no tools but their names. Invariant: no answer here calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.conversation import Turn
from cedagent.upcycle.data.documents import Document, few_rows
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import surface
from cedagent.upcycle.data.small_talk import (
    capital,
    framed,
    opposite,
    rewrite,
    short_text,
    simple_turn,
    some,
)

Talk = Callable[[Draw], Turn]


@lru_cache(maxsize=1)
def stored_talk() -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the wordings of each stored question, and its answer."""
    file = resources.files("cedagent.upcycle.data") / "talk.txt"
    blocks = file.read_text(encoding="utf-8").strip().split("\n=====\n")
    pairs = [block.split("\n", 1) for block in blocks]
    return tuple((tuple(asks.split("|")), answer.strip()) for asks, answer in pairs)


def talk_turn(draw: Draw, tools: Sequence[ToolSpec]) -> Turn:
    """Return a message that needs no tool, with its answer."""
    kinds: list[Talk] = [_stored, _stored, _stored, capital, some, opposite, short_text, rewrite]
    kinds += [_pasted, _pasted, lambda d: _tool_names(d, tools)]
    return draw.pick(kinds)(draw)


def _stored(draw: Draw) -> Turn:
    asks, answer = _pair(draw)
    wording = ask(draw.pick(asks), {}, draw=draw, around=0.15)
    assert wording is not None
    return simple_turn(wording.text(), answer)


def _pair(draw: Draw) -> tuple[tuple[str, ...], str]:
    pairs = stored_talk()
    i = draw.rng.randrange(len(pairs))
    asks, answer = pairs[i]
    # A fifth of the questions is held out whole, and of the others the last wording.
    if i in _heldout_questions():
        return (asks, answer) if draw.split == "heldout" else _pair(draw)
    if len(asks) == 1:
        return _pair(draw) if draw.split == "heldout" else (asks, answer)
    return (asks[-1:], answer) if draw.split == "heldout" else (asks[:-1], answer)


@lru_cache(maxsize=1)
def _heldout_questions() -> frozenset[int]:
    return frozenset(range(4, len(stored_talk()), 5))


def _pasted(draw: Draw) -> Turn:
    return pasted(draw, few_rows(draw, draw.whole(1, 6)))


def pasted(draw: Draw, document: Document) -> Turn:
    """Return a question about a document that the message itself brings."""
    wording = ask(draw.pick(document.asks(heldout=draw.split == "heldout")), document.target,
                  draw=draw, around=0)  # fmt: skip
    assert wording is not None
    frames = (
        ("Here is a note:\n@\n\n#", "@\n\n#", "#\n\n@", "Look at this text:\n\n@\n\n#")
        if draw.split == "train"
        else ("I copied this for you:\n@\n\n#", "# Use only this:\n@")
    )
    message = draw.pick(frames).replace("#", wording.text(), 1).replace("@", document.text, 1)
    return simple_turn(message, document.answer(draw), contains=(document.target["value"],))


def _tool_names(draw: Draw, tools: Sequence[ToolSpec]) -> Turn:
    names = [tool.name for tool in tools]
    if not names:
        return _stored(draw)
    message, _ = framed(
        draw,
        """
        ?which tools do you have
        ?what are the names of your tools
        !list your tools
        ?what tools can you call
        """,
        """
        ?which tools were you given
        !name the tools at your disposal
        """,
        {},
        "-",
    )
    answer = draw.pick(("I have @.", "My tools are @.", "I can call @.")) if len(names) > 1 else (
        draw.pick(("I have one tool: @.", "Only @.", "I can call @."))
    )  # fmt: skip
    return simple_turn(message, answer.replace("@", surface(names)), contains=tuple(names))
