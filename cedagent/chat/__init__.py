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
    ThinkingDelta,
)
from cedagent.chat.release_template import load_tools_template
from cedagent.chat.template import (
    CallSyntax,
    ChatFormat,
    ToolSpec,
    chat_format,
    load_chat_format,
)
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
    "ThinkingDelta",
    "Tokenizer",
    "ToolSpec",
    "chat_format",
    "load_chat_format",
    "load_tools_template",
]
