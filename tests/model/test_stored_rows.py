"""Rows of codes in memory: Ctrl-C at any moment leaves what was there."""

import pytest
import torch
from interruption import interrupted

from ced_kernels.block_codes import WINDOW
from cedagent.model import stored_rows as module
from cedagent.model.stored_rows import StoredRows

N = 700


def filled():
    rows = StoredRows(WINDOW, 64)
    rows.write(0, encoded(N))
    return rows


def encoded(n):
    return WINDOW.encode(torch.randn(n, 64, generator=torch.Generator().manual_seed(n)))


def held(rows, start):
    stored = rows.stored(start, N)
    return [stored.codes.clone(), stored.scales.clone(), rows.values(start, N).clone()]


@pytest.mark.parametrize(
    "move", [lambda r: r.write(N, encoded(500)), lambda r: r.drop_before(60)], ids=["grow", "drop"]
)
def test_ctrl_c_while_rows_move_loses_none(move):
    expected, n = held(filled(), 60), 0
    while True:
        rows = filled()
        if not interrupted(lambda rows=rows: move(rows), n, module):
            break
        assert all(map(torch.equal, held(rows, 60), expected)), f"line {n}"
        rows.write(N, encoded(500))
        assert torch.equal(rows.values(N, N + 500), WINDOW.decode(encoded(500))), f"line {n}"
        n += 1
    assert n > 10


def test_rows_dropped_are_gone_and_the_others_stay_where_they_are():
    rows, expected = filled(), held(filled(), 60)
    rows.drop_before(60)
    assert (rows.base, rows.stop) == (60, N)
    assert all(map(torch.equal, held(rows, 60), expected))
    with pytest.raises(AssertionError):
        rows.values(59, 61)
