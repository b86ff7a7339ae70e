"""All skills by what they are for: built in, known, never seen in training.

Knows the modules that write them down. Invariant: building them draws nothing, so every process
has the same skills in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.asks import more_asks
from cedagent.upcycle.data.builtin_skills import builtin_skills
from cedagent.upcycle.data.files import file_skills
from cedagent.upcycle.data.folders import folder_skills
from cedagent.upcycle.data.skill import Skill
from cedagent.upcycle.data.tools_calendar import calendar_skills
from cedagent.upcycle.data.tools_days import day_skills
from cedagent.upcycle.data.tools_documents import document_skills
from cedagent.upcycle.data.tools_home import home_skills
from cedagent.upcycle.data.tools_machines import machine_skills
from cedagent.upcycle.data.tools_mail import mail_skills
from cedagent.upcycle.data.tools_numbers import number_skills
from cedagent.upcycle.data.tools_office import office_skills
from cedagent.upcycle.data.tools_places import place_skills
from cedagent.upcycle.data.tools_shop import shop_skills
from cedagent.upcycle.data.tools_store import store_skills
from cedagent.upcycle.data.tools_texts import text_skills
from cedagent.upcycle.data.tools_travel import travel_skills
from cedagent.upcycle.data.tools_words import word_skills
from cedagent.upcycle.data.tools_work import work_skills
from cedagent.upcycle.data.unseen_facts import fact_skills
from cedagent.upcycle.data.unseen_leisure import leisure_skills
from cedagent.upcycle.data.unseen_things import thing_skills
from cedagent.upcycle.data.unseen_travel import hotel_skills
from cedagent.upcycle.data.unseen_yard import yard_skills


@lru_cache(maxsize=1)
def builtin() -> tuple[Skill, ...]:
    """Return what is asked of the built-in tools."""
    return _with_more_asks((*builtin_skills(), *folder_skills(), *file_skills()))


@lru_cache(maxsize=1)
def invented() -> tuple[Skill, ...]:
    """Return the invented tools that training knows."""
    return _with_more_asks(
        (
            *(*day_skills(), *calendar_skills(), *mail_skills(), *word_skills(), *home_skills()),
            *(
                *machine_skills(),
                *shop_skills(),
                *travel_skills(),
                *place_skills(),
                *number_skills(),
                *text_skills(),
            ),
            *(*store_skills(), *document_skills(), *work_skills(), *office_skills()),
        )
    )


@lru_cache(maxsize=1)
def unseen() -> tuple[Skill, ...]:
    """Return the invented tools that training never sees."""
    return (
        *(*thing_skills(), *yard_skills(), *fact_skills(), *hotel_skills()),
        *leisure_skills(),
    )


def known() -> tuple[Skill, ...]:
    """Return all skills that training knows."""
    return (*builtin(), *invented())


def _with_more_asks(skills: tuple[Skill, ...]) -> tuple[Skill, ...]:
    """Return the skills with what `asks.txt` adds to their templates."""
    added = more_asks(skill.spec.name for skill in skills)
    return tuple(
        replace(skill, asks=(*skill.asks, *more)) for skill, more in zip(skills, added, strict=True)
    )


@lru_cache(maxsize=256)
def named(name: str) -> Skill:
    """Return the first skill of a known tool."""
    return next(skill for skill in known() if skill.spec.name == name)


def specs(names: str) -> tuple[ToolSpec, ...]:
    """Return known tools by their names, separated by spaces."""
    return tuple(named(name).spec for name in names.split())
