from __future__ import annotations

from pathlib import Path

import pytest

from cedagent.testing import ScriptedModel, write_tiny_tokenizer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CEDAGENT_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-model")
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture
def scripted(tiny: Path):
    """Make a ScriptedModel on the tiny tokenizer."""

    def make(*outputs: str, **settings: object) -> ScriptedModel:
        return ScriptedModel(outputs, model_dir=tiny, **settings)

    return make
