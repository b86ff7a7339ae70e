"""Nothing held out is trained on: no wording, no message, no call, no tool, no file."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Iterator

import pytest

from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data import Conversation, heldout_conversations
from cedagent.upcycle.data.builtin import MORE
from cedagent.upcycle.data.conversation import SpokenCall, Turn
from cedagent.upcycle.data.draw import Draw, is_heldout
from cedagent.upcycle.data.examples import conversations
from cedagent.upcycle.data.files import WHERE
from cedagent.upcycle.data.moods import FRAMES
from cedagent.upcycle.data.plain_sources import sources
from cedagent.upcycle.data.records import RECORDS
from cedagent.upcycle.data.skills import known, unseen
from cedagent.upcycle.data.synthesis import made_up_skills
from cedagent.upcycle.data.talk import stored_talk, talk_turn
from cedagent.upcycle.data.tools_documents import PLACES
from cedagent.upcycle.data.transcripts import all_chains, of_kind
from cedagent.upcycle.data.trouble import LASTING, PASSING
from cedagent.upcycle.data.verbs import THINGS
from cedagent.upcycle.data.words import word_list

CASES = ("known", "unseen", "multi_step", "chat", "recovery", "needle_500")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


@pytest.fixture(scope="module")
def trained(tokenizer: Tokenizer) -> list[Conversation]:
    return list(itertools.islice(conversations(tokenizer, split="train", seed=1), 120))


@pytest.fixture(scope="module")
def heldout(tokenizer: Tokenizer) -> list[Conversation]:
    kinds = [heldout_conversations(kind, seed=1, n=16, tokenizer=tokenizer) for kind in CASES]
    return list(itertools.chain.from_iterable(kinds))


def calls_of(made: list[Conversation]) -> Iterator[SpokenCall]:
    for conversation in made:
        for turn in conversation.turns:
            for said in turn.outputs:
                # What was wrong on purpose is not learned, and not expected of anyone.
                if said.trained:
                    yield from said.calls


def test_no_template_is_on_both_sides() -> None:
    trained = {ask for skill in known() for ask in skill.asks}
    heldout = {ask for skill in (*known(), *unseen()) for ask in skill.heldout_asks}
    for chain in all_chains():
        trained |= set(chain.asks)
        heldout |= set(chain.heldout_asks)
    for kind in RECORDS:
        trained |= set(kind.asks)
        heldout |= set(kind.heldout_asks)
    for split in (WHERE, PASSING, LASTING, *PLACES.values()):
        trained |= set(split["train"])
        heldout |= set(split["heldout"])
    assert len(trained) > 350
    assert len(heldout) > 200
    assert trained & heldout == set()
    for frames in FRAMES.values():
        assert not set(frames["train"]) & set(frames["heldout"])


def test_every_skill_has_held_out_wordings_and_unseen_ones_no_others() -> None:
    # Questions about documents take their wordings from the kind of document.
    for skill in known():
        assert len(skill.heldout_asks) >= 1 or not skill.answers, skill.spec.name
        assert len(skill.asks) >= 2 or not skill.answers, skill.spec.name
    for skill in unseen():
        assert skill.asks == ()
        assert len(skill.heldout_asks) >= 2


@pytest.mark.slow
def test_nothing_of_a_whole_evaluation_is_in_thousands_of_examples(tokenizer) -> None:
    examples = conversations(tokenizer, split="train", seed=7)
    trained = list(itertools.islice(examples, 5_000))
    kinds = [heldout_conversations(kind, seed=0, n=100, tokenizer=tokenizer) for kind in CASES]
    heldout = list(itertools.chain.from_iterable(kinds))
    test_no_message_is_on_both_sides(trained, heldout)
    test_no_call_with_arguments_is_on_both_sides(trained, heldout)
    test_unseen_tools_are_never_trained(trained, heldout)
    shapes = {shape(turn) for made in trained for turn in made.turns if len(turn.user) > 12}
    assert len(shapes) > 3_000
    assert not shapes & {shape(turn) for made in heldout for turn in made.turns}


def shape(turn: Turn) -> str:
    """Return a message without the values that its calls take from it."""
    values = {
        value
        for said in turn.outputs
        for _, arguments in said.calls
        for value in re.findall(r"[\w./@: -]{2,}", json.dumps(arguments))
    }
    text = turn.user
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "@")
    return re.sub(r"\d+", "#", text).casefold()


@pytest.mark.slow
def test_no_message_is_on_both_sides(trained, heldout) -> None:
    # Greetings and the like mean nothing by themselves.
    own = {turn.user for made in trained for turn in made.turns if len(turn.user) > 12}
    others = {turn.user for made in heldout for turn in made.turns}
    assert len(own) > 140
    assert not own & others


def test_no_call_with_arguments_is_on_both_sides(trained, heldout) -> None:
    def key(call: SpokenCall) -> tuple[str, str]:
        return call[0], repr(sorted(call[1].items()))

    own = {key(call) for call in calls_of(trained) if call[1]}
    others = {key(call) for call in calls_of(heldout) if call[1]}
    assert not own & others
    names = {skill.spec.name for skill in (*known(), *unseen())} | {MORE.name}
    for name, arguments in calls_of(heldout):
        assert name in names
        assert not arguments or is_heldout(name, arguments)


def test_known_calls_of_training_are_on_the_trained_side(tokenizer) -> None:
    # Without other names for tools and parameters, whose hashes would mean nothing.
    for i in range(25):
        for kind in ("builtin", "invented", "chain", "asked_back", "recovery"):
            made = of_kind(Draw(f"{kind}/{i}", split="train"), kind, count=len)
            for turn in made.turns:
                for said in turn.outputs:
                    for name, arguments in said.calls:
                        if said.trained and arguments:
                            assert not is_heldout(name, arguments)


def test_unseen_tools_are_never_trained(trained, heldout) -> None:
    names = {skill.spec.name for skill in unseen()}
    descriptions = {skill.spec.description for skill in unseen()}
    for conversation in trained:
        for spec in conversation.tools:
            assert spec.name not in names
            assert spec.description not in descriptions
    listed = {spec.name for conversation in heldout for spec in conversation.tools}
    assert len(names & listed) > 10


def test_unseen_tools_are_about_things_that_made_up_tools_are_not() -> None:
    words = {part for skill in unseen() for part in skill.spec.name.split("_")}
    assert not words & {thing for thing in THINGS if thing != "package"}
    names = {skill.spec.name for skill in (*known(), *unseen())}
    for i in range(120):
        for skill in made_up_skills(Draw(f"m{i}", split="train"), 4):
            assert skill.spec.name not in names


def test_some_combinations_of_tools_are_held_out_whole() -> None:
    def names(chain) -> tuple[str, ...]:
        return tuple(spec.name for spec in chain.specs)

    chains = all_chains()
    trained = {names(chain) for chain in chains if chain.asks}
    heldout = {names(chain) for chain in chains if not chain.asks}
    assert len(heldout) >= 3
    assert not trained & heldout


def test_word_lists_are_parted() -> None:
    for name in ("first_names", "surnames", "cities", "words", "stems", "products", "messages"):
        draw, other = Draw("a", split="train"), Draw("b", split="heldout")
        items = word_list(name)
        assert len(set(items)) == len(items), name
        own = {draw.word(items) for _ in range(2_000)}
        others = {other.word(items) for _ in range(2_000)}
        assert not own & others
        assert len(own) > 3 * len(others)


def test_stored_talk_is_parted() -> None:
    draws = Draw("a", split="train"), Draw("b", split="heldout")
    own, others = ({talk_turn(draw, ()).user for _ in range(500)} for draw in draws)
    assert len(own) > 300
    assert not {text for text in own if len(text) > 12} & others
    wordings = [wording for asks, _ in stored_talk() for wording in asks]
    assert len(set(wordings)) == len(wordings)


@pytest.mark.slow
def test_a_file_is_on_one_side_only() -> None:
    by_path: dict[object, set[bool]] = {}
    for source in sources():
        key = source.path or source.name
        by_path.setdefault(key, set()).add(source.is_heldout)
        assert source.is_heldout == (zlib.crc32(source.name.encode()) % 16 == 0)
    assert all(len(sides) == 1 for sides in by_path.values())
    share = sum(source.is_heldout for source in sources()) / len(sources())
    assert 0.03 < share < 0.12
