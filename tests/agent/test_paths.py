from __future__ import annotations

from pathlib import Path

import pytest

from cedagent import paths


def test_cedagent_home_overrides_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CEDAGENT_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    assert paths.data_home() == tmp_path
    assert paths.sessions_dir() == tmp_path / "sessions"
    assert paths.models_dir() == tmp_path / "cache" / "models"
    assert paths.kv_dir() == tmp_path / "cache" / "kv"
    assert list(tmp_path.iterdir()) == []


def test_xdg_variables_and_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEDAGENT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert paths.data_home() == Path("/data/cedagent")
    assert paths.cache_home() == Path.home() / ".cache" / "cedagent"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert paths.data_home() == Path.home() / ".local" / "share" / "cedagent"
