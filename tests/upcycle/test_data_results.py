"""Results and errors that are taught look as the real tools write them."""

from __future__ import annotations

import fnmatch
import itertools
import re

import pytest

import cedagent as ca
from cedagent.agent.builtin import builtin_tools
from cedagent.agent.results import Cutter, Kept
from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.files import file_skills
from cedagent.upcycle.data.folders import folder_skills
from cedagent.upcycle.data.needle import cut_needle
from cedagent.upcycle.data.skill import make_task
from cedagent.upcycle.data.skills import builtin
from cedagent.upcycle.data.trouble import missing_file, wrong_zone


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ca.Tool]:
    root = tmp_path_factory.mktemp("files")
    (root / "docs").mkdir()
    (root / "docs" / "inner").mkdir()
    (root / "docs" / "a.txt").write_text("one\nsee needle\nthree\n")
    return {tool.name: tool for tool in builtin_tools(root)}


def test_listings_look_like_the_real_tools(real) -> None:
    assert real["list_files"](folder="docs") == "a.txt\ninner/"
    for skill, i in itertools.product(folder_skills(), range(30)):
        task = make_task(skill, Draw(f"l{i}", split="train"))
        names = task.result.split("\n")
        assert names == sorted(names)
        pattern = task.arguments.get("pattern", "*")
        assert all(fnmatch.fnmatchcase(name.rstrip("/"), pattern) for name in names)


def test_searches_look_like_the_real_tools(real) -> None:
    context = ca.Context("search_files", 0)
    found = real["search_files"].function(text="NEEDLE", ctx=context)
    assert found == "docs/a.txt:2: see needle"
    nothing = real["search_files"].function(text="it's", ctx=context)
    search = file_skills()[-1]
    empty = 0
    for i in range(60):
        task = make_task(search, Draw(f"s{i}", split="train"))
        text = task.arguments["text"]
        if task.result == f"[{text!r} does not occur]":
            empty += 1
            assert nothing == nothing.replace("it's", text).replace(text, "it's")
            continue
        for line in task.result.split("\n"):
            path, number, rest = line.split(":", 2)
            assert number.isdigit()
            assert text in rest
            assert path.startswith(task.arguments.get("folder", ""))
            assert path in task.answer
    assert 1 < empty < 30


def test_errors_are_the_real_tools_own(real) -> None:
    scene = missing_file(Draw("e", split="train"))
    error = scene.turns[0].outputs[0].results[0]
    path = scene.turns[0].outputs[0].calls[0][1]["path"]
    with pytest.raises(ca.ToolError) as raised:
        real["read_file"](path=path)
    assert error == f"Error: {raised.value}"
    said = wrong_zone(Draw("z", split="train")).turns[0].outputs[0]
    with pytest.raises(ca.ToolError) as raised:
        real["now"](timezone=said.calls[0][1]["timezone"])
    assert said.results[0] == f"Error: {raised.value}"
    assert not said.trained


def test_the_clock_looks_like_the_real_one(real) -> None:
    shape = r"(\w+day) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
    assert re.fullmatch(shape, real["now"]())
    clocks = [skill for skill in builtin() if skill.spec.name == "now"]
    for skill, i in itertools.product(clocks, range(20)):
        assert re.fullmatch(shape, make_task(skill, Draw(f"c{i}", split="train")).result)


def test_a_cut_result_is_cut_as_the_runtime_cuts() -> None:
    tokenizer = Tokenizer(build_tiny().to_str())
    kept = Kept()
    cutter = Cutter(tokenizer, max_tokens=200, kept=kept, pages=True)
    text = "\n".join(f"line {i}" for i in range(200))
    real = cutter.cut(text, result_id="r1", max_chars=None, paged=True)
    shape = re.compile(
        r'(.*)\n\[(\d+) of (\d+) characters left out; read on with more\(result_id="r1", '
        r"offset=(\d+)\)\]\n(.*)",
        re.DOTALL,
    )
    assert shape.fullmatch(real)
    for i in range(12):
        draw = Draw(f"cut{i}", split="train")
        scene = cut_needle(draw, 600, count=lambda text: len(tokenizer.encode(text)))
        first, second, answer = scene.turns[0].outputs
        match = shape.fullmatch(first.results[0])
        assert match is not None
        head, missing, total, offset, tail = match.groups()
        assert len(head) == int(offset) == second.calls[0][1]["offset"]
        assert len(head) + int(missing) + len(tail) == int(total)
        rest = second.results[0]
        assert rest.endswith(tail)
        assert len(head) + len(rest) == int(total)
        assert answer.contains[0] in rest
        assert answer.contains[0] in answer.text
