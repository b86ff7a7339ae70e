from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import cedagent as ca
from cedagent.agent.builtin import builtin_tools, now
from cedagent.testing import ScriptedModel, call


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "sub" / ".hidden").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo Needle\nthree\n")
    (folder / "sub" / "b.py").write_text("x = 'needle é東🎉'\n")
    (folder / "sub" / ".hidden" / "c.txt").write_text("needle")
    (folder / "data.bin").write_bytes(b"needle\0\1\2")
    (tmp_path / "secret.txt").write_text("needle of another folder")
    (folder / "inside.txt").symlink_to(folder / "a.txt")
    (folder / "outside.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)
    return folder


@pytest.fixture
def tools(root: Path) -> dict[str, ca.Tool]:
    return {tool.name: tool for tool in builtin_tools(root)}


def context() -> ca.Context:
    return ca.Context("search_files", 0)


def test_names_and_descriptions(tools: dict[str, ca.Tool]) -> None:
    assert list(tools) == ["calculator", "now", "list_files", "read_file", "search_files"]
    for tool in tools.values():
        assert tool.description
        properties = tool.spec.parameters["properties"]
        # The calculator's one argument says what it is by its name.
        assert tool.name == "calculator" or all("description" in p for p in properties.values())
        assert "ctx" not in properties
        assert not tool.paged


def test_list_files(tools: dict[str, ca.Tool]) -> None:
    assert tools["list_files"]() == "a.txt\ndata.bin\ninside.txt\noutside.txt\nsub/\nup/"
    assert tools["list_files"]("sub", "*.py") == "b.py"
    assert "no file" in tools["list_files"](".", "*.none")
    with pytest.raises(ca.ToolError, match="no folder"):
        tools["list_files"]("a.txt")


def test_read_file(tools: dict[str, ca.Tool], root: Path) -> None:
    read = tools["read_file"]
    assert read("a.txt") == "one\ntwo Needle\nthree"
    assert read("inside.txt", 2, 1) == "two Needle\n[more from line 3]"
    assert read(str(root / "a.txt"), 3) == "three"
    with pytest.raises(ca.ToolError, match="no line 9"):
        read("a.txt", 9)
    with pytest.raises(ca.ToolError, match="no text file"):
        read("data.bin")
    with pytest.raises(ca.ToolError, match="no file"):
        read("sub")
    with pytest.raises(ca.ToolError, match="there is no none"):
        read("none")
    (root / "long.txt").write_text("x" * 100_000)
    assert len(read("long.txt")) < 3_000
    os.mkfifo(root / "pipe")
    with pytest.raises(ca.ToolError, match="no file"):
        read("pipe")


def test_search_files(tools: dict[str, ca.Tool], root: Path) -> None:
    search = tools["search_files"]
    found = search(context(), "NEEDLE").splitlines()
    assert found == [
        "a.txt:2: two Needle",
        "inside.txt:2: two Needle",
        "sub/b.py:1: x = 'needle é東🎉'",
    ]
    assert search(context(), "needle", ".", "*.py").startswith("sub/b.py:1:")
    assert search(context(), "needle", "a.txt") == "a.txt:2: two Needle"
    assert "does not occur" in search(context(), "haystack")
    (root / "many.txt").write_text("needle\n" * 500)
    assert search(context(), "needle").endswith("[more; narrow the search]")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "sub/../../secret.txt",
        "sub/../a.txt",
        "/etc/passwd",
        "outside.txt",
        "up/secret.txt",
        "up",
        "~/x",
        "a\0b",
    ],
)
def test_nothing_outside_the_folder_is_read(tools: dict[str, ca.Tool], path: str) -> None:
    for use in (
        lambda: tools["read_file"](path),
        lambda: tools["list_files"](path),
        lambda: tools["search_files"](context(), "needle", path),
    ):
        with pytest.raises(ca.ToolError) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_now(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = r"[A-Z]\w+day \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
    assert re.fullmatch(pattern, now())
    assert now("UTC").endswith("+00:00")
    with pytest.raises(ca.ToolError, match="time zone"):
        now("Nowhere/Here")
    with pytest.raises(ca.ToolError, match="time zone"):
        now("../../etc/passwd")


def test_the_working_directory_is_the_default(
    root: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path
) -> None:
    monkeypatch.chdir(root)
    outputs = [
        call("read_file", path="a.txt") + "\n" + call("search_files", text="needle", folder="sub"),
        "Done.",
    ]
    agent = ca.Agent(ScriptedModel(outputs, model_dir=tiny), tools=builtin_tools())
    results = [made.result for made in agent.run("Go.").tool_calls]
    assert results == ["one\ntwo Needle\nthree", "sub/b.py:1: x = 'needle é東🎉'"]
