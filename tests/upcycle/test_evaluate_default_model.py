"""The default model through `cedagent model eval --quick`, and its held-out material."""

import pytest

from cedagent.chat.tokenizer import Tokenizer
from cedagent.cli.main import run
from cedagent.upcycle.evaluation.material import draw, heldout
from cedagent.upcycle.evaluation.report import Settings, read_report
from cedagent.upcycle.pull import pull

pytestmark = pytest.mark.slow


def test_a_third_of_a_quick_look_has_every_figure(tmp_path, capsys):
    file = tmp_path / "quick.json"
    pull()
    sizes = ["--quick", "--n", "2", "--texts", "1"]
    assert run(["model", "eval", *sizes, "--json", str(file)]) == 0
    (model,) = read_report(file)
    figures = {figure.key: figure.value for figure in model.figures}
    expected = {"kl_after_prefill", "tool_known", "tool_unseen", "answer", "later_calls", "needle"}
    assert figures.keys() >= expected
    assert 0 < figures["kl_after_prefill"] < 0.3
    assert model.text.buckets[0].kl.value < 0.1
    assert model.text.texts == 1
    assert [kind.cases for kind in model.kinds] == [2] * 6
    assert [kind.kind for kind in model.kinds if kind.recovery is not None] == ["recovery"]
    assert "KL to the parent" in capsys.readouterr().out


def test_held_out_material_is_complete_and_the_same_every_time():
    tokenizer = Tokenizer.load(pull())
    settings = Settings(cases=5, texts=3, seed=2)
    material, again = (draw(settings, tokenizer, heldout(), context=8192) for _ in range(2))
    assert again == material
    assert again.digest == material.digest
    assert [len(text) for text in material.texts] == [4097] * 3
    other = draw(Settings(cases=5, texts=3, seed=3), tokenizer, heldout(), context=8192)
    assert other.digest != material.digest
    assert list(material.cases) == [
        "known", "unseen", "multi_step", "chat", "recovery",
        "needle_500", "needle_1000", "needle_2000", "needle_3000",
    ]  # fmt: skip
    for kind, cases in material.cases.items():
        assert len(cases) == 5
        for case in cases:
            assert len(case.user) == len(case.steps)
            steps = [step for steps in case.steps for step in steps]
            assert all(len(step.results) == len(step.calls) for step in steps)
            if kind.startswith("needle_"):
                (result,) = steps[0].results
                n_tokens = int(kind.removeprefix("needle_"))
                assert abs(len(tokenizer.encode(result)) - n_tokens) < 0.2 * n_tokens
                assert 0 <= case.depth <= 1
        if kind == "multi_step":
            assert all(sum(bool(step.calls) for step in case.steps[0]) > 1 for case in cases)
