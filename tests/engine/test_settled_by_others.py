"""An append finds that another sequence, or the store, has settled the tile it left unfinished.

What the sequence derived from its own unfinished tile, padded or decoded, is of no use then.
"""

import itertools
import random

import pytest
import torch

from cedagent.engine import Engine
from cedagent.model.tiny import write_tiny

IDS = random.Random(0).choices(range(300), k=650)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """W = 16: most of what the last row sees is derived from the encoder's output."""
    return write_tiny(tmp_path_factory.mktemp("w16"), window=16)


def cold(model, ids):
    sequence = Engine.load(model).sequence()
    sequence.prefill(ids)
    return sequence.logits


CASES = list(itertools.product((130, 260, 383), (0, 30, 200), (True, False)))
QUICK = [(260, 0, True), (383, 30, False)]


@pytest.mark.parametrize(
    ("n_known", "n_fed", "is_open"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_rows_derived_from_an_unfinished_tile_are_dropped(model, tmp_path, n_known, n_fed, is_open):
    engine = Engine.load(model, kv=None if is_open else tmp_path / "kv")
    behind, ahead = engine.sequence(), engine.sequence()
    behind.prefill(IDS[:n_known])
    stop = n_known + n_fed
    for token in IDS[n_known:stop]:
        behind.feed(token)
    ahead.prefill(IDS)
    if not is_open:
        ahead.close()
    usage = behind.prefill(IDS[stop:590])
    # Up to 512; what was not its own came from the other.
    assert usage.reused_ram + usage.reused_disk == 512
    assert torch.equal(behind.logits, cold(model, IDS[:590]))
    engine.close()
