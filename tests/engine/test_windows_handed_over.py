"""Windows change hands while the engine is held: another thread's sequence may be copying them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cedagent.engine import Engine
from cedagent.model.tiny import write_tiny
from cedagent.model.tiny_v41 import write_tiny_v41


def windowed(folder: Path) -> Path:
    return write_tiny(folder, window=128, encoder_global_layers=(1,))


@pytest.mark.parametrize(
    ("write", "n_tiles"), [(windowed, 0), (windowed, 1), (windowed, 9), (write_tiny_v41, 9)]
)
def test_the_engine_is_held_while_a_rerun_hands_its_windows_over(
    tmp_path: Path, write: Callable[..., Path], n_tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all its tiles, and where it is stopped on the way."""
    engine = Engine.load(write(tmp_path / "model"))
    ids = [7 + i * 13 % 200 for i in range(700)]
    short, longer = engine.sequence(), engine.sequence()
    short.prefill(ids[:260])
    longer.prefill(ids)
    windows = engine.family.windows
    assert windows is not None
    held, tiles, finish, rerun = [], [], windows.finish, windows.rerun_tile

    def noted(*given, **settings):
        held.append(engine._lock._is_owned())
        finish(*given, **settings)

    def counted(*given, **settings):
        tiles.append(settings["tile"])
        return rerun(*given, **settings)

    monkeypatch.setattr(windows, "finish", noted)
    monkeypatch.setattr(windows, "rerun_tile", counted)
    # The longer one knows the rows, and its windows stand elsewhere.
    short.prefill(ids[260:520], cancelled=lambda: len(tiles) >= n_tiles)
    assert bool(tiles) == bool(n_tiles)
    assert held
    assert all(held)
