"""Parameters that made-up tools are put together from: schema, values, and how people say them.

Knows no tools. Convention: in a phrase `{x}` is the parameter, whatever it is called; an optional
parameter that a message does not mention is left out of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.schemas import (
    Schema,
    day,
    flag,
    list_of,
    maybe,
    one_of,
    real,
    record,
    text,
    whole,
)


@dataclass(frozen=True, slots=True)
class Field:
    """One kind of parameter."""

    names: str
    """What it may be called, separated by spaces."""
    about: str
    """What its description may say, separated by `|`; nothing between two bars is none."""
    schema: Callable[[], Schema]
    value: Callable[[Draw], Any]
    says: str
    """Phrases, separated by `|`."""


def _enum(names: str, about: str, values: str, says: str) -> Field:
    options = values.split()
    return Field(names, about, lambda: one_of(*options), lambda d: d.pick(options), says)


def _switch(names: str, about: str, value: bool, says: str) -> Field:
    return Field(names, about, flag, lambda d: value, says)


def _whole(names: str, about: str, low: int, high: int, says: str) -> Field:
    return Field(names, about, lambda: whole(least=low), lambda d: d.whole(low, high), says)


def _some_of(draw: Draw, always: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Add the options half of the time: what a message does not name has to be left out, and what
    it names must not be."""
    return always | (options if draw.chance(0.5) else {})


def _subset(draw: Draw, names: tuple[str, ...]) -> list[str]:
    """Return some of the names, at least one, in their order."""
    chosen = draw.some(names, 1, len(names))
    return [name for name in names if name in chosen]


def _unique(draw: Draw, make: Callable[[], Any], most: int) -> list[Any]:
    return list({make(): None for _ in range(draw.whole(1, most))})


FIELDS: Final[tuple[Field, ...]] = (
    Field("person customer owner user_name employee", "Full name.||Who it is for.", text,
          lambda d: d.person(), "for {x}|in the name of {x}|that belongs to {x}"),
    Field("city place region branch", "Name of the city.||", text,
          lambda d: d.city(), "in {x}|at our branch in {x}"),
    Field("date day on_date when", "A date, such as 2025-01-31.||The day.", day,
          lambda d: d.date(), "on {x}|for {x}|dated {x}"),
    Field("due due_date deadline", "Last day.||Deadline.", text,
          lambda d: d.date(), "due {x}|due on {x}|with the deadline {x}"),
    Field("time start start_time clock", "Time of day, such as 14:30.||", text,
          lambda d: d.time(), "at {x}|starting at {x}|from {x} on"),
    _whole("limit max_results top how_many", "Most results.||How many at most.", 1, 50,
           "at most {x}|no more than {x}|limited to {x} results"),
    _whole("quantity pieces units amount", "How many.||Number of pieces.", 1, 300,
           "with a quantity of {x}|{x} pieces|{x} units"),
    _whole("people group_size seats persons", "How many people.||", 1, 60,
           "for {x} people|for a group of {x}|with {x} seats"),
    _whole("days duration_days length_days", "In days.||How long, in days.", 1, 120,
           "for {x} days|lasting {x} days|over {x} days"),
    _whole("minutes duration length", "In minutes.||How long, in minutes.", 1, 240,
           "for {x} minutes|{x} minutes long|that takes {x} minutes"),
    Field("max_price budget price_limit", "Upper bound.||Most it may cost.", real,
          lambda d: d.price(), "under {x}|for at most {x}|with a budget of {x}"),
    Field("price cost fee value", "In euros.||", lambda: real(least=0),
          lambda d: d.price(), "at a price of {x}|that costs {x}|worth {x}"),
    Field("weight weight_kg kilos", "In kilograms.||", real,
          lambda d: d.real(0, 90, places=2) or 1,
          "weighing {x} kg|of {x} kilograms|with a weight of {x}"),
    _whole("percent share level", "In percent.||0 to 100.", 1, 99,
           "at {x} percent|with {x}%|at a level of {x}"),
    _enum("color colour shade", "|The colour.", "red green blue black white yellow",
          "in {x}|coloured {x}"),
    _enum("size format_size variant", "|One of the sizes.", "small medium large huge",
          "in size {x}|of {x} size"),
    _enum("priority importance rank", "|How urgent it is.", "low medium high critical",
          "with {x} priority|with priority {x}|as {x} priority"),
    _enum("format file_format output", "|File format.", "pdf csv xml html png",
          "as {x}|in {x} format|as a {x} file"),
    _enum("status state phase", "|Its state.", "open active paused closed archived",
          "with status {x}|whose status is {x}|in the state {x}"),
    _enum("language lang", "|", "english german french spanish italian", "in {x}|written in {x}"),
    _enum("sort sort_by order_by", "|Order of results.", "name date price rating",
          "sorted by {x}|ordered by {x}"),
    _switch("urgent express priority_flag", "|Whether it is urgent.", True,
            "{x=true?}marked as urgent|{x=true?}as an urgent one"),
    _switch("notify send_notice inform", "|Tell those concerned.", False,
            "{x=false?}without notifying anyone|{x=false?}with no notice to anyone"),
    _switch("include_archived with_old all_ages", "|Old ones, too.", True,
            "{x=true?}including archived ones|{x=true?}with the old ones"),
    _switch("dry_run simulate test_only", "|Only pretend.", True,
            "{x=true?}as a dry run|{x=true?}only as a test"),
    _switch("private hidden confidential", "|Visible to you alone.", True,
            "{x=true?}kept private|{x=true?}visible to me alone"),
    Field("tags labels keywords", "|Words to find it by.", lambda: list_of(text()),
          lambda d: _unique(d, d.noun, 3), "tagged {x}|with the tags {x}|labelled {x}"),
    Field("members participants team", "|First names.", lambda: list_of(text(), minItems=1),
          lambda d: _unique(d, d.first_name, 4), "with {x}|together with {x}|for {x}"),
    Field("numbers rows positions", "|Which ones.", lambda: list_of(whole()),
          lambda d: _unique(d, lambda: d.whole(1, 99), 4),
          "at the positions {x}|with the numbers {x}"),
    Field("note comment remark message", "|Free text.", text,
          lambda d: d.message(), 'with the note "{x}"|and the comment "{x}"|saying "{x}"'),
    Field("title name label subject", "|What it is called.", text,
          lambda d: d.pick((d.topic().removeprefix("the "), f"{d.noun()} {d.noun()}")),
          'called "{x}"|named "{x}"|with the title "{x}"'),
    Field("email address send_to contact", "|E-mail address.", text,
          lambda d: d.email(), "for {x}|with a copy to {x}|with the contact {x}"),
    Field("reference ref code order_number", "|", text,
          lambda d: d.code(d.pick(("@@-####", "####-@", "@###"))),
          "with reference {x}|under the code {x}"),
    Field("size_cm dimensions box", "|In centimetres.",
          lambda: record({
              "width": whole(least=1), "height": whole(least=1), "depth": maybe(whole(least=1)),
          }),
          lambda d: _some_of(d, {"width": d.whole(1, 300), "height": d.whole(1, 300)},
                             {"depth": d.whole(1, 300)}),
          "{x.width} by {x.height}< by {x.depth}> cm|"
          "with a width of {x.width}<, a depth of {x.depth}> and a height of {x.height}"),
    Field("period range slot", "|From when to when.",
          lambda: record({"start": text(), "end": text(), "whole_days": flag(default=False)}),
          lambda d: _some_of(
              d, dict(zip(("start", "end"), sorted((d.date(), d.date())), strict=True)),
              {"whole_days": True}),
          "from {x.start} to {x.end}<{x.whole_days=true?}, whole days>|"
          "between {x.start} and {x.end}<{x.whole_days=true?} (whole days)>"),
    Field("delivery ship_to address_to", "|Where it goes.",
          lambda: record({"street": text(), "city": text(), "insured": flag(default=False)}),
          lambda d: _some_of(d, {"street": f"{d.whole(1, 150)} {d.noun().title()} Street",
                                 "city": d.city()}, {"insured": True}),
          "to {x.street} in {x.city}<{x.insured=true?}, insured>|"
          "<{x.insured=true?}insured >to the address {x.street}, {x.city}"),
    Field("crew staff helpers", "|How many of each.",
          lambda: record({kind: whole(default=0) for kind in ("drivers", "cooks", "guards")}),
          lambda d: {kind: d.whole(2, 12) for kind in _subset(d, ("drivers", "cooks", "guards"))},
          "needing< {x.drivers} drivers>< {x.cooks} cooks>< {x.guards} guards>|"
          "with a crew of< {x.guards} guards>< {x.cooks} cooks>< {x.drivers} drivers>"),
    Field("parcels crates loads", "|What goes along.",
          lambda: list_of(record({"code": text(), "heavy": flag(default=False)}), minItems=1),
          lambda d: [_some_of(d, {"code": d.code("@@##")}, {"heavy": True})
                     for _ in range(d.whole(1, 3))],
          "with {x.0.code}<{x.0.heavy=true?} (heavy)><, {x.1.code}<{x.1.heavy=true?} (heavy)>>"
          "< and {x.2.code}<{x.2.heavy=true?} (heavy)>>|"
          "containing <{x.0.heavy=true?}heavy >{x.0.code}<, <{x.1.heavy=true?}heavy >{x.1.code}>"
          "<, <{x.2.heavy=true?}heavy >{x.2.code}>"),
    Field("goods articles", "|",
          lambda: list_of(record({"article": text(), "count": whole(default=1)})),
          lambda d: [_some_of(d, {"article": d.noun()}, {"count": d.whole(2, 40)})
                     for _ in range(d.whole(1, 2))],
          "with {x.0.article}<, {x.0.count} of them,>< and {x.1.article}<, {x.1.count} of them>>|"
          "for< {x.0.count} times> {x.0.article}< plus< {x.1.count} times> {x.1.article}>"),
    Field("assignee responsible parent", "|Nobody if null.", lambda: maybe(text()),
          lambda d: d.first_name() if d.chance(0.6) else None,
          "with {x} in charge|under {x}|{x=null?}with nobody in charge"),
    Field("phone phone_number mobile", "|", text, lambda d: d.phone(),
          "with the phone number {x}|reachable at {x}"),
    Field("file attachment source", "|Path of a file.", text, lambda d: d.path(),
          "with the file {x}|using {x}"),
    Field("topic category kind", "|", text, lambda d: d.noun(),
          "about {x}|in the category {x}|of the kind {x}"),
    Field("rating stars score", "|1 to 5.", lambda: one_of(1, 2, 3, 4, 5),
          lambda d: d.whole(1, 5), "with {x} stars|rated {x}|with a score of {x}"),
    Field("version api", "|", lambda: one_of("v1", "v2", "v3"),
          lambda d: d.pick(("v1", "v2", "v3")), "in version {x}|using {x}"),
    Field("module component area", "|", text, lambda d: d.stem(),
          "in the {x} module|for the component {x}"),
)  # fmt: skip
