"""From options to an engine and tools: finds or fetches the model, imports tool files.

It translates what goes wrong in a user's file or name into one line, and decides nothing about how
a run goes. Nothing here loads torch before a model is really needed.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from cedagent.cli.render import warn
from cedagent.errors import CedError, UsageError
from cedagent.model.locate import DEFAULT_MODEL, resolve_model
from cedagent.paths import kv_dir

if TYPE_CHECKING:
    from cedagent.agent.tools import Tool
    from cedagent.engine import Engine
    from cedagent.model.weights_choice import WeightsChoice


def ensure_model(model: str, *, pull: bool = False, ask: bool = False) -> Path:
    """Return the directory of a model; the default one is fetched if `pull` or the user says so.

    Raises UsageError when there is no such model.
    """
    try:
        return resolve_model(model)
    except UsageError:
        if model != DEFAULT_MODEL:
            raise
        question = f"The default model {model} is not here yet. Get it (93 MB) and convert it now?"
        if not pull and not (ask and click.confirm(question, default=True, err=True)):
            raise
    from cedagent.cli.model import pull_model

    pull_model(model)
    return resolve_model(model)


def open_engine(
    model: str,
    *,
    kv: Path | None = None,
    no_kv: bool = False,
    weights: WeightsChoice = "auto",
) -> Engine:
    """Load a model with the prefix store that the options name; raises CedError."""
    if kv is not None and no_kv:
        raise UsageError("--kv and --no-kv contradict each other; give one of them")
    from cedagent.engine import Engine

    engine = Engine.load(model, kv=None if no_kv else kv or kv_dir(), weights=weights)
    # Python would look for garbage among torch's 170,000 objects in the middle of the first answer,
    # for 65 to 93 ms; there is none among them.
    gc.freeze()
    return engine


def warn_of(engine: Engine) -> None:
    """Show what an engine has to say to the user, for commands that do so once."""
    for notice in engine.notices:
        warn(notice)


def load_tools(sources: Sequence[str], *, builtin: bool) -> list[Tool]:
    """Return the built-in tools, if wanted, and those of every source; raises UsageError.

    A source is a Python file (all its tools), a module, or either with `:NAME`.
    """
    tools: list[Tool] = []
    if builtin:
        from cedagent.agent.builtin import builtin_tools

        tools += builtin_tools()
    for source in sources:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            tools += _tools_of(source)
        for warning in caught:
            warn(str(warning.message))
    return tools


def _tools_of(source: str) -> list[Tool]:
    from cedagent.agent.tools import Tool, tool

    place, _, name = source.partition(":")
    module = _import_file(Path(place)) if _is_file(place) else _import_module(place)
    if name:
        try:
            found = getattr(module, name)
        except AttributeError:
            raise UsageError(f"-t {source}: {place} has no {name}") from None
        return [found if isinstance(found, Tool) else tool(found)]
    tools = list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, Tool)))
    if not tools:
        raise UsageError(
            f"-t {source}: expected at least one tool, got none; put @cedagent.tool on a function"
        )
    return tools


def _is_file(place: str) -> bool:
    path = Path(place)
    if path.is_dir() and not (path / "__init__.py").is_file():
        return True
    return place.endswith(".py") or "/" in place or path.is_file()


def _import_file(path: Path) -> ModuleType:
    path = path.expanduser()
    if path.is_dir():
        raise UsageError(f"-t {path}: is a folder; expected a Python file with tools")
    if not path.is_file():
        raise UsageError(f"-t {path}: no such file; expected a Python file with tools")
    # Registered under a name of its own: type hints are resolved through the module.
    name = f"cedagent_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"-t {path}: expected a Python file, named *.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _import_error(str(path), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    # A script's own folder is not the user's: `-t mytools:f` means the working directory's.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"-t {name}: no module of that name; a file is named with its .py"
            ) from None
        raise _import_error(name, error) from error
    except BaseException as error:
        raise _import_error(name, error) from error


def _import_error(place: str, error: BaseException) -> BaseException:
    """Return what to raise for an exception that importing a user's code raised."""
    if isinstance(error, CedError | KeyboardInterrupt):
        return error
    if isinstance(error, SyntaxError):
        at = f"line {error.lineno}: " if error.lineno else ""
        return UsageError(f"-t {place}: {at}not Python: {error.msg}")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == place]
    where = f"line {lines[-1]}: " if lines else ""
    first = (str(error).splitlines() or [""])[0]
    return UsageError(f"-t {place}: {where}{type(error).__name__}: {first}")
