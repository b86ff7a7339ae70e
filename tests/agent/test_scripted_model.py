from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import cedagent as ca
from cedagent.engine.protocol import EngineLike, SequenceLike
from cedagent.errors import ContextLimitError, EngineError
from cedagent.testing import ScriptedModel, call

Make = Callable[..., ScriptedModel]


def test_it_satisfies_the_engine_protocol(scripted: Make) -> None:
    engine: EngineLike = scripted("x")
    sequence: SequenceLike = engine.sequence()
    assert list(sequence.ids) == []


def test_it_builds_its_own_tokenizer_and_leaves_nothing_behind() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ScriptedModel(["Hello."])
        folder = model.model_dir
        assert ca.Agent(model).run("Hi.").text == "Hello."
        model.close()
        assert not folder.exists()
        model.close()
        forgotten = ScriptedModel(["Hello."])
        folder = forgotten.model_dir
        del forgotten
        gc.collect()
        assert not folder.exists()


def test_closing_leaves_a_given_model_directory_alone(scripted: Make, tiny: Path) -> None:
    scripted("x").close()
    assert (tiny / "tokenizer.json").is_file()


def test_the_command_line_can_hold_it_as_an_engine(scripted: Make) -> None:
    model = scripted("x")
    assert (model.store, model.notices) == (None, [])
    assert model.warm([5] * 300).encoded == 256


def test_ids_may_be_given_instead_of_text(scripted: Make) -> None:
    model = scripted("x")
    ids = model.tokenizer.encode("Zürich")
    raw = ScriptedModel([ids], model_dir=model.model_dir)
    assert ca.Agent(raw).run("Hi.").text == "Zürich"


def test_a_call_that_the_grammar_forbids_is_an_error(scripted: Make) -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    for script in (call("add", a="x"), call("other", a=1), call("add"), call("add", a=1, b=2)):
        with pytest.raises(EngineError, match=r"grammar|cannot go on"):
            ca.Agent(scripted(script), tools=[add]).run("Go.")


def test_prefill_is_counted_in_whole_tiles(scripted: Make) -> None:
    model = scripted("x")
    sequence = model.sequence()
    first = sequence.prefill([5] * 300)
    assert (first.reused_ram, first.encoded, first.reencoded, first.padded) == (0, 300, 0, 84)
    second = sequence.prefill([5] * 10)
    assert (second.reused_ram, second.encoded, second.reencoded) == (256, 54, 44)
    fork = sequence.fork(200)
    third = fork.prefill([6] * 5)
    assert (third.reused_ram, third.encoded, third.reencoded) == (128, 77, 72)
    assert len(sequence.ids) == 310


def test_the_context_limit_is_kept(scripted: Make) -> None:
    sequence = scripted("x", context_limit=100).sequence()
    with pytest.raises(ContextLimitError):
        sequence.prefill([5] * 101)
    assert list(sequence.ids) == []
