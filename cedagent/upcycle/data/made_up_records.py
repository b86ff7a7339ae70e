"""Makes up kinds of documents: other columns, other keys and another way to write a row each time.

So that a value is found by reading, whatever the document looks like. Knows values and records, no
tools. Invariant: a made-up kind has what every kind has, and serves training alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.records import Records

_Make = Callable[[Draw], str]

_COLUMNS: Final[tuple[tuple[str, _Make], ...]] = (
    ("owner author manager supervisor contact", lambda d: d.person()),
    ("nickname teammate driver clerk guide", lambda d: d.first_name()),
    ("city hometown branch location", lambda d: d.city()),
    ("supplier maker customer sponsor", lambda d: d.company()),
    ("color label category mood theme material", lambda d: d.noun()),
    ("tag alias bucket channel cluster", lambda d: f"{d.noun()}-{d.noun()}"),
    ("code reference badge seat", lambda d: d.code(d.pick(("@@-###", "@##", "###-@", "@@@@#")))),
    ("checksum token key serial", lambda d: d.code(d.pick(("%%%%%%", "%%%%-%%%%", "#####")))),
    ("date deadline birthday expiry", lambda d: d.date()),
    ("start end opening closing", lambda d: d.time()),
    ("price fee cost salary", lambda d: f"{d.real(1, 900, places=2):.2f}"),
    ("quantity count stock votes", lambda d: str(d.whole(0, 9999))),
    ("weight load", lambda d: f"{d.real(0.1, 90)} kg"),
    ("size volume", lambda d: f"{d.whole(1, 900)} {d.pick(('MB', 'GB', 'litres', 'pages'))}"),
    ("version release", lambda d: f"{d.whole(0, 12)}.{d.whole(0, 30)}.{d.whole(0, 9)}"),
    ("score rating share", lambda d: str(d.real(0, 10, places=2))),
    ("phone extension fax", lambda d: d.phone()),
    ("email inbox", lambda d: d.email()),
    ("path file", lambda d: f"{d.folder_name()}/{d.stem()}.{d.pick(('txt', 'md', 'csv'))}"),
    ("address host", lambda d: f"{d.whole(1, 255)}.{d.whole(0, 255)}.{d.whole(0, 255)}.7"),
)
"""Names of a column, one of which is drawn, and its values."""

_KEYS: Final[tuple[_Make, ...]] = (
    lambda d: f"{d.noun()} {d.noun()}",
    lambda d: f"{d.noun()}-{d.stem()}",
    lambda d: f"{d.stem()}_{d.noun()}",
    lambda d: f"{d.noun()}-{d.whole(1, 99)}",
    lambda d: f"{d.noun()} {d.thing()}",
    lambda d: f"the {d.noun()} {d.noun()}",
    lambda d: d.person(),
    lambda d: d.noun(),
    lambda d: d.code("@@-####"),
    lambda d: d.code("#####"),
    lambda d: f"{d.city()} {d.whole(2, 40)}",
)


def made_up_records(draw: Draw) -> Records:
    """Return a kind of document that no other conversation is likely to have."""
    make_key = draw.pick(_KEYS)
    columns = draw.some(_COLUMNS, 1, 4)
    titles = [draw.pick(names.split()) for names, _ in columns]
    makers = {f"c{i}": make for i, (_, make) in enumerate(columns)}

    def row(d: Draw) -> dict[str, Any]:
        return {"name": make_key(d)} | {name: make(d) for name, make in makers.items()}

    heads, line = draw.pick(_LAYOUTS)(draw, titles)
    return Records(
        extension=draw.pick(("txt", "md", "log", "csv", "json", "toml")),
        heads=heads,
        row=row,
        line=line,
        key=("name",),
        wants=tuple(makers),
        titles=dict(zip(makers, titles, strict=True)),
        asks=lines("""
            =the {want} of {name}
            =the {want} of {name}
            =the {want} for {name}
            ={name}'s {want}
            ?which {want} does {name} have
            ?what is the {want} of {name}
            ?which {want} do you see for {name}
            !look up the {want} of {name}
        """),
        heldout_asks=(),
        answers=lines("""
            the {want} of {name} is {value}.
            the {want} of {name} is {value}.
            the {want} for {name} is {value}.
            {name} has the {want} {value}.
            it is {value}.
        """),
    )


_Layout = tuple[tuple[str, ...], str]


def _slots(titles: Sequence[str], form: str, between: str) -> str:
    """Return `form` for each column, `@` its title and `#` its value."""
    said = (form.replace("@", title).replace("#", f"{{c{i}}}") for i, title in enumerate(titles))
    return between.join(said)


def _titled(draw: Draw) -> tuple[str, ...]:
    return (f"# {draw.noun().title()}",) if draw.chance(0.4) else ()


def _comma(draw: Draw, titles: Sequence[str]) -> _Layout:
    mark = draw.pick((",", ";", "\t"))
    head = mark.join((draw.pick(("name", "id", "key", "item")), *titles))
    return (head,), mark.join(("{name}", _slots(titles, "#", mark)))


def _pipes(draw: Draw, titles: Sequence[str]) -> _Layout:
    head = " | ".join((draw.pick(("name", "id", "entry")), *titles))
    rule = "|".join(["---"] * (len(titles) + 1))
    return (f"| {head} |\n|{rule}|",), f"| {{name}} | {_slots(titles, '#', ' | ')} |"


def _json(draw: Draw, titles: Sequence[str]) -> _Layout:
    key = draw.pick(("name", "id", "key"))
    columns = _slots(titles, '"@": "#"', ", ")
    return (), f'{{{{"{key}": "{{name}}", {columns}}}}}'


def _listed(draw: Draw, titles: Sequence[str]) -> _Layout:
    form = draw.pick(("@ #", "@=#", "@: #"))
    frame = draw.pick(("- {name}: &", "* {name} (&)", "{name}: &", "{name} | &", "{name} -> &"))
    return _titled(draw), frame.replace("&", _slots(titles, form, draw.pick((", ", "; ", "  "))))


def _indented(draw: Draw, titles: Sequence[str]) -> _Layout:
    head, form = draw.pick((("{name}:", "  @: #"), ("[{name}]", "@ = #"), ("## {name}", "- @: #")))
    return _titled(draw), head + "\n" + _slots(titles, form, "\n")


def _prose(draw: Draw, titles: Sequence[str]) -> _Layout:
    first = draw.pick(("For {name}, ", "About {name}: ", "In the case of {name} ", "{name}: "))
    return _titled(draw), f"{first}{_slots(titles, 'the @ is #', ', and ')}."


def _tags(draw: Draw, titles: Sequence[str]) -> _Layout:
    tag = draw.pick(("item", "row", "entry"))
    columns = _slots(titles, '@="#"', " ")
    return (), f'<{tag} name="{{name}}" {columns}/>'


_LAYOUTS: Final[tuple[Callable[[Draw, Sequence[str]], _Layout], ...]] = (
    _comma, _pipes, _json, _listed, _listed, _indented, _prose, _tags
)  # fmt: skip
