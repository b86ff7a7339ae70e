"""`@tool`: a typed Python function offered to a model, and what such a function may use or raise.

Knows nothing of sessions or engines. The description, the schema and the accepted arguments all
come from the function itself; there is no registry, a Tool is a value that is handed to an Agent.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from cedagent.agent.choice import CHOICES
from cedagent.agent.schema import Signature, read_signature
from cedagent.agent.settings import check_settings
from cedagent.agent.signature import (
    UnresolvedHint,
    body_of,
    check_parameters,
    description_of,
    place_of,
)
from cedagent.chat.json_line import dumps
from cedagent.chat.template import ToolSpec
from cedagent.errors import ToolDefinitionError

Approve = Literal["always", "ask", "never"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class ToolError(Exception):
    """Raised by a tool to tell the model, in its own words, what went wrong."""


class Abort(Exception):
    """Raised by a tool to end the run with the stop reason `error`."""


class Context:
    """What a tool may ask of the run that calls it; injected where a parameter is annotated so."""

    __slots__ = ("_is_cancelled", "_notify", "_page", "call_id", "session", "tool")

    def __init__(
        self,
        tool: str,
        call_id: int,
        *,
        session: str | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = lambda message: None,
        page: Callable[[str, int], str] | None = None,
    ) -> None:
        self.tool = tool
        self.call_id = call_id
        self.session = session
        self._is_cancelled = is_cancelled
        self._notify = notify
        self._page = page

    @property
    def cancelled(self) -> bool:
        """True once the run was cancelled or this call timed out: a long tool should return."""
        return self._is_cancelled()

    def notify(self, message: str) -> None:
        """Show one line to the person at the other end, as a Notice event."""
        self._notify(message)

    def page(self, result_id: str, offset: int) -> str:
        """Return a part of a result that was cut, from a character on; raises ToolError."""
        if self._page is None:
            raise ToolError("no results are kept here")
        return self._page(result_id, offset)


@dataclass(frozen=True, eq=False)
class Tool:
    """A function with what a model needs to call it; calling a Tool calls the function."""

    function: Callable[..., Any]
    name: str
    description: str
    examples: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Worked calls, (question, arguments), shown to the model below the schemas."""
    timeout: float | None = None
    """Seconds until the call is answered with an error; a thread itself cannot be stopped."""
    approve: Approve = "always"
    """`always` runs, `ask` asks the agent's `approve` callback first, `never` refuses."""
    max_chars: int | None = None
    """Most characters of a result, besides the cap in tokens."""
    paged: bool = True
    """Keep the whole of a cut result and offer `more` to read on."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def signature(self) -> Signature:
        """The resolved signature; raises ToolDefinitionError while a hint cannot be resolved."""
        return read_signature(self.function, context_type=Context)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """What the chat format renders; raises ToolDefinitionError."""
        for question, arguments in self.examples:
            try:
                self.signature.convert(arguments)
                dumps(arguments)
            except ValueError as error:
                raise ToolDefinitionError(
                    f"tool {place_of(self.function)}: the example {question!r} does not fit its "
                    f"own parameters: {error}"
                ) from None
        return ToolSpec(self.name, self.description, self.signature.parameters, self.examples)

    @property
    def is_async(self) -> bool:
        """True for a coroutine function, which runs on the event loop and not in a thread."""
        target: Any = self.function
        while isinstance(target, functools.partial):
            target = target.func
        return inspect.iscoroutinefunction(body_of(target))


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[tuple[str, Mapping[str, Any]]] = (),
    timeout: float | None = None,
    approve: Approve = "always",
    max_chars: int | None = None,
    paged: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[tuple[str, Mapping[str, Any]]] = (),
    timeout: float | None = None,
    approve: Approve = "always",
    max_chars: int | None = None,
    paged: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Offer a function to a model, bare (`@tool`) or with settings (`@tool(timeout=10)`).

    Raises ToolDefinitionError with file and line where a parameter cannot be described.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return _make(
            function,
            name=name,
            description=description,
            examples=examples,
            timeout=timeout,
            approve=approve,
            max_chars=max_chars,
            paged=paged,
        )

    return make if function is None else make(function)


def _make(
    function: Callable[..., Any], *, name: str | None, description: str | None, **settings: Any
) -> Tool:
    if isinstance(function, Tool):
        raise ToolDefinitionError(f"tool {function.name} is a tool already; drop one @tool")
    if not callable(function):
        raise ToolDefinitionError(f"expected a function, got {type(function).__name__}")
    place = place_of(function)
    check_parameters(function)
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    name = str(name or getattr(target, "__name__", type(target).__name__))
    if not _NAME.fullmatch(name) or name in CHOICES:
        raise ToolDefinitionError(
            f"tool {place}: {name!r} is no name for a tool; expected letters, digits, '_' and '-', "
            f"none of {', '.join(CHOICES)}; give one with tool(name=...)"
        )
    check_settings(place, description=description, **settings)
    text = description_of(function) if description is None else description
    if not text:
        warnings.warn(
            f"tool {place} has no description; a model knows it by its name only, "
            "write a docstring",
            stacklevel=4,
        )
    pairs = tuple((question, dict(arguments)) for question, arguments in settings.pop("examples"))
    made = Tool(function, name, text, pairs, **settings)
    try:
        _ = made.spec
    except UnresolvedHint:
        # A class that is defined further down; the hint is read again when the tool is used.
        return made
    return made


def as_tools(items: Sequence[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    """Return the items as Tools with distinct names; plain functions are wrapped."""
    tools = tuple(item if isinstance(item, Tool) else tool(item) for item in items)
    seen: dict[str, Tool] = {}
    for item in tools:
        if item.name in seen:
            raise ToolDefinitionError(
                f"two tools are called {item.name}: {place_of(seen[item.name].function)} and "
                f"{place_of(item.function)}; rename one with tool(name=...)"
            )
        seen[item.name] = item
        _ = item.spec
    return tools
