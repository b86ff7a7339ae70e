"""What is shipped for the default model: the trained file, and figures of this very file."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from cedagent.model.locate import DEFAULT_MODEL
from cedagent.upcycle.evaluation.figures import Figure
from cedagent.upcycle.evaluation.report import ModelReport, read_report
from cedagent.upcycle.pull import RECIPES, SHIPPED
from cedagent.upcycle.training.trained_file import read_trained

ROOT = Path(__file__).resolve().parents[2]
RECIPE = RECIPES[DEFAULT_MODEL]


@pytest.fixture(scope="module")
def report() -> ModelReport:
    (found,) = read_report(SHIPPED / "evaluation.json")
    return found


def row(figure: Figure) -> str:
    """The figure's row in a Markdown table."""

    def text(value: float) -> str:
        return f"{value:.3f}" if figure.lower_is_better else f"{100 * value:.3g}%"

    spread = f" ({text(figure.low)} - {text(figure.high)})"
    return (
        f"| {figure.text} | {text(figure.bound)} | {text(figure.aim)} | "
        f"{text(figure.value)}{spread} |"
    )


def test_the_trained_file_is_small_and_made_for_the_recipe() -> None:
    assert RECIPE.trained is not None
    assert RECIPE.trained.stat().st_size <= 30_000_000
    metadata = read_trained(RECIPE.trained).metadata
    first, *others = [stage["stage"] for stage in metadata["stages"]]
    assert first == "heal"
    assert set(others) == {"teach"}
    assert metadata["made_for"] == {
        "n_encoder_layers": RECIPE.n_encoder_layers,
        "decoder_window": RECIPE.window,
        "encoder_global_layers": list(RECIPE.global_layers or ()),
    }


def test_the_evaluation_is_of_the_file_that_is_shipped(report: ModelReport) -> None:
    assert RECIPE.trained is not None
    digest = sha256(RECIPE.trained.read_bytes()).hexdigest()
    assert report.origin["trained"]["sha256"] == digest
    assert report.model == DEFAULT_MODEL
    assert report.config["weights_dtype"] == "int8"
    assert report.settings.cases >= 40
    assert report.settings.texts >= 8
    assert (SHIPPED / "evaluation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("page", [ROOT / "README.md", SHIPPED / "README.md"])
def test_the_tables_say_what_was_measured(report: ModelReport, page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(report.figures) >= 8
    for figure in report.figures:
        assert row(figure) in lines
