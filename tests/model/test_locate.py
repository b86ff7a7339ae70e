"""A model is found by path or by name; an unknown one names what there is and what to do."""

import pytest

from cedagent.errors import UsageError
from cedagent.model.locate import DEFAULT_MODEL, installed_models, resolve_model


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("CEDAGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "cache" / "models"


def make(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_path_and_a_name_are_found(models, tmp_path):
    elsewhere, named = make(tmp_path / "elsewhere"), make(models / "mine")
    assert resolve_model(elsewhere) == elsewhere
    assert resolve_model(str(elsewhere)) == elsewhere
    assert resolve_model("mine") == named


def test_a_path_wins_over_a_name(models, tmp_path, monkeypatch):
    make(models / "mine")
    make(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("mine").resolve() == tmp_path / "mine"


def test_an_unknown_name_lists_what_there_is(models):
    with pytest.raises(UsageError, match=r"no model 'x'.*none in .* yet; `cedagent model pull`"):
        resolve_model("x")
    make(models / "b")
    make(models / "a")
    make(models / ".a.pull-1234")
    (models / "half").mkdir()
    assert installed_models() == ["a", "b"]
    with pytest.raises(UsageError, match=f"there is a, b; .* makes {DEFAULT_MODEL}"):
        resolve_model("x")
    with pytest.raises(UsageError, match=r"no model '\.\./models/a'"):
        resolve_model("../models/a")


def test_a_folder_without_a_config_is_not_a_model(models, tmp_path):
    with pytest.raises(UsageError, match=r"is not a model directory: expected .* config\.json"):
        resolve_model(tmp_path)
