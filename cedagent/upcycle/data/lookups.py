"""Many questions about one document: shown by a tool once, or pasted, and then asked about.

A long result is dear to read and a question about it cheap, so one text teaches many look-ups.
Knows documents and the tools that show them. Invariant: only the first question calls.
"""

from __future__ import annotations

from itertools import pairwise

from cedagent.upcycle.data.conversation import Said, Turn
from cedagent.upcycle.data.documents import Count, Document, questioned
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.needle import SHOWING, shown
from cedagent.upcycle.data.phrasing import surface
from cedagent.upcycle.data.scenes import AGAIN, Scene
from cedagent.upcycle.data.talk import pasted

_LEAST_TOKENS, _TIMES = 100, 12
_QUESTIONS = (8, 20)
_SHARE_PASTED = 0.4
_SHARE_SHORT = 0.5


def lookups(draw: Draw, *, count: Count) -> Scene:
    """Return questions about a text of 100 to 1,200 tokens, each answered from it."""
    while True:
        n_tokens = round(_LEAST_TOKENS * _TIMES ** draw.rng.random())
        documents = questioned(draw, n_tokens, draw.whole(*_QUESTIONS), count=count)
        if draw.chance(_SHARE_PASTED):
            scene = Scene((pasted(draw, documents[0]),))
            break
        scene = shown(draw, draw.pick(SHOWING), documents[0])
        if draw.allows(*scene.turns[0].outputs[0].calls[0]):
            break
    more = (_question(draw, document, before) for before, document in pairwise(documents))
    return Scene((*scene.turns, *more), scene.specs)


def _question(draw: Draw, document: Document, before: Document) -> Turn:
    """Return the next question, in short where only the name is another."""
    values = document.target
    if values["want"] == before.target["want"] and draw.chance(_SHARE_SHORT):
        name = " ".join(surface(values[part]) for part in document.kind.key)
        wording = ask(draw.pick(AGAIN[draw.split]), {"x": name}, draw=draw, around=0, noise=0.05)
    else:
        template = draw.pick(document.asks(heldout=draw.split == "heldout"))
        wording = ask(template, values, draw=draw, around=0.05, noise=0.1)
    assert wording is not None
    return Turn(wording.text(), (Said(text=document.answer(draw), contains=(values["value"],)),))
