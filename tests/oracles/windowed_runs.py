"""Runs of small ced_llama models with windowed encoder layers, and every row they leave, as bytes.

A run closes its sequence, so that no later run of the same engine copies its rows from RAM. A model
is loaded once in a process and path: engines with other settings, or with a store, share it.
"""

import functools
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from cedagent.engine import Engine
from cedagent.engine.llama.family import LlamaFamily
from cedagent.engine.prefix_store import open_store
from cedagent.engine.protocol import PrefillUsage
from cedagent.engine.settings import Settings
from cedagent.errors import EngineError
from cedagent.model.tiny import write_tiny

VOCAB = 331
GLOBAL, WINDOWED = (1, 4), (0, 2, 3)
"""Of five encoder layers; two decoder layers follow."""
PATHS = {
    "native": {"kernels": "native"},
    "reference": {"kernels": "reference"},
    "float32": {"precision": "float32"},
}


def write_windowed(dst, *, window, global_layers=GLOBAL, **changes):
    shape = {"n_layers": 7, "n_encoder_layers": 5, "vocab_size": VOCAB, **changes}
    return write_tiny(dst, window=window, encoder_global_layers=global_layers, **shape)


def slow(*values):
    """A case of a parametrised test that waits for the long run."""
    return pytest.param(*values, marks=pytest.mark.slow)


@functools.cache
def _loaded(model, path):
    try:
        return Engine.load(model, **PATHS[path]).family.model
    except EngineError as error:
        return str(error)


@functools.cache
def alone(model, path="native", *, mode="bounded", replay_windows=None):
    """The engine of a model, path and settings, without a store."""
    loaded = _loaded(model, path)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    family = LlamaFamily(loaded, mode=mode, replay_windows=replay_windows)
    return Engine(family, Path(model))


def with_store(model, kv, path="native", **options):
    """A new engine on the store in folder `kv`; the caller closes it."""
    family = alone(model, path, **options).family
    store, refusal = open_store(family, Path(model), Settings(kv=kv))
    assert refusal is None
    return Engine(family, Path(model), store=store)


def some_ids(n, seed=0, vocab=VOCAB):
    return random.Random(seed).choices(range(3, vocab), k=n)


def tensor_bytes(*tensors):
    return b"".join(t.contiguous().numpy().tobytes() for t in tensors if t is not None)


def row_bytes(cache, start, stop):
    """Codes and scales of rows [start, stop) of a layer, those below 0 left out."""
    assert cache.base <= max(start, 0)
    return tensor_bytes(*cache.rows(max(start, 0), stop))


@dataclass
class Run:
    """What a sequence was left with; compared with == it is compared bit for bit."""

    logits: bytes
    streams: list[bytes]
    """All rows of each global encoder layer."""
    e_out: bytes
    encoder_windows: list[bytes]
    """The last W - 1 rows of every encoder layer."""
    decoder_windows: list[bytes]


def taken(sequence, window):
    """Everything a sequence holds after a prefill or a decoded token."""
    state, n = sequence._state, len(sequence.ids)
    return Run(
        tensor_bytes(sequence.logits),
        [row_bytes(state.encoder[layer], 0, n) for layer in state.global_layers],
        tensor_bytes(state.e_out(0, n)),
        [row_bytes(cache, n - (window - 1), n) for cache in state.encoder],
        [row_bytes(cache, n - window, n) for cache in state.windows],
    )


def run(engine, *pieces) -> Run:
    """Prefill the pieces one after the other on a sequence of its own."""
    sequence = engine.sequence()
    for piece in pieces:
        sequence.prefill(piece)
    found = taken(sequence, engine.family.config.decoder_window)
    sequence.close()
    return found


def answer(engine, known, suffix) -> tuple[bytes, PrefillUsage]:
    """The next-token logits of a sequence over `known` ids after the append of `suffix`."""
    sequence = engine.sequence(known)
    usage = sequence.prefill(suffix)
    logits = tensor_bytes(sequence.logits)
    sequence.close()
    return logits, usage


def cold(model, ids, path="native", **options) -> bytes:
    """The next-token logits of one prefill that nothing is known of."""
    engine = Engine(alone(model, path, **options).family, Path(model))
    logits, usage = answer(engine, [], ids)
    assert usage.encoded == len(ids)
    return logits


def publish(model, kv, *texts, path="native", **options):
    """Fill a store with these texts, each prefilled on an engine that is then closed."""
    engine = with_store(model, kv, path, **options)
    for ids in texts:
        answer(engine, [], ids)
    assert not engine.notices
    engine.close()


def empty_rerun(window, n_windowed, settled):
    """Rows run again when windows begin empty: the formula of the design."""
    return settled - max(0, settled - n_windowed * (window - 1)) // 128 * 128
