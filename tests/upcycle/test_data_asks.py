"""Every section of asks.txt is somebody's, and its templates say what the call needs."""

from __future__ import annotations

import pytest

from cedagent.upcycle.data.asks import ask_names, more_asks, section_names
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import names_in
from cedagent.upcycle.data.skill import make_task
from cedagent.upcycle.data.skills import builtin, invented, unseen
from cedagent.upcycle.data.transcripts import all_chains


def test_every_section_belongs_to_a_known_tool_or_chain() -> None:
    known = (skill.spec.name for skill in (*builtin(), *invented()))
    chains = (chain.name for chain in all_chains())
    assert set(ask_names()) <= {*section_names(known), *section_names(chains)}
    assert len(ask_names()) == 90
    assert not {skill.spec.name for skill in unseen()} & {n.split()[0] for n in ask_names()}
    assert [len(asks) > 9 for asks in more_asks(["now", "fly_away", "now", "now", "now"])] == [
        True, False, True, True, False
    ]  # fmt: skip


def test_no_template_is_there_twice_or_held_out() -> None:
    heldout = {ask for skill in (*builtin(), *invented(), *unseen()) for ask in skill.heldout_asks}
    heldout |= {ask for chain in all_chains() for ask in chain.heldout_asks}
    for thing in (*builtin(), *invented(), *all_chains()):
        assert len(set(thing.asks)) == len(thing.asks)
        assert not heldout & set(thing.asks)


@pytest.mark.parametrize("skill", [s for s in (*builtin(), *invented()) if s.asks],
                         ids=lambda skill: skill.spec.name)  # fmt: skip
def test_each_template_makes_a_task_with_every_argument_that_is_needed(skill) -> None:
    for i, template in enumerate(skill.asks):
        task = make_task(skill, Draw(f"ask {i}", split="train"), templates=(template,))
        assert set(skill.spec.parameters["required"]) <= set(task.arguments)


def test_each_template_of_a_chain_says_what_the_others_say() -> None:
    for chain in all_chains():
        for i, template in enumerate(chain.asks):
            draw = Draw(f"chain {i}", split="train")
            assert ask(template, chain.draw(draw), draw=draw) is not None
        needed = frozenset.intersection(*(names_in(a) for a in chain.asks)) if chain.asks else ()
        assert all(set(needed) <= names_in(template) for template in chain.asks)
