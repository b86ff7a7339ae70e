"""Every error that cedagent raises on purpose, as one small tree.

    CedError                     exit code
    ├── UsageError               2   an argument, a file or a name is wrong
    │   ├── ConfigError          2   config.json says something we do not serve
    │   ├── WeightsError         2   a tensor is missing, misshapen or misnamed
    │   ├── ToolDefinitionError  2   a function cannot be offered as a tool
    │   └── SessionError         2   a session cannot be resumed as asked
    ├── ChatFormatError          5   text is not what the chat format allows
    ├── ContextLimitError        3   the context is full
    └── EngineError              5   the engine cannot go on

A message says what was expected, what came, and what to do, on one line. The prefix store has its
own base, `ced_kvstore.StoreError`; the engine translates at the border.
"""

from __future__ import annotations


class CedError(Exception):
    """Base of all errors that cedagent raises on purpose."""

    exit_code = 5


class UsageError(CedError):
    """An argument, a file or a name is wrong; nothing was changed."""

    exit_code = 2


class ConfigError(UsageError):
    """A config.json is missing, unreadable, contradictory, or asks for what is not served."""


class WeightsError(UsageError):
    """A checkpoint's tensors do not fit its config; the message names the tensor."""


class ToolDefinitionError(UsageError):
    """A function cannot be offered as a tool; the message names it with file and line."""


class SessionError(UsageError):
    """A session cannot be opened or resumed as asked; its log is left as it is."""


class ChatFormatError(CedError):
    """Text or messages do not follow the chat format."""


class ContextLimitError(CedError):
    """The tokens do not fit the model's context; nothing was appended."""

    exit_code = 3


class EngineError(CedError):
    """The engine cannot go on; the session's log is intact."""
