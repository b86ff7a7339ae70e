"""Every command on a checkpoint of family `deepseek_v41`: it works, or says in one line why not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cedagent.cli import loading, probe, selftest
from cedagent.model.tiny_v41 import write_tiny_v41

Cli = Callable[..., Any]
Screens = Callable[..., Any]
Spoil = Callable[[Path], object]

RULES = " ".join(f"rule {n}" for n in range(45))
"""A system prompt of a few blocks."""


@pytest.fixture(scope="module")
def v41(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_v41(
        tmp_path_factory.mktemp("model") / "v41",
        n_encoder_layers=3,
        n_decoder_layers=2,
        n_experts=4,
        seed=5,
    )


@pytest.fixture
def spoilt(v41: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return Path(shutil.copytree(v41, tmp_path / "spoilt"))


def run(cli: Cli, model: Path, *more: object, prompt: str = "hello") -> Any:
    return cli(
        "run", prompt, "-m", model, "-s", RULES, "--no-builtin-tools", "--max-tokens", "3", *more
    )


def usage_of(ran: Any) -> dict[str, int]:
    (done,) = [e for e in map(json.loads, ran.out.splitlines()) if e["kind"] == "done"]
    usage: dict[str, int] = done["usage"]
    return usage


def edit_tensors(model: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = model / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def edit_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    values = json.loads(path.read_text())
    values["text_config"] |= changes
    path.write_text(json.dumps(values))


def add_what_is_skipped(model: Path) -> None:
    more = {"mtp.0.norm.weight": torch.ones(3), "vision.x.weight": torch.ones(3)}
    edit_tensors(model, lambda tensors: tensors.update(more))
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vision_config": {"depth": 2}}))


@pytest.mark.slow
def test_kept_and_dequantized_weights_give_one_answer(cli: Cli, v41: Path) -> None:
    ran = [run(cli, v41, "--no-kv", "--weights", w) for w in ("auto", "dequantize", "keep")]
    assert [r.code for r in ran] == [3, 3, 3]
    assert len({r.out for r in ran}) == 1
    assert len(ran[0].out.strip()) > 0


@pytest.mark.parametrize(
    "command",
    [["run", "x"], ["chat", "-p", "x"], ["warm"], ["bench", "--quick"], ["model", "score", "FILE"]],
    ids=" ".join,
)
def test_a_choice_of_weights_is_refused_in_one_line_for_the_other_family(
    cli: Cli, tiny: Path, tmp_path: Path, command: list[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    argv = [str(text) if part == "FILE" else part for part in command]
    ran = cli(*argv, "-m", tiny, "--weights", "keep")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "weights keep is a choice for deepseek_v41" in ran.err


def test_what_is_skipped_and_too_little_memory_are_told_once(
    cli: Cli, spoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_what_is_skipped(spoilt)
    monkeypatch.setattr("cedagent.model.release.available_memory", lambda: 4_000_000)
    text = tmp_path / "text.txt"
    text.write_text("some words")
    chat = ["chat", "-m", spoilt, "--no-builtin-tools", "--max-tokens", "2", "--no-kv"]
    ran = [
        cli(*chat, stdin="one\ntwo\n"),
        cli("model", "score", text, "-m", spoilt),
        cli("warm", "-m", spoilt, "--no-builtin-tools"),
    ]
    assert [r.code for r in ran] == [3, 0, 0]
    for told in (r.err for r in ran):
        for part in ("vision_config is skipped", "mtp.* is skipped", "vision.* is skipped"):
            assert told.count(part) == 1, told
        assert len(re.findall("weights are kept as stored: .* GB, as float32", told)) == 1, told


def test_doctor_says_what_weights_take_and_what_is_not_read(cli: Cli, spoilt: Path) -> None:
    add_what_is_skipped(spoilt)
    ran = cli("doctor", "-m", spoilt, "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    by_name = {f["name"]: f for f in found}
    assert "3 encoder + 2 decoder layers, window 16, deepseek_v41" in by_name["model"]["value"]
    stored, held = re.fullmatch(
        r"([\d.]+ MB) as stored, ([\d.]+ MB) as float32: held as float32",
        by_name["weights"]["value"],
    ).groups()  # type: ignore[union-attr]
    assert float(stored.split()[0]) < float(held.split()[0])
    skipped = {f["value"] for f in found if f["name"] == "skipped"}
    assert skipped == {"vision_config", "mtp.*", "vision.*"}
    assert "ordered float32" in by_name["v41 kernels"]["value"]


def test_doctor_names_what_is_wrong_with_a_tokenizer_once(cli: Cli, spoilt: Path) -> None:
    (spoilt / "engram_token_map.json").unlink(missing_ok=True)
    path = spoilt / "tokenizer.json"
    path.write_text(path.read_text()[:-9])
    for _ in range(2):
        ran = cli("doctor", "-m", spoilt, "--json")
        (note,) = [f["note"] for f in json.loads(ran.out) if f["name"] == "model"]
        assert ran.code == 2
        assert note.count("tokenizer.json") <= 2
        assert ";" not in note
        path.unlink(missing_ok=True)


def test_doctor_says_when_weights_would_be_kept(
    cli: Cli, v41: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedagent.model.weights_choice.available_memory", lambda: 4_000_000)
    found = {f["name"]: f for f in json.loads(cli("doctor", "-m", v41, "--json").out)}
    assert found["weights"]["value"].endswith("kept as stored")
    assert "this machine has 0.0 GB available" in found["weights"]["note"]
    assert not found["weights"]["good"]


SPOILS: dict[str, tuple[Spoil, str]] = {
    "no scale": (
        lambda m: edit_tensors(m, lambda t: t.pop("layers.1.attn.wq_a.scale")),
        "layers.1.attn.wq_a.weight: expected its scale layers.1.attn.wq_a.scale",
    ),
    "transformers' names": (
        lambda m: edit_tensors(m, lambda t: t.update({f"model.{n}": t.pop(n) for n in list(t)})),
        "expected the release's",
    ),
    "a missing shard": (
        lambda m: (m / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"embed.weight": "model-00002-of-00003.safetensors"}})
        ),
        "model-00002-of-00003.safetensors: no such file",
    ),
    "a contradictory field": (
        lambda m: edit_config(m, kv_source_layer_ids=[2]),
        "the last of kv_source_layer_ids starts the decoder",
    ),
    "another size": (
        lambda m: edit_config(m, vocab_size=600),
        "embed.weight: expected shape [600, 128], got [512, 128]",
    ),
    "another activation": (lambda m: edit_config(m, hidden_act="gelu"), "hidden_act must be"),
    "another tokenizer": (
        lambda m: edit_config(m, engram_compressed_vocab_size=77),
        "473 classes of tokens, but engram_compressed_vocab_size is 77",
    ),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), "tokenizer.json"),
}


@pytest.mark.parametrize("what", SPOILS)
def test_a_broken_checkpoint_is_one_line_for_chat_and_doctor(
    cli: Cli, spoilt: Path, what: str
) -> None:
    spoil, part = SPOILS[what]
    spoil(spoilt)
    ran = cli("run", "x", "-m", spoilt, "--no-kv")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert part in ran.err
    ran = cli("doctor", "-m", spoilt)
    (line,) = [line for line in ran.out.splitlines() if line.startswith("! model")]
    assert (ran.code, part in line) == (2, True), line


def test_convert_says_that_it_is_one_already(cli: Cli, v41: Path, tmp_path: Path) -> None:
    ran = cli("model", "convert", v41, tmp_path / "made", "--encoder-layers", "2")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "a model of deepseek_v41 has an encoder and a decoder already" in ran.err


@pytest.mark.slow
def test_a_session_goes_on_from_the_store_as_without_one(cli: Cli, v41: Path) -> None:
    first = run(cli, v41, "--session", "s", "--jsonl")
    assert usage_of(first)["encoded"] > 256
    for name, more in (("with", ()), ("without", ("--no-kv",))):
        assert run(cli, v41, "--fork", "s", "--session", name, "--jsonl", *more).code == 3
    # Weights that are held in another way are the same weights.
    kept, cold = (
        run(cli, v41, "--session", name, "--jsonl", *more, prompt="and then?")
        for name, more in (("with", ("--weights", "keep")), ("without", ("--no-kv",)))
    )
    usage = usage_of(kept)
    assert usage["reused_disk"] == 256
    assert usage["rerun"] == 128
    assert usage["encoded"] < 128
    assert usage_of(cold)["reused_disk"] == 0
    assert (
        kept.out.splitlines()[-1].partition('"usage"')[0]
        == (cold.out.splitlines()[-1].partition('"usage"')[0])
    )


@pytest.mark.slow
def test_what_was_warmed_is_a_hit_that_kv_explains(cli: Cli, v41: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text(RULES)
    of = ["-m", v41, "--no-builtin-tools"]
    (first,), (again,) = (json.loads(cli("warm", rules, *of, "--json").out) for _ in range(2))
    assert (first["hit"], again["hit"], again["encoded"]) == (False, True, 0)
    assert cli("kv", "why", rules, *of).out.startswith("hit: ")
    rules.write_text("Other " + RULES)
    assert cli("kv", "why", rules, *of).out.startswith("diverged: ")
    (anchor,) = json.loads(cli("kv", "ls", "--json").out)["anchors"]
    assert (anchor["kind"], anchor["pinned"]) == ("warm", True)
    assert cli("kv", "verify").out.startswith("The store is good.\n")
    ran = run(cli, v41, "--jsonl", "-s", RULES)
    assert usage_of(ran)["reused_disk"] == first["encoded"]


def test_score_is_the_same_for_both_ways_of_holding_weights(
    cli: Cli, v41: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 5)
    outs = {cli("model", "score", text, "-m", v41, "--weights", w).out for w in ("auto", "keep")}
    assert len(outs) == 1
    assert "bits per token" in outs.pop()


def lying(*digests: str, asked: list[str] | None = None) -> Callable[..., dict[str, Any]]:
    """Answer bench's tasks without running them: cold ones with these digests, others with a."""

    def answer(name: str, **arguments: Any) -> dict[str, Any]:
        if asked is not None:
            asked.append(arguments["weights"])
        if name == "first_process":
            times = {"cold": 1.0, "append": 1.0, "append_odd": 1.0}
            return {"times": times, "bytes_per_token": 1.0, "digests": list(digests)}
        return {"seconds": 1.0, "rerun": arguments.get("context", 0), "digest": "a"}

    return answer


def test_bench_measures_it_alone_and_says_so(
    cli: Cli, v41: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(probe, "run_task", lying("a", "a", asked=asked))
    monkeypatch.setattr(loading, "load_tools", lambda *_, **__: [])
    ran = cli("bench", "--quick", "-m", v41, "--weights", "keep", "--json")
    assert ran.code == 0, ran.err
    assert "no baseline" in ran.err
    assert set(asked) == {"keep"}
    report = json.loads(ran.out)
    rows = {row["situation"]: row for row in report["first_token"]}
    assert list(rows) == [
        "cold", "append", "append_odd", "restart", "restart_early", "warm", "not_warm",
    ]  # fmt: skip
    assert all(list(row["times"]) == ["cedagent"] for row in rows.values())
    assert (rows["restart"]["rerun"], rows["restart_early"]["rerun"]) == (256, 128)
    assert "(128 run again)" in rows["restart_early"]["text"]
    assert list(report["bytes_per_token_on_disk"]) == ["cedagent"]


def test_bench_refuses_to_report_when_the_early_restart_differs(
    cli: Cli, v41: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "run_task", lying("a", "b"))
    monkeypatch.setattr(loading, "load_tools", lambda *_, **__: [])
    ran = cli("bench", "--quick", "-m", v41)
    assert (ran.code, ran.out) == (5, "")
    assert "no figures" in ran.err


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"no_snapshot": False}, "A hit changes the answer!"),
        ({"disk": False}, "A hit changes the answer!"),
        ({"reused_disk": 128}, "Stored rows were not used."),
    ],
    ids=str,
)
def test_selftest_turns_red(
    cli: Cli, v41: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any], said: str
) -> None:
    good = selftest.Compared(257, True, True, True, 256, 128, True, 256)
    monkeypatch.setattr(selftest, "_compare", lambda *_: ([good], []))
    ran = cli("kv", "selftest", "-m", v41)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "A hit gives the bits of a cold run.")
    assert "without a snapshot" in ran.out
    monkeypatch.setattr(selftest, "_compare", lambda *_: ([replace(good, **lie)], ["a line"]))
    ran = cli("kv", "selftest", "-m", v41)
    assert (ran.code, ran.err) == (5, "cedagent: a line\n")
    assert said in ran.out


@pytest.mark.slow
def test_selftest_restores_with_and_without_a_snapshot(cli: Cli, tmp_path: Path) -> None:
    # Windows that reach over two tiles, so that a snapshot saves something.
    model = write_tiny_v41(
        tmp_path / "wide",
        n_encoder_layers=3,
        n_decoder_layers=2,
        window=100,
        replay_windows=2,
        n_experts=4,
    )
    ran = cli("kv", "selftest", "-m", model, "--json")
    assert ran.code == 0, ran.out
    rows = json.loads(ran.out)["rows"]
    assert all(row[way] for row in rows for way in ("live", "ram", "disk", "no_snapshot"))
    last = rows[-1]
    assert (last["reused_disk"], last["rerun"], last["rerun_no_snapshot"]) == (640, 256, 512)


@pytest.mark.slow
def test_bench_in_processes_of_its_own(cli: Cli, v41: Path) -> None:
    ran = cli("bench", "--quick", "-m", v41)
    assert ran.code == 0, ran.err
    assert "decoder-only" not in ran.out
    assert "ratio" not in ran.out
    assert re.search(r"after a restart, in a new process \(128 run again\) +\d", ran.out)


@pytest.mark.slow
def test_a_chat_on_a_terminal_is_stopped_left_and_resumed(
    screen: Screens, spoilt: Path, home: Path
) -> None:
    # The token that ends an answer is made as unlikely as any other, so that it can be stopped.
    edit_tensors(spoilt, lambda tensors: tensors["head.weight"][1].zero_())
    argv = ["chat", "-m", str(spoilt), "-s", RULES, "--no-builtin-tools", "--temperature", "1.2"]
    with screen(*argv, "--seed", "3", home=home) as shown:
        shown.wait_for("Ctrl-D leaves.*>")
        shown.send("tell me a long story\r")
        # Most tokens of this vocabulary are a tilde and a number.
        shown.wait_for(r"long story.*(~\d{3}.*){5}")
        shown.send("\x03")
        shown.wait_for("cancelled while the answer was written.*>")
        shown.send("/fork\r")
        shown.wait_for("Session .*-fork, 1 turn.*>")
        shown.send("\x04")
        assert shown.wait_for_end() == 0
    argv = ["chat", "-m", str(spoilt), "-c", "--no-builtin-tools", "--max-tokens", "3"]
    with screen(*argv, "--weights", "keep", home=home) as shown:
        shown.wait_for("Session .*-fork, 1 turn.*Ctrl-D leaves.*>")
        shown.send("go on\r")
        shown.wait_for("stopped after 3 tokens.*>")
        shown.send("/usage\r")
        used = shown.wait_for("rerun [0-9,]+.*>")
        assert re.search(r"rerun 128\b", used)
        assert int(re.findall(r"([0-9,]+) from disk", used)[-1].replace(",", "")) >= 256
        shown.send("/quit\r")
        assert shown.wait_for_end() == 0
