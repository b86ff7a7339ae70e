"""The wording that a checkpoint brings is read as a literal and never executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cedagent.chat import Tokenizer, load_chat_format, load_tools_template
from cedagent.chat.control import Mark
from cedagent.chat.template import ToolSpec
from cedagent.model.tokenizer_build import build_tiny
from tests.chat.reading import shown

VECTORS = Path(__file__).parents[1] / "vectors" / "chat" / "dsml_vectors.json"
NOW = ToolSpec("now", "", {"type": "object", "properties": {}})


def write(model_dir: Path, text: str, name: str = "encoding.py") -> Path:
    path = model_dir / "encoding" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "source",
    [
        "TOOLS_SYSTEM_TEMPLATE = '''a {tool_schemas} \u00e9\n'''",
        "TOOLS_TEMPLATE: str = 'a {tool_schemas} ' 'é' \\\n    '\\n'",
        "import nothing_like_it\nOTHER = 1\nX = Y = (\n 'a {tool_schemas}'\n ' é\\n')\nraise 1",
        "Z = '{tool_schemas} of another kind'\nMY_TOOLS = 'a {tool_schemas} é\\n'",
    ],
)
def test_a_module_level_string_with_the_place_is_found(tmp_path: Path, source: str) -> None:
    write(tmp_path, source)
    assert load_tools_template(tmp_path) == "a {tool_schemas} é\n"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "TOOLS = 'no place'",
        "TOOLS = '{tool_schemas} {tool_schemas}'",
        "TOOLS = f'{1} {{tool_schemas}}'",
        "TOOLS = 'a'.join(['{tool_schemas}'])",
        "TOOLS = b'{tool_schemas}'",
        "def f():\n    TOOLS = '{tool_schemas}'",
        "TOOLS = '{tool_schemas}' if True else ''",
        "this is no Python {tool_schemas}",
        "TOOLS = '\0{tool_schemas}'",
        "TOOLS: str",
        "x = " + "(" * 5000 + ")" * 5000,
    ],
)
def test_what_is_no_such_literal_is_passed_over(tmp_path: Path, source: str) -> None:
    write(tmp_path, source, "a.py")
    assert load_tools_template(tmp_path) is None
    write(tmp_path, "TOOLS = 'x {tool_schemas}'", "b.py")
    assert load_tools_template(tmp_path) == "x {tool_schemas}"


def test_nothing_there_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    write(
        tmp_path,
        f"open({str(trap)!r}, 'w')\nTOOLS = open({str(trap)!r}, 'w') or '{{tool_schemas}}'",
    )
    assert load_tools_template(tmp_path) is None
    assert not trap.exists()


def test_a_folder_that_is_not_there_or_not_text_brings_none(tmp_path: Path) -> None:
    assert load_tools_template(tmp_path) is None
    write(tmp_path, "TOOLS = '{tool_schemas}'", "notes.txt")
    (tmp_path / "encoding" / "bytes.py").write_bytes(b"\xff\xfe TOOLS = '{tool_schemas}'")
    (tmp_path / "encoding" / "folder.py").mkdir()
    assert load_tools_template(tmp_path) is None


def test_a_model_directorys_format_uses_its_wording(tmp_path: Path, tiny_dsml: Tokenizer) -> None:
    template = json.loads(VECTORS.read_text("utf-8"))["tools_template"]
    write(tmp_path, f"import torch_that_is_not_here\nTOOLS_TEMPLATE = {template!r}\n")
    fmt = load_chat_format(tmp_path, "dsml", tokenizer=tiny_dsml, thinking=True, effort=3)
    assert (fmt.thinking, fmt.effort) == (True, 3)
    text = shown(tiny_dsml, fmt.begin("", [NOW]))
    assert f'You can invoke tools by writing a "<{Mark.DSML} calls>" block' in text
    own = load_chat_format(
        tmp_path, "dsml", tokenizer=tiny_dsml, tools_template="Mine: {tool_schemas}"
    )
    assert "\n\nMine: {" in shown(tiny_dsml, own.begin("", [NOW]))
    # Another format has another place for its tools.
    chatml = load_chat_format(tmp_path, "chatml", tokenizer=Tokenizer(build_tiny().to_str()))
    assert chatml.name == "chatml"
