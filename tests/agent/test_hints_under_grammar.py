"""Whatever the call grammar lets a model write, the tool's signature accepts."""

from __future__ import annotations

import datetime
import decimal
import enum
import itertools
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import jsonschema
import msgspec
import pytest
from msgspec import Meta

from cedagent import tool
from cedagent.chat import CallGrammar, Tokenizer, chat_format
from tests.chat.sampling import random_pick, sample

pytestmark = pytest.mark.slow


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 20


class Row(NamedTuple):
    n: int
    when: datetime.date | None = None


class Trip(TypedDict):
    to: str
    days: NotRequired[dict[str, datetime.datetime]]


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    barks: bool


@dataclass
class Tree:
    value: Size
    inside: list[Tree] = field(default_factory=list)


@dataclass
class Shift:
    start: datetime.time
    length: datetime.timedelta
    day: datetime.date


Cents = NewType("Cents", int)

HINTS: list[Any] = [
    bool,
    int,
    float,
    str,
    Cents,
    int | float,
    Annotated[int, Meta(ge=0, le=99)],
    Annotated[int, Meta(gt=-5, multiple_of=7)],
    Annotated[float, Meta(ge=0, lt=1)],
    Annotated[float, Meta(gt=0.3)] | None,
    Annotated[str, Meta(min_length=2, max_length=5)],
    Annotated[str, Meta(pattern="^[a-z]+(-[0-9]{1,3})?$")],
    Annotated[str, Meta(pattern="^b.{2}$")],
    Literal["C", 3, None],
    Colour,
    Size | str,
    Literal["a", 5] | int | str,
    list[Literal[1, 2]],
    Annotated[list[bool], Meta(min_length=1, max_length=3)],
    list[datetime.datetime],
    dict[str, datetime.datetime],
    Annotated[datetime.datetime, Meta(tz=False)],
    set[datetime.date],
    set[tuple[int, str] | None],
    Annotated[frozenset[int], Meta(min_length=1)],
    datetime.time,
    Annotated[datetime.time, Meta(tz=True)],
    datetime.timedelta,
    dict[str, datetime.timedelta | None],
    uuid.UUID,
    decimal.Decimal,
    list[decimal.Decimal],
    dict[int, float],
    dict[Colour, int],
    dict[Literal["a", "b"], list[int]],
    dict[str, Any],
    Annotated[dict[str, int], Meta(min_length=1)],
    tuple[int, ...],
    tuple[datetime.date, bool],
    Row,
    Trip,
    Tree,
    Shift,
    list[Shift] | None,
    Cat | Dog,
    Path,
    Path | None,
    Any,
    list,
    dict,
]


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def tool_for(hint: Any) -> Any:
    def use(value, other="x") -> None:
        """Use it."""

    use.__annotations__ = {"value": hint, "other": hint}
    return tool(use)


def biased_pick(seed: int, tokenizer: Tokenizer) -> Callable[[list[int]], int]:
    """Random ids that lean, by turns, to ends, to digits and to nothing."""
    rng, plain = random.Random(seed), random_pick(seed, tokenizer)
    digits = {i for i in range(tokenizer.vocab_size) if (tokenizer.token_bytes(i) or b"").isdigit()}

    def pick(choices: list[int]) -> int:
        wanted = [i for i in choices if i in digits] if seed % 3 == 0 else []
        return rng.choice(wanted) if wanted and rng.random() < 0.7 else plain(choices)

    return pick


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_every_call_that_the_grammar_allows_is_accepted(hint: Any, tokenizer: Tokenizer) -> None:
    made = tool_for(hint)
    jsonschema.Draft202012Validator.check_schema(made.spec.parameters)
    fmt = chat_format("chatml", tokenizer=tokenizer)
    grammar = CallGrammar(fmt, tokenizer, [made.spec], choice="use")
    n_complete = 0
    for seed in range(40):
        ids = sample(grammar.start(), tokenizer, fmt, biased_pick(seed, tokenizer), limit=600)
        parser = fmt.parser()
        for token in ids:
            parser.push(token)
        output = parser.finish()
        if output.complete:
            (call,) = output.calls
            assert call.arguments is not None, call
            made.signature.convert(call.arguments)
            n_complete += 1
    assert n_complete >= 8


ODD_MOMENTS = [
    ("date", datetime.date, ["2024-02-29", "2000-02-29"], ["2023-02-29", "1900-02-29"]),
    ("thirty", datetime.date, ["2024-04-30"], ["2024-04-31", "2024-13-01", "2024-02-30"]),
    (
        "datetime",
        list[datetime.datetime],
        [["2024-02-03T23:59:59.123456+05:30"]],
        [["2024-02-03T23:59:60Z"], ["2024-02-30T00:00:00Z"], ["2024-02-03"]],
    ),
    ("time", datetime.time, ["00:00:00", "23:59:59.5"], ["23:59:60", "24:00:00", "1:00:00"]),
    (
        "duration",
        datetime.timedelta,
        ["P1D", "P2DT3H", "PT0.5S"],
        ["P1M", "P1Y", "P", "PT", "P1DT"],
    ),
    ("decimal", decimal.Decimal, ["-0.10"], ["NaN", "1e3", "01"]),
]


@pytest.mark.parametrize(("hint", "good", "bad"), [c[1:] for c in ODD_MOMENTS],
                         ids=[c[0] for c in ODD_MOMENTS])  # fmt: skip
def test_the_schema_draws_the_line_where_the_type_does(
    hint: Any, good: list[Any], bad: list[Any]
) -> None:
    made = tool_for(hint)
    validator = jsonschema.Draft202012Validator(made.spec.parameters)
    for value in good:
        validator.validate({"value": value})
        made.signature.convert({"value": value})
    for value in bad:
        assert not validator.is_valid({"value": value})


def test_every_day_of_four_centuries_is_in_the_schema_and_no_other() -> None:
    validator = jsonschema.Draft202012Validator(tool_for(datetime.date).spec.parameters)
    for year in (1000, 1582, 1899, 1900, 1904, 2000, 2023, 2024, 2100, 2400, 9999):
        for month, day in itertools.product(range(14), range(33)):
            try:
                datetime.date(year, month, day)
                exists = True
            except ValueError:
                exists = False
            text = f"{year:04}-{month:02}-{day:02}"
            assert validator.is_valid({"value": text}) == exists, text


def test_names_with_underscores_reach_their_parameters() -> None:
    @tool
    def use(__y: int, _: str = "a", größe: int = 1) -> tuple[int, str, int]:
        """Use."""
        return __y, _, größe

    given = {"__y": 3, "größe": 4}
    assert use(**use.signature.convert(given)) == (3, "a", 4)


def test_what_a_class_raises_while_it_checks_itself_is_one_line() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            raise KeyError("not\neven")

    made = tool_for(Even)
    with pytest.raises(ValueError, match="value: ") as caught:
        made.signature.convert({"value": {"n": 1}})
    assert "\n" not in str(caught.value)
