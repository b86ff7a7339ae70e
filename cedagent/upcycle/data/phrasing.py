"""A small grammar of wordings: one template gives many sentences.

`[a|b|]` is one of its alternatives; `{x}` the words for the value x; `<...>` is said only if all
values in it are there; `{x?}` and `{x=JSON?}` say nothing, but need x to be there (and to be that
value); `{x:JSON=words,JSON=words}` says its own words for a value. `{x.y}` goes into objects.
Knows nothing of tools. Invariant: noise changes the words around values, never a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

_SIGNS = re.compile(r"[\[\]|<>]|\{[^}]*\}|[^\[\]|<>{]+")
_SLOT = re.compile(r"\{([\w.]+)(?:(\?)|=([^?]*)\?|:([^}]*))?\}")
_AN = re.compile(r"\b([Aa]) $")

Piece = tuple[str, bool]
"""Text, and whether it is a value."""


@dataclass(frozen=True, slots=True)
class Wording:
    """A template, spelled out."""

    pieces: tuple[Piece, ...]
    used: frozenset[str]
    """Names of the values that were said (their first part, for those inside objects)."""

    def text(self) -> str:
        """Return it as text."""
        return tidy("".join(text for text, _ in self.pieces))


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    """text, slot, choice, group or all."""
    text: str = ""
    parts: tuple[_Node, ...] = ()


@dataclass(slots=True)
class _Speaker:
    values: Mapping[str, Any]
    rng: Random
    used: set[str] = field(default_factory=set)

    def say(self, node: _Node) -> list[Piece] | None:
        """Return the pieces, or None if a value is not there."""
        match node.kind:
            case "text":
                return [(node.text, False)]
            case "slot":
                return self._slot(node.text)
            case "choice":
                return self.say(self.rng.choice(node.parts))
            case "group":
                before = set(self.used)
                said = self._all(node)
                if said is None:
                    self.used = before
                return said or []
            case _:
                return self._all(node)

    def _all(self, node: _Node) -> list[Piece] | None:
        pieces: list[Piece] = []
        for part in node.parts:
            said = self.say(part)
            if said is None:
                return None
            if said and said[0][1] and pieces and said[0][0][:1] in tuple("aeiouAEIOU"):
                pieces[-1] = (_AN.sub(r"\1n ", pieces[-1][0]), pieces[-1][1])
            pieces += said
        return pieces

    def _slot(self, text: str) -> list[Piece] | None:
        match = _SLOT.fullmatch(text)
        assert match is not None, f"no slot: {text}"
        name, there, wanted, table = match.groups()
        value, found = _look_up(self.values, name)
        if not found or (wanted is not None and json.dumps(value) != _quoted(wanted)):
            return None
        if table is not None:
            words = dict(row.split("=", 1) for row in table.split(","))
            if str(surface(value)) not in words:
                return None
            self.used.add(name.split(".")[0])
            # Alternatives for one value.
            return [(self.rng.choice(words[surface(value)].split("/")), False)]
        if value is None and not there and wanted is None:
            # Nothing to say; a template that can say null has words of its own for it.
            return None
        self.used.add(name.split(".")[0])
        return [] if there or wanted is not None else [(surface(value), True)]


def expand(template: str, values: Mapping[str, Any], *, rng: Random) -> Wording | None:
    """Return the template in words; None if it needs a value that is not there."""
    speaker = _Speaker(values, rng)
    pieces = speaker.say(_parsed(template))
    return None if pieces is None else Wording(tuple(pieces), frozenset(speaker.used))


def capital(wording: Wording) -> Wording:
    """Return the wording with a capital, unless it begins with a value."""
    pieces = list(wording.pieces)
    first, is_value = pieces[0]
    if not is_value:
        pieces[0] = (first[:1].upper() + first[1:], False)
    return Wording(tuple(pieces), wording.used)


def lines(text: str) -> tuple[str, ...]:
    """Return the templates of a text, one per line."""
    return tuple(tidy(line) for line in text.splitlines() if line.strip())


def say(template: str, values: Mapping[str, Any], *, rng: Random) -> str:
    """Return the text of a template whose values are all there, without a capital of its own."""
    wording = expand(template, values, rng=rng)
    assert wording is not None, f"a value is missing: {template}"
    return wording.text()


def sentence(template: str, values: Mapping[str, Any], *, rng: Random) -> str:
    """Return the text of a template whose values are all there, with a capital."""
    wording = expand(template, values, rng=rng)
    assert wording is not None, f"a value is missing: {template}"
    return capital(wording).text()


def names_in(template: str) -> frozenset[str]:
    """Return the names of the values that a template can say."""
    return frozenset(match[1].split(".")[0] for match in _SLOT.finditer(template))


def surface(value: Any) -> str:
    """Return how people write a value: lists as words joined, the rest as JSON has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return joined([surface(item) for item in value])
    return json.dumps(value, ensure_ascii=False)


def joined(words: list[str], last: str = " and ") -> str:
    """Return words as a list that people write."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + last + words[-1]


def noisy(wording: Wording, *, rng: Random) -> Wording:
    """Return the wording with typos, without a capital or its last mark, as people type."""
    pieces = list(wording.pieces)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(pieces))
        text, is_value = pieces[at]
        if not is_value:
            pieces[at] = (_typo(text, rng=rng), False)
    first, is_value = pieces[0]
    if not is_value and rng.random() < 0.5:
        pieces[0] = (first[:1].lower() + first[1:], False)
    last, is_value = pieces[-1]
    if not is_value and rng.random() < 0.5:
        pieces[-1] = (last.rstrip(".?!"), False)
    return Wording(tuple(pieces), wording.used)


def tidy(text: str) -> str:
    """Return the text without the spaces that left-out groups leave."""
    text = re.sub(r"(?<=\S) {2,}(?=\S)", " ", text)
    return re.sub(r"(?<=\w) +(?=[.,?!:](\s|$))", "", text).strip()


def _typo(text: str, *, rng: Random) -> str:
    places = [m.start() for m in re.finditer(r"(?<=[a-z])[a-z](?=[a-z])", text)]
    if not places:
        return text
    i = rng.choice(places)
    kind = rng.randrange(3)
    if kind == 0:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return text[:i] + text[i + 1 :] if kind == 1 else text[:i] + text[i] + text[i:]


def _look_up(values: Mapping[str, Any], name: str) -> tuple[Any, bool]:
    found: Any = values
    for part in name.split("."):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list | tuple) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None, False
    return found, True


def _quoted(wanted: str) -> str:
    """Return what stands behind `=` as JSON: a bare word is a string."""
    try:
        return json.dumps(json.loads(wanted))
    except ValueError:
        return json.dumps(wanted)


@lru_cache(maxsize=20_000)
def _parsed(template: str) -> _Node:
    signs = _SIGNS.findall(template)
    assert "".join(signs) == template, f"a brace is open: {template}"
    node, rest = _sequence(signs, ends=())
    assert not rest, f"a bracket is open: {template}"
    return node


def _sequence(signs: list[str], *, ends: tuple[str, ...]) -> tuple[_Node, list[str]]:
    parts = []
    while signs and signs[0] not in ends:
        sign, *signs = signs
        if sign == "[":
            choices = []
            while True:
                one, signs = _sequence(signs, ends=("|", "]"))
                choices.append(one)
                sign, *signs = signs
                if sign == "]":
                    break
            parts.append(_Node("choice", parts=tuple(choices)))
        elif sign == "<":
            inner, signs = _sequence(signs, ends=(">",))
            signs = signs[1:]
            parts.append(_Node("group", parts=inner.parts))
        elif sign.startswith("{"):
            parts.append(_Node("slot", sign))
        else:
            parts.append(_Node("text", sign))
    return _Node("all", parts=tuple(parts)), signs
