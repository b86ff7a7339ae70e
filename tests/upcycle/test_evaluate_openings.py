"""What conversations begin with is run once for all cases that share it."""

import pytest

from cedagent.engine import Engine
from cedagent.engine.sequence import CedSequence
from cedagent.model.tiny import write_tiny
from cedagent.testing import ScriptedModel
from cedagent.upcycle.data.conversation import Case, Step
from cedagent.upcycle.data.schemas import text, tool
from cedagent.upcycle.evaluation.conversation import Speaker

TOOLS = (tool("look", "Look up a name.", {"name": text()}),)


def says(*texts):
    return Step((), (), texts, False)


def test_beginnings_that_come_again_are_not_run_again(tmp_path):
    engine = Engine.load(write_tiny(tmp_path / "m", seed=5))
    long = Case("chat", "Be brief. " * 40, TOOLS, ("Hello!",), ((says(),),))
    used = []
    prefill = CedSequence.prefill

    def noting(sequence, *args, **more):
        used.append(prefill(sequence, *args, **more))
        return used[-1]

    cold = [point.output for point in Speaker(engine, max_tokens=12).converse(long)]
    speaker = Speaker(engine, max_tokens=12)
    n_blocks = len(speaker.format.begin(long.system, TOOLS)) // 128
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CedSequence, "prefill", noting)
        outputs = [[point.output for point in speaker.converse(long)] for _ in range(3)]
    assert outputs == [cold] * 3
    # Once for the first case, once to be kept, and then only what is new.
    assert [usage.reused_ram for usage in used] == [0, 0, 128 * n_blocks, 128 * n_blocks]
    assert n_blocks > 2


def test_only_the_beginnings_that_were_used_last_are_kept():
    model = ScriptedModel(["Hello."])
    speaker = Speaker(model)
    for number in (*range(16), 0, 16, 0, 0):
        case = Case("chat", f"{number}", (), ("Hi!",), ((says(),),))
        list(speaker.converse(case))
    kept = [end for start, end in model.prefills if start == 0]
    # 0 came again before 16 came, so 1 had to go, and the rows of 0 are there ever after.
    assert len(kept) == 16 + 4 + 1
    list(speaker.converse(Case("chat", "1", (), ("Hi!",), ((says(),),))))
    again = [end for start, end in model.prefills if start == 0]
    assert len(again) == len(kept) + 1
