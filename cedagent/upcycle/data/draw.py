"""Random values that keep to one side of the split.

Knows words and numbers, no tools. Invariants: the same seed draws the same values in every process
(no `hash`, no set order); of each word list every fifth entry is held out; and a call with
arguments is on one side only, by a hash of its name and arguments.
"""

from __future__ import annotations

import datetime
import json
import zlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from cedagent.upcycle.data.coined import coin, uncommon_word
from cedagent.upcycle.data.conversation import Split
from cedagent.upcycle.data.phrasing import say
from cedagent.upcycle.data.words import word_list

T = TypeVar("T")
_EVERY = 5
_SHARE_UNLISTED = 0.5
"""How many names and words of training are in no list, so that they have to be copied."""
_FIRST_DAY = datetime.date(2019, 1, 1)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def is_heldout(name: str, arguments: Mapping[str, Any]) -> bool:
    """Tell on which side a call with arguments is: a quarter is held out."""
    text = json.dumps([name, arguments], sort_keys=True, ensure_ascii=False)
    return zlib.crc32(text.encode()) % 4 == 0


class Draw:
    """A seeded source of values of one split."""

    def __init__(self, seed: str, *, split: Split) -> None:
        # A text as seed goes through SHA-512, the same everywhere.
        self.rng = Random(seed)
        self.split: Split = split

    def allows(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Tell whether a call may be made on this side; one without arguments always may."""
        return not arguments or is_heldout(name, arguments) == (self.split == "heldout")

    def chance(self, share: float) -> bool:
        """Return True in this share of cases."""
        return self.rng.random() < share

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return self.rng.choice(items)

    def some(self, items: Sequence[T], least: int, most: int) -> list[T]:
        """Return a few different items in random order."""
        return self.rng.sample(list(items), self.rng.randint(least, min(most, len(items))))

    def side(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of a list that are on this side of the split."""
        return [item for i, item in enumerate(items) if self._is_ours(i)]

    def word(self, items: Sequence[T]) -> T:
        """Return an item of a list that is on this side of the split."""
        while True:
            i = self.rng.randrange(len(items))
            if self._is_ours(i):
                return items[i]

    def _unlisted(self) -> bool:
        return self.split == "train" and self.chance(_SHARE_UNLISTED)

    def _is_ours(self, i: int) -> bool:
        return (i % _EVERY == _EVERY - 1) == (self.split == "heldout")

    def whole(self, low: int, high: int) -> int:
        """Return an integer, small ones more often in wide ranges."""
        if high - low > 500 and self.chance(0.5):
            high = low + (high - low) // self.pick((10, 100))
        return self.rng.randint(low, high)

    def real(self, low: float, high: float, *, places: int = 1) -> float | int:
        """Return a number with at most so many decimals; an int where there are none."""
        value = round(self.rng.uniform(low, high), self.rng.randint(0, places))
        return int(value) if value == int(value) else value

    def price(self) -> float | int:
        """Return an amount of money."""
        return self.real(1, self.pick((10, 100, 1000)), places=2)

    def first_name(self) -> str:
        """Return a first name."""
        return coin(self.rng).title() if self._unlisted() else self.word(word_list("first_names"))

    def person(self) -> str:
        """Return a full name."""
        listed = self.word(word_list("surnames"))
        return f"{self.first_name()} {coin(self.rng).title() if self._unlisted() else listed}"

    def company(self) -> str:
        """Return a company."""
        return coin(self.rng).title() if self._unlisted() else self.word(word_list("companies"))

    def stem(self) -> str:
        """Return the name of a file without its extension, or of whatever else files are about."""
        return uncommon_word(self.rng) if self._unlisted() else self.word(word_list("stems"))

    def folder_name(self) -> str:
        """Return the name of a folder."""
        return self.word(word_list("folders"))

    def city(self) -> str:
        """Return a city."""
        return self.word(word_list("cities"))

    def cities(self, n: int) -> list[str]:
        """Return different cities."""
        return self.rng.sample(list(self.side(word_list("cities"))), n)

    def thing(self) -> str:
        """Return a thing that can be bought."""
        return self.word(word_list("products"))

    def noun(self) -> str:
        """Return a word."""
        return uncommon_word(self.rng) if self._unlisted() else self.word(word_list("words"))

    def message(self) -> str:
        """Return a short sentence without its full stop."""
        return self._filled(self.word(word_list("messages")))

    def task(self) -> str:
        """Return something to do."""
        return self._filled(self.word(word_list("tasks")))

    def topic(self) -> str:
        """Return what a letter may be about."""
        return self.word(word_list("topics"))

    def email(self, name: str | None = None) -> str:
        """Return an address, of a person if one is named."""
        user = (name or self.person()).lower().replace(" ", self.pick((".", "_", "")))
        firm = self.company().lower().replace(" ", "-")
        return f"{user}@{firm}.{self.pick(('com', 'org', 'net', 'io', 'example'))}"

    def phone(self) -> str:
        """Return a phone number."""
        return self.code(self.pick(("+## ### ######", "0### ######", "###-###-####")))

    def code(self, pattern: str) -> str:
        """Return a pattern with digits for `#`, capitals for `@` and hex digits for `%`."""
        pools = {"#": "0123456789", "@": "ABCDEFGHJKLMNPQRSTUVWXYZ", "%": "0123456789abcdef"}
        return "".join(self.rng.choice(pools[c]) if c in pools else c for c in pattern)

    def date(self) -> str:
        """Return a date of the years 2019 to 2029."""
        return (_FIRST_DAY + datetime.timedelta(self.rng.randrange(3_900))).isoformat()

    def time(self) -> str:
        """Return a time of day."""
        return f"{self.rng.randint(6, 23):02}:{self.rng.choice((0, 15, 30, 45, 5, 20, 50)):02}"

    def file_name(self, extension: str = "") -> str:
        """Return the name of a file."""
        stem = self.stem()
        if self.chance(0.4):
            tail = self.pick((str(self.rng.randint(1, 40)), self.noun(), self.code("20##")))
            stem += self.pick("_-") + tail
        return f"{stem}.{extension or self.pick(('txt', 'md', 'py', 'json', 'csv', 'log', 'toml'))}"

    def folder(self) -> str:
        """Return a folder, perhaps inside another one."""
        path = self.folder_name()
        if self.chance(0.3):
            path += "/" + self.pick((self.folder_name(), self.noun()))
        return path

    def path(self, extension: str = "") -> str:
        """Return the path of a file."""
        name = self.file_name(extension)
        return name if self.chance(0.4) else f"{self.folder()}/{name}"

    def _filled(self, template: str) -> str:
        values = {
            "n": self.rng.randint(2, 60),
            "time": self.time(),
            "thing": "the " + self.thing(),
            "city": self.city(),
            "code": self.code("####"),
            "person": self.first_name(),
            "topic": self.topic(),
        }
        return say(template, values, rng=self.rng)


def long_date(iso: str, *, rng: Random) -> str:
    """Return a date as people write it in a text."""
    day = datetime.date.fromisoformat(iso)
    month = _MONTHS[day.month - 1]
    return rng.choice((f"{month} {day.day}, {day.year}", f"{day.day} {month} {day.year}"))
