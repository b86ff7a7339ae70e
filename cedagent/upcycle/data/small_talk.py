"""Talk from tables and templates: capitals, lists of things, opposites, short texts.

Common knowledge, written down here. Invariant: the two sides of the split share no template, and no
entry of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cedagent.upcycle.data.conversation import Said, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import joined, lines, say

_CAPITALS: Final = """
France=Paris,Italy=Rome,Spain=Madrid,Portugal=Lisbon,Germany=Berlin,Austria=Vienna,Poland=Warsaw,
Norway=Oslo,Sweden=Stockholm,Finland=Helsinki,Denmark=Copenhagen,Ireland=Dublin,Greece=Athens,
Hungary=Budapest,Belgium=Brussels,Japan=Tokyo,China=Beijing,Thailand=Bangkok,Vietnam=Hanoi,
Egypt=Cairo,Kenya=Nairobi,Ghana=Accra,Peru=Lima,Chile=Santiago,Cuba=Havana,Canada=Ottawa,
Mexico=Mexico City,Iceland=Reykjavik,Estonia=Tallinn,Latvia=Riga,Lithuania=Vilnius,Croatia=Zagreb,
Serbia=Belgrade,Romania=Bucharest,Bulgaria=Sofia,Turkey=Ankara,Iran=Tehran,Iraq=Baghdad,
Nepal=Kathmandu,Cambodia=Phnom Penh,Philippines=Manila,Indonesia=Jakarta,Colombia=Bogota,
Ecuador=Quito,Uruguay=Montevideo,Tunisia=Tunis,Ethiopia=Addis Ababa,Senegal=Dakar,Uganda=Kampala
""".replace("\n", "")


_KINDS: Final = {
    "fruits": "apple,pear,plum,cherry,banana,grape,peach,orange,kiwi,mango",
    "vegetables": "carrot,leek,onion,cabbage,pepper,spinach,beetroot,celery",
    "colours": "red,blue,green,yellow,purple,orange,brown,pink",
    "animals": "dog,horse,eagle,whale,frog,lizard,tiger,rabbit",
    "musical instruments": "violin,piano,flute,drum,guitar,trumpet,harp",
    "tools in a workshop": "hammer,saw,file,drill,pliers,chisel",
    "European countries": "France,Italy,Spain,Poland,Norway,Greece,Austria",
    "sports": "tennis,football,rowing,judo,hockey,swimming,climbing",
    "trees": "oak,beech,birch,maple,pine,willow,ash",
    "spices": "pepper,cumin,cinnamon,paprika,nutmeg,ginger",
}


_OPPOSITES: Final = """
hot=cold,big=small,fast=slow,early=late,open=closed,full=empty,happy=sad,light=dark,high=low,
strong=weak,old=young,rich=poor,clean=dirty,loud=quiet,wide=narrow,deep=shallow,soft=hard,
near=far,thick=thin,sharp=blunt,brave=cowardly,polite=rude,simple=complicated,cheap=expensive
""".replace("\n", "")


def simple_turn(message: str, answer: str, *, contains: tuple[str, ...] = ()) -> Turn:
    return Turn(message, (Said(text=answer, contains=contains),))


def framed(
    draw: Draw, train: str, heldout: str, values: Mapping[str, Any], answers: str
) -> tuple[str, str]:
    """Return a message from the templates of this side, and an answer."""
    template = draw.pick(lines(train if draw.split == "train" else heldout))
    wording = ask(template, values, draw=draw)
    assert wording is not None, f"a value is missing: {template}"
    return wording.text(), say(draw.pick(lines(answers)), values, rng=draw.rng)


def capital(draw: Draw) -> Turn:
    """Return a question for a capital."""
    country, city = draw.word(_CAPITALS.split(",")).split("=")
    message, answer = framed(
        draw,
        """
        =the capital of {country}
        ?which city is the capital of {country}
        capital of {country}?
        """,
        """
        ?what is the name of {country}'s capital
        """,
        {"country": country, "city": city},
        """
        The capital of {country} is {city}.
        {city} is the capital of {country}.
        It is {city}.
        """,
    )
    return simple_turn(message, answer)


def some(draw: Draw) -> Turn:
    """Return a question for some things of a kind."""
    kind = draw.pick(tuple(_KINDS))
    n = draw.whole(2, 5)
    number = ("two", "three", "four", "five")[n - 2]
    message, answer = framed(
        draw,
        """
        !name {n} {kind}
        !list {n} {kind}
        [give me|tell me] {n} {kind}
        """,
        """
        ?which {n} {kind} come to your mind
        """,
        {"n": number, "kind": kind, "some": joined(draw.rng.sample(_KINDS[kind].split(","), n))},
        """
        {some}.
        For example {some}.
        Here are {n}: {some}.
        """,
    )
    return simple_turn(message, answer[:1].upper() + answer[1:])


def opposite(draw: Draw) -> Turn:
    """Return a question for an opposite."""
    word, other = draw.word(_OPPOSITES.split(",")).split("=")
    message, answer = framed(
        draw,
        """
        =the opposite of {word}
        ?which word is the opposite of "{word}"
        """,
        """
        ?what is the contrary of {word}
        """,
        {"word": word, "other": other},
        """
        The opposite of {word} is {other}.
        "{other}".
        It is {other}.
        """,
    )
    return simple_turn(message, answer)


def short_text(draw: Draw) -> Turn:
    """Return a wish for a text of a few lines."""
    values = {name: draw.noun() for name in ("a", "b", "c")} | {"who": draw.first_name()}
    message, answer = framed(
        draw,
        """
        !write [a short poem|two lines|a tiny poem] about a {a}
        !write [one sentence|a short story|a few words] about {who} and a {a}
        !invent [a slogan|a headline] for a shop called {a}
        [tell me|make up] a very short story with a {a} in it
        """,
        """
        !compose something small about the word {a}
        I need a caption for a picture of a {a}
        """,
        values,
        """
        A {a} rests beside the {b}, / the evening wind is slow and mild, / and where the {c} \
            used to be / the light comes in, a little wild.
        One morning {who} found a {a} behind the {b}. Nobody knew whose it was, so {who} kept \
            it, and from that day on the {c} was never lonely.
        The {a}: small enough for your pocket, large enough for your day.
        {who} looked at the {a}, the {a} looked back, and the {b} pretended to see nothing.
        No {b} without a {c}, no {c} without a {a}.
        """,
    )  # fmt: skip
    return simple_turn(message, answer.replace(" / ", "\n"))


def rewrite(draw: Draw) -> Turn:
    """Return a text to be said more politely."""
    message, answer = framed(
        draw,
        """
        !make this more polite: send me {thing} by {time}
        !rephrase politely: I want {thing} before {time}
        !write a friendlier version of "bring {thing} at {time}"
        """,
        """
        ?how do I ask nicely for {thing} before {time}
        """,
        {"thing": f"the {draw.thing()}", "time": draw.time()},
        """
        Could you please send me {thing} by {time}?
        Would it be possible to have {thing} by {time}? Thank you!
        I would be grateful if I could get {thing} by {time}.
        """,
    )
    return simple_turn(message, answer)
