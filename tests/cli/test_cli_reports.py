"""`doctor`, `bench`, `model`, `tools check`, `--version`: they say what is so."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent import __version__
from cedagent.cli import probe
from cedagent.cli.figures import of_runs
from cedagent.cli.loading import open_engine
from cedagent.engine import Engine

Cli = Callable[..., Any]


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out == f"cedagent {__version__}\n"
    helped = cli("--help")
    assert helped.code == 0
    for name in ("chat", "run", "warm", "kv", "sessions", "tools", "model", "doctor", "bench"):
        assert f"  {name} " in helped.out


def test_doctor_reports_the_machine_and_makes_nothing(cli: Cli, tiny: Path, home: Path) -> None:
    findings = {f["name"]: f for f in json.loads(cli("doctor", "-m", tiny, "--json").out)}
    assert findings["int8"]["value"] in ("int_mm", "int8_fp32")
    assert "3 encoder + 3 decoder" in findings["model"]["value"]
    assert findings["store"]["value"] == "not made yet"
    assert findings["kernels"]["value"]
    assert [path.name for path in home.rglob("*") if not path.is_symlink()] == ["cache"]


def test_doctor_says_that_a_named_model_is_missing_and_exits_with_2(cli: Cli) -> None:
    ran = cli("doctor", "-m", "nobody")
    assert ran.code == 2
    assert [line for line in ran.out.splitlines() if line.startswith("! model")]


def test_doctor_before_the_first_pull_says_how_to_get_the_model(cli: Cli) -> None:
    ran = cli("doctor")
    assert ran.code == 0
    (line,) = [line for line in ran.out.splitlines() if line.startswith("! model")]
    assert "cedagent model pull" in line


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("file", "spoil", "part"),
    [
        ("model-int8.safetensors", Path.unlink, "no such file"),
        ("model-int8.safetensors", _cut, "not a safetensors file"),
        ("tokenizer.json", Path.unlink, "tokenizer.json"),
        ("tokenizer.json", _cut, "tokenizer.json"),
        ("config.json", lambda p: p.write_text(p.read_text().replace("chatml", "x")), "'x'"),
        ("config.json", _cut, "config.json"),
    ],
)
def test_doctor_finds_what_a_chat_would_stumble_over(
    cli: Cli, tiny: Path, tmp_path: Path, file: str, spoil: Callable[[Path], object], part: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    assert cli("doctor", "-m", model).code == 0
    spoil(model / file)
    ran = cli("doctor", "-m", model)
    assert ran.code == 2
    (line,) = [line for line in ran.out.splitlines() if line.startswith("! model")]
    assert part in line
    assert cli("chat", "-m", model, "-p", "x").code != 0


def test_doctor_names_a_tensor_of_another_shape(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    config = json.loads((model / "config.json").read_text())
    config["intermediate_size"] += 2
    (model / "config.json").write_text(json.dumps(config))
    ran = cli("doctor", "-m", model)
    assert ran.code == 2
    assert "mlp.gate_proj.weight: expected" in ran.out


def test_doctor_says_that_slower_kernels_run_without_a_compiler(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    findings = {f["name"]: f for f in json.loads(cli("doctor", "-m", tiny, "--json").out)}
    assert findings["kernels"]["value"] == "reference"
    assert not findings["kernels"]["good"]
    assert "slower" in findings["kernels"]["note"]


@pytest.mark.slow
def test_doctor_says_why_the_slower_product_runs() -> None:
    code = (
        "import json; from cedagent.cli.doctor import _arithmetic;"
        "found = next(f for f in _arithmetic() if f.name == 'int8');"
        "print(json.dumps([found.value, found.note]))"
    )
    got = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {"ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    impl, note = json.loads(got.stdout)
    assert (impl == "int8_fp32") == ("saturates" in note)


def test_model_cost_counts_the_published_half(cli: Cli, tiny: Path) -> None:
    found = json.loads(cli("model", "cost", tiny, "--tokens", "32768", "--json").out)
    assert found["ced_token_layers"] == 32768 * 3 + 128 * 3
    assert "50.2%" in cli("model", "cost", tiny, "--tokens", "32768").out


def test_model_score_agrees_with_the_logits(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.engine import Engine

    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 3)
    ids = Tokenizer.load(tiny).encode(text.read_text())
    logits = Engine.load(tiny).logits(ids)
    nats = sum(
        -float(logits[pos].double().log_softmax(-1)[token]) for pos, token in enumerate(ids[1:])
    )
    found = json.loads(cli("model", "score", text, "-m", tiny, "--json").out)
    assert found["tokens"] == len(ids) - 1
    assert found["bits_per_token"] == pytest.approx(nats / (len(ids) - 1) / 0.6931471805599453)


def test_model_score_of_an_empty_text_is_one_line(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("")
    ran = cli("model", "score", text, "-m", tiny)
    assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_model_tiny_writes_a_model_that_answers(cli: Cli, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert cli("model", "tiny", made).out == f"{made}\n"
    assert cli("run", "x", "-m", made, "--max-tokens", "2", "--no-kv").code in (0, 3)
    assert cli("model", "tiny", made).code == 2


def test_tools_check_prints_schemas_and_cost(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from cedagent import tool\n\n@tool(examples=[('How long is tree?', {'word': 'tree'})])\n"
        "def count(word: str, twice: bool = False) -> int:\n    'Count letters.'\n    return 1\n"
    )
    (row,) = json.loads(cli("tools", "check", path, "-m", tiny, "--json").out)
    assert (row["name"], row["description"]) == ("count", "Count letters.")
    assert row["parameters"]["required"] == ["word"]
    assert row["tokens"] > 20
    shown = cli("tools", "check", path, "-m", tiny).out
    assert "How long is tree? -> " in shown
    assert "calculator" in cli("tools", "check", "-m", tiny).out


@pytest.mark.slow
@pytest.mark.parametrize("load", [open_engine, probe._load], ids=["a command", "bench"])
def test_no_answer_waits_for_a_look_through_what_was_loaded(
    tiny: Path, tmp_path: Path, load: Callable[..., Engine]
) -> None:
    """Python's full collection takes 70 ms with torch loaded, and comes when it likes."""
    gc.unfreeze()
    try:
        load(str(tiny), kv=tmp_path / "kv").close()
        assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_bench_prints_every_situation_for_both_models(cli: Cli, tiny: Path, home: Path) -> None:
    ran = cli("bench", "--quick", "-m", tiny, "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["hit_equals_cold"] is True
    situations = [row["situation"] for row in report["first_token"]]
    assert situations == ["cold", "append", "append_odd", "restart", "warm", "not_warm"]
    for row in report["first_token"]:
        for figures in row["times"].values():
            assert figures["min_s"] <= figures["median_s"] <= figures["max_s"]
            assert figures["min_s"] > 0
    twins = [path.name for path in (home / "cache" / "bench").iterdir()]
    assert twins == [f"{tiny.name}-decoder-only"]
    assert not (home / "cache" / "models").exists(), "a chat would be offered the twin"
    on_disk = report["bytes_per_token_on_disk"]
    assert on_disk["decoder-only"] > on_disk["cedagent"] > 0


def test_bench_refuses_to_report_when_a_hit_differs_from_cold(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lying(name: str, **arguments: Any) -> dict[str, Any]:
        if name == "first_process":
            times = {"cold": 1.0, "append": 1.0, "append_odd": 1.0}
            return {"times": times, "bytes_per_token": 1.0, "digests": ["a"]}
        return {"seconds": 1.0, "rerun": 0, "digest": "b"}

    monkeypatch.setattr(probe, "run_task", lying)
    ran = cli("bench", "--quick", "-m", tiny)
    assert ran.code == 5
    assert ran.out == ""
    assert "no figures" in ran.err


def test_figures_of_one_run_say_so() -> None:
    assert "1 run alone" in of_runs(1)
    assert "5 interleaved runs" in of_runs(5)
    assert all("must be idle" in of_runs(n) for n in (1, 5))
