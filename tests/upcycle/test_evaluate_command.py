"""`cedagent model eval` and its report: figures, files, several models, and what is refused."""

import json
import re
import shutil
import sys
from dataclasses import replace

import pytest

from cedagent.chat.template import ToolSpec
from cedagent.cli.evaluation_table import print_evaluation
from cedagent.cli.main import run
from cedagent.errors import UsageError
from cedagent.model.tiny import write_tiny
from cedagent.paths import cache_home
from cedagent.upcycle.data.conversation import Case, Example, Step
from cedagent.upcycle.evaluation import plot
from cedagent.upcycle.evaluation import suite as door
from cedagent.upcycle.evaluation.cost import Pace, Work
from cedagent.upcycle.evaluation.figures import GOALS
from cedagent.upcycle.evaluation.material import Generators
from cedagent.upcycle.evaluation.rates import rate_of
from cedagent.upcycle.evaluation.report import Settings, read_report, write_report

SAY = ToolSpec(
    "say",
    "Say it.",
    {"type": "object", "properties": {"word": {"enum": ["a", "b"]}}, "required": ["word"]},
)
SETTINGS = Settings(cases=1, texts=1, tokens=545, needles=(1000,))
KINDS = ["known", "unseen", "multi_step", "chat", "recovery", "needle_1000"]


def examples(tokenizer, seed, length):
    for i in range(40):
        ids = tuple(tokenizer.encode(f"{seed}: text number {i}, of some length. " * 3))
        yield Example(ids, (True,) * len(ids))


def cases(tokenizer, kind, seed, n):
    call = Step((("say", {"word": "a"}),), ("said a",), (), True)
    answer = Step((), (), ("a",), False)
    slip = Step((("say", {"word": "b"}),), ("Error: no b",), (), True, given=True)
    steps = {
        "chat": (Step((), (), (), False),),
        "multi_step": (call, call, answer),
        "recovery": (slip, call, answer),
    }
    depth = 0.5 if kind.startswith("needle") else None
    return [Case(kind, f"{seed}", (SAY,), (kind,), (steps.get(kind, (call, answer)),), depth)] * n


GENERATORS = Generators(examples, cases)


@pytest.fixture(scope="module", autouse=True)
def module_home(tmp_path_factory):
    """A home whose rows go with it; kernels that were compiled before are not compiled again."""
    native, home = cache_home() / "native", tmp_path_factory.mktemp("home")
    native.mkdir(parents=True, exist_ok=True)
    (home / "cache").mkdir()
    (home / "cache" / "native").symlink_to(native)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEDAGENT_HOME", str(home))
        patch.setattr(door, "heldout", lambda: GENERATORS)
        yield home


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two small models that differ in their split; the second has a windowed encoder layer."""
    folder = tmp_path_factory.mktemp("models")
    second = {"n_encoder_layers": 2, "encoder_global_layers": (1,)}
    return [
        write_tiny(folder / "tiny-e1", n_layers=3, n_encoder_layers=1),
        write_tiny(folder / "tiny-e2", n_layers=3, **second),
    ]


@pytest.fixture(scope="module")
def report(models):
    return door.prepare(models[0], settings=SETTINGS, generators=GENERATORS).run()


@pytest.mark.slow
def test_a_report_says_what_is_needed_to_measure_it_again(report, models):
    config = json.loads((models[0] / "config.json").read_text())
    assert report.model == str(models[0])
    assert report.digest == door.Engine.load(models[0]).model_digest
    assert report.origin == {"made_by": "cedagent model tiny", "seed": 0}
    assert report.config["n_encoder_layers"] == config["n_encoder_layers"] == 1
    assert report.settings == SETTINGS
    assert len(report.parent) == 64
    assert report.versions.keys() == {"cedagent", "torch", "llguidance"}
    assert report.machine["threads"] >= 1
    assert [kind.kind for kind in report.kinds] == KINDS
    assert [kind.cases for kind in report.kinds] == [1] * 6
    assert (report.text.texts, report.text.tokens_each) == (1, 545)
    assert report.figures[0].key == "kl_after_prefill"
    assert report.figures[0].value == report.text.after_prefill.value > 0
    assert report.cost.append_token_layers == 512 * 1 + 128 * 2
    assert set(report.seconds) == {"text", *KINDS}


def test_the_same_settings_give_the_same_figures(report, models):
    settings = replace(SETTINGS, suites=("needle",))
    again = door.prepare(models[0], settings=settings, generators=GENERATORS).run()
    assert again.kinds == report.kinds[-1:]
    assert set(again.figures) < set(report.figures)


@pytest.mark.slow
def test_everything_measured_twice_is_the_same(report, models):
    settings = replace(SETTINGS, texts=2, seed=3)
    first, again = (
        door.prepare(models[0], settings=settings, generators=GENERATORS).run() for _ in range(2)
    )
    assert (again.figures, again.text, again.kinds) == (first.figures, first.text, first.kinds)
    assert first.text.after_prefill.error > 0
    assert report.text.after_prefill.error is None


def test_what_is_written_as_json_reads_back_the_same(report, tmp_path):
    write_report(tmp_path / "a.json", [report, report])
    assert read_report(tmp_path / "a.json") == (report, report)
    assert json.loads((tmp_path / "a.json").read_text())["version"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_of_an_earlier_evaluation_stands_for_its_models(report, tmp_path, capsys):
    write_report(tmp_path / "a.json", [report])
    # Nothing is run: there is nothing to say beforehand.
    assert run(["model", "eval", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"append 512 tokens, token-layers +768 of 1,536 +768 of 1,536", out)
    assert re.search(r"KL to the parent, 32 tokens after a prefill +0\.09 +0\.05 +\d\.\d", out)
    assert re.search(r"no call on plain chat +97% +99\.5% +\d+\.\d% \(", out)
    assert re.search(r"global encoder layers +10 +1 +1\b", out)


@pytest.mark.slow
def test_the_command_prints_goals_beside_figures_and_writes_the_file(
    models, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("cedagent.cli.evaluation._QUICK", {"cases": 1, "tokens": 600, "texts": 1})
    file = tmp_path / "out.json"
    assert run(["model", "eval", *map(str, models), "--quick", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"tiny-e1 takes about \d+ s, and about as long for each of 1 more; texts", err)
    # A random model calls no tool rightly, so there are no arguments to judge.
    for goal in (goal for goal in GOALS if not goal.key.startswith("arguments")):
        line = next(line for line in out.splitlines() if line.startswith(goal.text))
        assert line.count("MISSED") <= 2
    assert re.search(r"KL to the parent, 32 tokens after a prefill +0\.09 +0\.05 +\d\.\d", out)
    assert re.search(r"no call on plain chat +97% +99\.5% +\d+\.\d% \(", out)
    assert re.search(r"append 512 tokens, token-layers +768 of 1,536 +1,152 of 1,536", out)
    assert re.search(r"global encoder layers +10 +1 +1\b", out)
    assert re.search(r"bytes per token, stored +132 +132", out)
    assert re.search(r"bytes of a snapshot +0 +4,572", out)
    assert re.search(r"needle, 1,000 tokens", out)
    found = read_report(file)
    assert [model.model for model in found] == [str(path) for path in models]
    assert [model.settings.cases for model in found] == [1, 1]
    # An earlier evaluation stands for its models, and nothing is run.
    assert run(["model", "eval", str(file)]) == 0
    again, err = capsys.readouterr()
    assert (again, err) == (out, "")


def test_one_suite_alone_needs_no_more_than_it_measures(models, tmp_path, capsys):
    model = shutil.copytree(models[0], tmp_path / "trained")
    # The parent is not in it, and nobody asks for it.
    (model / "origin.json").write_text(json.dumps({"trained": {"tokens": 1}}))
    assert run(["model", "eval", str(model), "--suite", "needle", "--quick", "--n", "1"]) == 0
    out, _ = capsys.readouterr()
    assert "KL" not in out.partition("* aim met")[0]
    assert "known" not in out
    assert run(["model", "eval", str(model), "--suite", "text", "--quick"]) == 2
    assert "was trained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--suite", "text,speed"], "suites: expected one or more of text, tools, needle"),
        (["--suite", ""], "suites: expected one or more of"),
        (["--n", "0"], "--n"),
        (["--json", "no/such/folder/x.json"], "--json no/such/folder/x.json: expected a file in"),
        (["--json", "~/no/such/x.json"], "--json ~/no/such/x.json: expected a file in a folder"),
        (["--parent", "no-such-file.gguf"], "no checkpoint at no-such-file.gguf"),
        (["nowhere.json"], "nowhere.json: No such file"),
        (["no-such-model"], "no model 'no-such-model'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_before_anything_runs(
    argv, message, models, capsys
):
    assert run(["model", "eval", str(models[0]), *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.slow
def test_what_is_done_is_shown_when_the_next_model_cannot_be(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    damaged = shutil.copytree(models[0], tmp_path / "damaged")
    (damaged / "model-int8.safetensors").write_bytes(b"")
    argv = ["--suite", "text", "--quick", "--texts", "1", "--json", "~/done.json"]
    assert run(["model", "eval", str(models[0]), str(damaged), *argv]) == 2
    out, err = capsys.readouterr()
    assert "KL to the parent, positions 0-128" in out
    assert "model-int8.safetensors" in err
    assert [model.model for model in read_report(tmp_path / "done.json")] == [str(models[0])]


def test_too_little_text_is_an_error_not_a_figure(models):
    settings = Settings(suites=("text",), tokens=4000)
    few = Generators(lambda *given: iter([next(examples(*given))]), cases)
    with pytest.raises(UsageError, match="at least 4,000 tokens"):
        door.prepare(models[0], settings=settings, generators=few)


def test_without_matplotlib_one_line_says_so_before_anything_runs(models, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run(["model", "eval", str(models[0]), "--png", "x.png"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--png: matplotlib is not installed; `pip install 'matplotlib>=3.11'`, or" in err
    assert "`cedagent[plot]`" in err


def test_a_picture_shows_every_model(report, tmp_path, models):
    pytest.importorskip("matplotlib")
    path = tmp_path / "quality.png"
    plot.draw_quality(path, [report, report])
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="expected text figures to draw, got none"):
        plot.draw_quality(path, [])


def test_the_cost_said_beforehand_follows_from_the_work(models, report, module_home):
    settings = replace(SETTINGS, texts=2)
    evaluation = door.prepare(models[0], settings=settings, generators=GENERATORS)
    # The rows of the first text are kept from the report.
    assert evaluation.work().parent == 544
    shutil.rmtree(module_home / "cache" / "eval")
    work = evaluation.work()
    assert (work.parent, work.positions, work.fed) == (2 * 544, 2 * 544, 2 * 32)
    # What a case gives is not asked for.
    assert work.outputs == 2 + 2 + 3 + 1 + 2 + 2
    spoken = [case for of_kind in evaluation.material.cases.values() for case in of_kind]
    prompts = sum(map(evaluation.speaker.prompt_tokens, spoken))
    assert work.prefilled == 2 * 512 + prompts
    assert prompts > 100 * len(spoken)
    slow, quick = Pace(0.002, 0.02), Pace(0.001, 0.01)
    assert slow.seconds(work) == 2 * quick.seconds(work) > 0
    assert slow.seconds(Work()) == 0


def test_figures_of_other_texts_and_cases_are_said_to_be_not_comparable(report, capsys):
    first, *others = report.kinds
    kinds = (replace(first, digest="0"), *others)
    other = replace(report, text=replace(report.text, digest="1"), kinds=kinds)
    print_evaluation([report, other])
    assert "Not comparable, drawn otherwise: texts, known.\n" in capsys.readouterr().out
    print_evaluation([report, report])
    assert "Not comparable" not in capsys.readouterr().out


def test_recovery_stands_in_a_row_of_its_own(report, capsys):
    kinds = [
        replace(kind, recovery=rate_of(3, 4), whole=rate_of(1, 4)) if kind.recovery else kind
        for kind in report.kinds
    ]
    print_evaluation([replace(report, kinds=tuple(kinds))])
    out = capsys.readouterr().out
    assert re.search(r"right next step after a failed call +75\.0%", out)
    assert re.search(r"whole conversations right: recovery +25\.0%", out)


def test_a_missed_bound_and_a_met_aim_are_marked(report, capsys):
    print_evaluation([report])
    out = capsys.readouterr().out
    for figure in report.figures:
        line = next(line for line in out.splitlines() if line.startswith(figure.text))
        assert ("MISSED" in line) == (figure.standing == "bound missed")
        assert line.rstrip().endswith("*") == (figure.standing == "aim met")
