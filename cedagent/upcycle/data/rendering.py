"""From conversations to token ids, through the chat format that serving uses.

Knows no token and no tag: calls are spelled by the format's own syntax. Invariant: the ids are
those that a session would hold after the same outputs, and only what a model writes is trained:
calls, answers and the id that ends them.
"""

from __future__ import annotations

from cedagent.chat.chatml_calls import TaggedJson
from cedagent.chat.template import ChatFormat
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import UsageError
from cedagent.upcycle.data.conversation import Conversation, Example, Said, SpokenCall


def render(conversation: Conversation, fmt: ChatFormat, *, tokenizer: Tokenizer) -> Example:
    """Return the ids of a whole conversation and which of them are trained.

    Raises UsageError if the format does not spell its calls as tagged JSON.
    """
    ids = fmt.begin(conversation.system, conversation.tools)
    trained = [False] * len(ids)
    for turn in conversation.turns:
        appended = fmt.user(turn.user)
        for said in turn.outputs:
            written = output_ids(said, fmt, tokenizer=tokenizer)
            closing = fmt.closing(written)
            ids += [*appended, *written, *closing]
            trained += [False] * len(appended) + [said.trained] * len(written)
            trained += [False] * len(closing)
            appended = fmt.results(said.results)
    return Example(tuple(ids), tuple(trained))


def output_ids(said: Said, fmt: ChatFormat, *, tokenizer: Tokenizer) -> list[int]:
    """Return the ids that a model samples for one output, the id that ends it included."""
    text = spell(said.calls, fmt) if said.calls else said.text
    return [*tokenizer.encode(text), min(fmt.stop_ids)]


def spell(calls: tuple[SpokenCall, ...], fmt: ChatFormat) -> str:
    """Return the calls of one output, as the call grammar spells them."""
    syntax = fmt.call_syntax
    if not isinstance(syntax, TaggedJson):
        raise UsageError(f"expected the chat format chatml to teach tools in, got {fmt.name}")
    return syntax.separator.join(syntax.call(name, arguments) for name, arguments in calls)
