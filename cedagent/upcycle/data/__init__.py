"""Training and evaluation data, all of it written or generated here.

Plain text for healing (`plain_examples`), conversations with tools for teaching (`tool_examples`),
held-out cases for judging (`tool_cases`). Everything is a function of a seed, a split and, for
plain text, of what is installed; no network, no data set of others.
"""

from __future__ import annotations

from cedagent.upcycle.data.cases import KINDS, heldout_conversations, tool_cases
from cedagent.upcycle.data.conversation import Case, Conversation, Example, Said, Split, Step, Turn
from cedagent.upcycle.data.examples import tool_examples
from cedagent.upcycle.data.own_samples import ChatPrompt, chat_prompts
from cedagent.upcycle.data.plain import interleaved, plain_example, plain_examples
from cedagent.upcycle.data.rendering import render

__all__ = [
    "KINDS",
    "Case",
    "ChatPrompt",
    "Conversation",
    "Example",
    "Said",
    "Split",
    "Step",
    "Turn",
    "chat_prompts",
    "heldout_conversations",
    "interleaved",
    "plain_example",
    "plain_examples",
    "render",
    "tool_cases",
    "tool_examples",
]
