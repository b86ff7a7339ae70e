"""V4.1 with a window of one token: nothing to keep, nothing to wait for, the same answers."""

import pytest
import torch

from cedagent.engine import Engine
from cedagent.model.tiny_v41 import write_tiny_v41


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 2])
def test_a_session_resumes_from_the_store_with_the_smallest_windows(tmp_path, window):
    model = write_tiny_v41(tmp_path / "model", window=window, seed=5)
    ids = [7 * i % 350 + 3 for i in range(300)]
    first = Engine.load(model, kv=tmp_path / "kv")
    live = first.sequence(ids[:261])
    live.prefill([])
    live.prefill(ids[261:])
    first.close()
    again = Engine.load(model, kv=tmp_path / "kv")
    resumed = again.sequence(ids)
    usage = resumed.prefill([])
    cold = Engine.load(model).sequence(ids)
    cold.prefill([])
    assert usage.reused_disk == 256
    assert torch.equal(resumed.logits, cold.logits)
    assert torch.equal(resumed.logits, live.logits)
    assert again.notices == []
    again.close()
