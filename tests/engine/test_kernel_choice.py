"""Which kernels run: an explicit choice is met or refused, "auto" says what it goes without."""

import pytest
import torch

from ced_kernels.native.build import NativeUnavailable
from cedagent.engine import Engine, kernel_choice
from cedagent.engine.fingerprint import fingerprint
from cedagent.errors import EngineError, UsageError
from cedagent.model.tiny import write_tiny

IDS = list(range(3, 203))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"), window=20, n_layers=4, n_encoder_layers=2)


@pytest.fixture
def unavailable(monkeypatch):
    def refuse(*args, **options):
        raise NativeUnavailable("no C compiler was found")

    monkeypatch.setattr(kernel_choice, "load_native", refuse)


@pytest.fixture
def native(model_dir):
    try:
        return Engine.load(model_dir, kernels="native")
    except EngineError as error:
        pytest.skip(str(error))


def test_native_and_reference_agree_but_for_rounding(model_dir, native):
    reference = Engine.load(model_dir, kernels="reference")
    a, b = (engine.logits(IDS).log_softmax(-1) for engine in (native, reference))
    assert not torch.equal(a, b)
    assert 0 <= float((b.exp() * (b - a)).sum(-1).mean()) < 1e-3


def test_the_name_of_the_kernels_is_in_the_fingerprint(model_dir, native):
    reference = Engine.load(model_dir, kernels="reference")
    found = [fingerprint(engine.family, model_dir) for engine in (native, reference)]
    assert [fields["ops.kernels"] for fields in found] == ["native 1 avx512", "reference 1"]
    differing = {name for name in found[0] if found[0][name] != found[1][name]}
    assert differing == {"ops.kernels"}


def test_auto_takes_native_kernels_without_a_word(model_dir, native):
    engine = Engine.load(model_dir)
    assert engine.family.model.kernels.name == native.family.model.kernels.name
    assert engine.notices == []


def test_auto_goes_without_and_says_so_once(model_dir, unavailable):
    engine = Engine.load(model_dir)
    assert engine.family.model.kernels.name == "reference 1"
    (notice,) = engine.notices
    assert "no C compiler was found" in notice
    assert "slower" in notice


def test_native_is_refused_where_it_cannot_run(model_dir, unavailable):
    with pytest.raises(EngineError, match="no C compiler was found"):
        Engine.load(model_dir, kernels="native")


def test_float32_runs_the_references(model_dir):
    engine = Engine.load(model_dir, precision="float32")
    assert engine.family.model.kernels.name == "reference 1"
    assert engine.notices == []
    with pytest.raises(EngineError, match="int8"):
        Engine.load(model_dir, precision="float32", kernels="native")


def test_an_unknown_choice_is_refused(model_dir):
    with pytest.raises(UsageError, match="auto, reference or native, got 'fast'"):
        Engine.load(model_dir, kernels="fast")
