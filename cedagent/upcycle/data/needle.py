"""Facts in long results: one call, a result of 500 to 3,000 tokens, a question about one row.

Knows documents and the tools that return them, and how the runtime cuts what is too long.
Invariants: the row that holds the answer stands at the depth that the scene says, and
the question does not say the answer.
"""

from __future__ import annotations

from typing import Final

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.builtin import MORE, READ_FILE
from cedagent.upcycle.data.conversation import Said, Split, Turn, contains
from cedagent.upcycle.data.documents import Count, Document, long_document
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.files import WHERE, where
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.scenes import Scene
from cedagent.upcycle.data.tools_documents import (
    FETCH_PAGE,
    PLACES,
    READ_LOG,
    SHOW_TABLE,
    place_values,
)

SHOWING: Final = (READ_FILE, READ_FILE, READ_FILE, FETCH_PAGE, READ_LOG, SHOW_TABLE)


def needle(draw: Draw, n_tokens: int, *, depth: float, count: Count) -> Scene:
    """Return a question whose answer stands at `depth` in a result of about `n_tokens` tokens."""
    while True:
        document = long_document(draw, n_tokens, depth=depth, count=count)
        scene = shown(draw, draw.pick(SHOWING), document)
        name, arguments = scene.turns[0].outputs[0].calls[0]
        if draw.allows(name, arguments) and not _tells(scene, document):
            return scene


def cut_needle(draw: Draw, n_tokens: int, *, count: Count) -> Scene:
    """Return a result that was cut where the answer stands, and the call that reads on."""
    while True:
        document = long_document(draw, n_tokens, depth=draw.rng.uniform(0.4, 0.6), count=count)
        scene = shown(draw, draw.pick((FETCH_PAGE, READ_LOG, SHOW_TABLE)), document)
        first, answer = scene.turns[0].outputs
        text = first.results[0]
        row = document.kind.line.format(**document.target)
        at = text.index(row)
        # As the runtime cuts: two thirds of what fits from the front, the rest from the end.
        head = text[: max(1, at - draw.whole(0, min(at - 1, 400)))]
        tail = text[-min(len(head) // 2, (len(text) - at - len(row)) // 2) :]
        missing = len(text) - len(head) - len(tail)
        how = f'; read on with more(result_id="r1", offset={len(head)})'
        seen = f"{head}\n[{missing} of {len(text)} characters left out{how}]\n{tail}"
        call = ("more", {"result_id": "r1", "offset": len(head)})
        is_allowed = all(draw.allows(*each) for each in (*first.calls, call))
        if is_allowed and not _tells(scene, document):
            break
    outputs = (
        Said(calls=first.calls, results=(seen,)),
        Said(calls=(call,), results=(text[len(head) :],)),
        answer,
    )
    return Scene((Turn(scene.turns[0].user, outputs),), (*scene.specs, MORE))


def _tells(scene: Scene, document: Document) -> bool:
    """Tell whether the question says the answer itself, as a file's name may by chance."""
    return contains(scene.turns[0].user, document.target["value"])


def shown(draw: Draw, spec: ToolSpec, document: Document) -> Scene:
    """Return a question about a document and the call that shows it."""
    if spec is READ_FILE:
        arguments = {"path": draw.path(document.kind.extension)}
        places = WHERE[draw.split]
    else:
        arguments = place_values(draw, spec.name)
        places = PLACES[spec.name][draw.split]
    heldout: Split = "heldout"
    template = draw.pick(document.asks(heldout=draw.split == heldout))
    wording = ask(where(template, draw.pick(places)), {**document.target, **arguments}, draw=draw)
    assert wording is not None
    outputs = (
        Said(calls=((spec.name, arguments),), results=(document.text,)),
        Said(text=document.answer(draw), contains=(document.target["value"],)),
    )
    return Scene((Turn(wording.text(), outputs),), (spec,), depth=document.depth)
