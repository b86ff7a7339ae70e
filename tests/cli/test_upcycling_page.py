"""docs/upcycling.md: every command on it is one that there is, and all of them in order work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from plain_llama import random_parent, write_hf_folder

from cedagent.cli.main import cli as commands
from cedagent.model.tokenizer_build import build_tiny

Cli = Callable[..., Any]
PAGE = (Path(__file__).parents[2] / "docs" / "upcycling.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [block for language, block in FENCED.findall(PAGE) if not language]
WALK = [line for line in BLOCKS[0].splitlines() if line]
PROSE = FENCED.sub("", PAGE)


def parse(line: str) -> None:
    """Read a command line as far as its options and arguments go."""
    program, *argv = shlex.split(line)
    assert program == "cedagent"
    command: click.Command = commands
    context = click.Context(commands)
    while isinstance(command, click.Group):
        name, found, argv = command.resolve_command(context, argv)
        assert name is not None
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_context(command.name, argv, parent=context.parent)


@pytest.mark.parametrize("line", [line for block in BLOCKS for line in block.splitlines() if line])
def test_a_command_of_the_page_has_the_arguments_and_options_that_there_are(line: str) -> None:
    parse(line)


def test_commands_and_options_in_the_text_are_there() -> None:
    lines = [" ".join(line.split()) for line in re.findall(r"`(cedagent [^`]+)`", PROSE)]
    assert len(lines) >= 5
    known = set()
    for line in lines:
        try:
            parse(line)
        except click.MissingParameter:
            # A command that is named without its arguments.
            continue
    for name in ("windows", "convert", "heal", "answers", "teach", "apply", "eval"):
        command = commands.get_command(click.Context(commands), "model")
        assert isinstance(command, click.Group)
        assert f"model {name}" in PAGE
        known |= {option for param in command.commands[name].params for option in param.opts}
    named = set(re.findall(r"`[^`]*?(--[a-z][a-z0-9-]+)", PROSE))
    assert named <= known


@pytest.mark.slow
def test_the_walk_of_the_page_makes_a_model_that_answers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent of four layers in place of thirty; steps in place of minutes."""
    config, tensors = random_parent(layers=4, hidden=64, heads=2, head_dim=32, tied=False)
    config["max_position_embeddings"] = 4096
    # Nearly every token is as likely as any other, so that some answers come to an end.
    tensors["lm_head.weight"] *= 0.05
    write_hf_folder(tmp_path / "parent.gguf", config, tensors, build_tiny(384))
    monkeypatch.chdir(tmp_path)
    small = "--steps 1 --rank 2 --batch-tokens 1500 --pass-tokens 1500"
    other = {
        "--encoder-layers 20": "--encoder-layers 3",
        "--encoder-layers 30": "--encoder-layers 4",
        "--minutes 120": small,
        "answers.jsonl": "answers.jsonl -n 12",
        "-n 12 --minutes": "--minutes",
        "my-model --parent": "my-model --suite text --quick --texts 1 --parent",
        "cedagent chat": "cedagent chat -p hello --max-tokens 3 --no-kv",
    }
    chosen = "0"
    for line in WALK:
        for before, after in other.items():
            line = line.replace(before, after)
        line = re.sub(r"--global-layers \S+", f"--global-layers {chosen}", line)
        line = line.replace("--answers answers.jsonl -n 12", "--answers answers.jsonl")
        ran = cli(*shlex.split(line)[1:])
        # An output that was cut off is a limit.
        assert ran.code in ((0, 3) if " chat " in line else (0,)), (line, ran.err)
        if " windows " in line:
            rows = [row.split() for row in ran.out.splitlines()]
            (chosen,) = (row[1] for row in rows if row[:1] == ["2"])
    assert (tmp_path / "my-model" / "model-int8.safetensors").is_file()
    # What was stopped, or is as it should be, ends with fewer minutes.
    line = BLOCKS[1].strip().replace("--minutes 1", f"--minutes 0.0001 {small}")
    assert cli(*shlex.split(line)[1:]).code == 0
