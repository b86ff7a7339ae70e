"""Known tools between people: letters, messages, the address book.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import flag, list_of, text, tool
from cedagent.upcycle.data.skill import Skill


def _email() -> Skill:
    def email(draw: Draw) -> dict[str, Any]:
        return {
            "to": draw.email(),
            "subject": draw.topic().removeprefix("the "),
            "body": draw.message(),
            "cc": [draw.email() for _ in range(draw.whole(1, 2))],
        }

    return Skill(
        spec=tool(
            "send_email",
            "Send an e-mail.",
            {
                "to": text("Address."),
                "subject": text(),
                "body": text("What the e-mail says."),
                "cc": list_of(text(), "Addresses that get a copy.", default=[]),
            },
        ),
        area="mail",
        draw=email,
        asks=lines("""
            !email {to} about "{subject}" and say: {body}
            !send an e-mail to {to} with the subject "{subject}" and the text "{body}"
            !write to {to}, subject "{subject}", text "{body}"<, copy to {cc}>
            !mail {to}< (cc {cc})> with subject "{subject}": {body}
        """),
        heldout_asks=lines("""
            {to} should get a mail titled "{subject}" that says "{body}"
            !drop {to} an e-mail called "{subject}"< with {cc} in copy>, reading "{body}"
        """),
        result=lambda d, a: {"sent": True, "message_id": d.code("m%%%%")},
        answers=lines("""
            the e-mail to {to} is sent.
            I sent "{subject}" to {to}.
            done, {to} has your e-mail.
        """),
        needed=("to",),
        wish="send e-mails",
    )


def _message() -> Skill:
    return Skill(
        spec=tool(
            "send_message",
            "Send a short message to a person.",
            {"person": text(), "text": text(), "urgent": flag(default=False)},
        ),
        area="mail",
        draw=lambda d: {"person": d.first_name(), "text": d.message(), "urgent": True},
        asks=lines("""
            !tell {person} that {text}
            !send {person} a message: {text}
            !text {person} "{text}"
            !send an urgent{urgent=true?} message to {person}: "{text}"
            !let {person} know that {text}
        """),
        heldout_asks=lines("""
            {person} has to hear this: {text}
            !pass on to {person} that {text}
            !write {person} a message marked urgent{urgent=true?} that says "{text}"
        """),
        result=lambda d, a: {"delivered": True},
        answers=lines("""
            I told {person}: {text}.
            {person} got your message.
            the message to {person} is delivered.
        """),
        needed=("person",),
        wish="send messages",
    )


def contact(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a person's entry in the address book."""
    name = arguments["name"]
    return {"name": name, "email": draw.email(name), "phone": draw.phone()}


def _contacts() -> list[Skill]:
    spec = tool("find_contact", "Look a person up in the address book.", {"name": text()})
    rows = (
        ("phone", "phone number", "call"), ("email", "email address", "write to"),
    )  # fmt: skip
    return [
        Skill(
            spec=spec,
            area="contacts",
            draw=lambda d: {"name": d.person()},
            asks=lines(f"""
                ={{name}}'s {title}
                =the {title} of {{name}}
                !look up the {title} of {{name}}
                ?how can I {verb} {{name}}
                !find the {title} for {{name}}
            """),
            heldout_asks=lines(f"""
                ?under which {title} do I reach {{name}}
                !dig out {{name}}'s {title}
            """),
            result=contact,
            answers=lines(f"""
                {{name}}'s {title} is {{{field}}}.
                the {title} of {{name}} is {{{field}}}.
                you can {verb} {{name}} at {{{field}}}.
            """),
            needed=(field,),
            vary="name",
            joins=field == "phone",
            wish="look up contacts" if field == "phone" else "",
        )
        for field, title, verb in rows
    ]


def mail_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _email(),
        _message(),
        *_contacts(),
    )
