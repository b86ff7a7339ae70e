"""Options that several commands share, so that one name means one thing everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from cedagent.cli.report import size
from cedagent.errors import UsageError
from cedagent.model.locate import DEFAULT_MODEL
from cedagent.model.weights_choice import WeightsChoice

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS = ("", "K", "M", "G", "T")
_BYTE_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?\s*", re.ASCII | re.IGNORECASE)

MOST_BYTES = 1 << 62
"""More than any budget of the store."""


def _number(
    what: str, accepts: Callable[[float], bool]
) -> Callable[[click.Context, click.Parameter, str], float]:
    """Return an option's callback that takes finite numbers and says in our words what it wants."""

    def convert(ctx: click.Context, param: click.Parameter, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not accepts(number):
            raise click.BadParameter(f"expected {what}, got {value}", ctx=ctx, param=param)
        return number

    return convert


def byte_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return an option's number of bytes: 5GB, 300 MB, 5GiB, 1000000."""
    if value is None:
        return None
    match = _BYTE_SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"expected a size such as 5GB, got {value}", ctx=ctx, param=param)
    number, unit, binary = match.groups(default="")
    n_bytes: float = float(number) * (1024 if binary else 1000) ** _UNITS.index(unit.upper())
    if n_bytes >= MOST_BYTES:
        expected = f"expected at most {size(MOST_BYTES)}"
        raise click.BadParameter(f"{expected}, got {value}", ctx=ctx, param=param)
    return round(n_bytes)


def model_option(command: Command) -> Command:
    """Add `-m MODEL`."""
    return click.option(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        envvar="CEDAGENT_MODEL",
        metavar="MODEL",
        help="Name of a model in the cache folder, or a model directory.",
    )(command)


def weights_option(command: Command) -> Command:
    """Add `--weights`."""
    return click.option(
        "--weights",
        type=click.Choice(get_args(WeightsChoice)),
        default="auto",
        show_default=True,
        help="How a deepseek_v41 model holds its weights: dequantize takes the memory of float32, "
        "keep that of the files and more time; the answers are the same.",
    )(command)


def kv_options(command: Command) -> Command:
    """Add `--kv DIR` and `--no-kv`."""
    command = click.option("--no-kv", is_flag=True, help="Keep nothing on disk, read nothing.")(
        command
    )
    return click.option(
        "--kv",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the prefix store (in the cache folder by default).",
    )(command)


def system_options(command: Command) -> Command:
    """Add what makes the system turn: `-s`, `-t`, `--no-builtin-tools`."""
    command = click.option(
        "--no-builtin-tools", is_flag=True, help="Offer only the tools that -t names."
    )(command)
    command = click.option(
        "-t",
        "--tools",
        "tool_sources",
        multiple=True,
        metavar="FILE.py|MODULE[:TOOL]",
        help="More tools; may be given several times.",
    )(command)
    return click.option(
        "-s", "--system", metavar="TEXT|@FILE", help="The system prompt, or @ and a file with it."
    )(command)


def sampling_options(command: Command) -> Command:
    """Add temperature, top-p, seed, and the limit of an output."""
    command = click.option(
        "--max-tokens", type=click.IntRange(min=1), metavar="N", help="Most tokens of one run."
    )(command)
    command = click.option(
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        metavar="N",
        help="Seed of the draws; drawn once per session when not given.",
    )(command)
    command = click.option(
        "--top-p",
        callback=_number("a number above 0 and at most 1", lambda p: 0 < p <= 1),
        default="1",
        show_default=True,
        metavar="P",
        help="Draw among the likeliest tokens that reach this probability.",
    )(command)
    return click.option(
        "--temperature",
        callback=_number("a number of at least 0", lambda t: t >= 0),
        default="0",
        show_default=True,
        metavar="T",
        help="0 always takes the likeliest token.",
    )(command)


def thinking_options(command: Command) -> Command:
    """Add `--thinking` and `--effort`."""
    command = click.option(
        "--effort",
        callback=_effort,
        metavar="N|low|high|max",
        help="How thoroughly to reason, 1 to 100 (with --thinking).",
    )(command)
    return click.option(
        "--thinking/--no-thinking",
        default=None,
        # Before --effort, which looks at it.
        is_eager=True,
        help="Reason before each answer, where the model's chat format can (off by default).",
    )(command)


def _effort(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    from cedagent.chat.dsml_render import effort_of

    try:
        effort = effort_of(int(value) if value.isdecimal() else value)
    except UsageError as error:
        raise click.BadParameter(
            str(error).removeprefix("effort: "), ctx=ctx, param=param
        ) from None
    if not ctx.params.get("thinking"):
        raise UsageError(f"--effort {value}: expected --thinking with it")
    return effort


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def read_text(path: Path, *, what: str) -> str:
    """Return a file's text; raises UsageError with the reason in one line."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what}: expected UTF-8 text in {path}, got byte {error.start} that is none"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{what}: cannot read {path}: {reason}") from None


def system_text(given: str | None) -> str | None:
    """Return the text of `-s`: as it stands, or a file's after @; raises UsageError."""
    if given is None or not given.startswith("@"):
        return given
    if given == "@":
        raise UsageError("-s @: expected the name of a file after @")
    return read_text(Path(given[1:]).expanduser(), what="-s")
