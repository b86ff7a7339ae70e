"""Messages to token ids and back: tokenizer, chat formats, parsers, the grammar of calls.

Loads no torch and knows no engine.
"""

from cedagent.chat.grammar import CallGrammar, Constraint
from cedagent.chat.output import (
    ArgsDelta,
    Call,
    CallEnd,
    CallStart,
    Output,
    OutputParser,
    ParserEvent,
    TextDelta,
)
from cedagent.chat.template import CallSyntax, ChatFormat, ToolSpec, chat_format
from cedagent.chat.tokenizer import TextStream, Tokenizer

__all__ = [
    "ArgsDelta",
    "Call",
    "CallEnd",
    "CallGrammar",
    "CallStart",
    "CallSyntax",
    "ChatFormat",
    "Constraint",
    "Output",
    "OutputParser",
    "ParserEvent",
    "TextDelta",
    "TextStream",
    "Tokenizer",
    "ToolSpec",
    "chat_format",
]
