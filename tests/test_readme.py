"""The README's program runs as it stands, and the commands and variables it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import cedagent
from cedagent.cli.main import COMMANDS, cli
from cedagent.testing import ScriptedModel, call, write_tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    write_tiny_tokenizer(tmp_path)
    model = ScriptedModel(
        [call("count_letters", word="window"), "It has 6 letters."], model_dir=tmp_path
    )
    monkeypatch.setattr(cedagent.Engine, "load", lambda name: model)
    module: dict[str, object] = {"__name__": "readme_program"}
    exec(compile(program, "README.md", "exec"), module)
    assert "It has 6 letters." in capsys.readouterr().out
    result = module["result"]
    assert isinstance(result, cedagent.RunResult)
    assert [(c.name, c.result) for c in result.tool_calls] == [("count_letters", "6")]


def test_every_command_is_in_the_table_with_its_subcommands() -> None:
    rows = dict(re.findall(r"\| `cedagent (\w+)([^`]*)`", README))
    assert set(rows) == set(COMMANDS)
    for name, rest in rows.items():
        wanted = set(re.findall(r"\b[a-z]+\b", rest)) if "|" in rest else set()
        shown = CliRunner().invoke(cli, [name, "--help"]).output
        for word in wanted:
            assert re.search(rf"^  {word}\s", shown, re.MULTILINE), (name, word)


def test_every_environment_variable_in_the_code_is_in_the_table() -> None:
    used = {
        name
        for folder in ("cedagent", "kvstore", "kernels")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\bCEDAGENT_[A-Z_]+\b", path.read_text(encoding="utf-8"))
    }
    listed = set(re.findall(r"^\| `(CEDAGENT_[A-Z_]+)`", README, re.MULTILINE))
    assert used == listed


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (chat|test|lint|bench|\w+)\b", README)) <= targets


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/structure.md"])
def test_links_inside_the_repository_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
