"""Runs of small V4.1 models, and every row they leave, as bytes: what equality is asserted on.

A run closes its sequence, so that no later run of the same engine copies its rows from RAM. A model
is loaded once in a process: engines with other settings, or with a store, share its weights.
"""

import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from cedagent.engine import Engine
from cedagent.engine.prefix_store import open_store
from cedagent.engine.protocol import PrefillUsage
from cedagent.engine.settings import Settings
from cedagent.engine.v41.family import V41Family
from cedagent.model.tiny_v41 import write_tiny_v41

VOCAB = 352
SMALL = {
    "n_decoder_layers": 3, "vocab_size": VOCAB, "hidden_size": 64, "n_heads": 2,
    "q_lora_rank": 32, "n_experts": 4, "moe_intermediate_size": 32, "index_n_heads": 2,
}  # fmt: skip
"""Every layer mode in seven layers: two window-only, Full, Reuse | Full, Reuse, Reindex; W = 16."""
WIDE = {**SMALL, "n_encoder_layers": 3, "n_decoder_layers": 2, "window": 100}
"""W = 100: without a snapshot a re-run reaches back 100 + 3 * 99 rows, four tiles."""


def write_small(dst, **changes):
    model = write_tiny_v41(dst, **{**SMALL, **changes})
    # Twenty iterations of balancing take a third of a tiny model's time.
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["hc_sinkhorn_iters"] = 2
    (model / "config.json").write_text(json.dumps(config))
    return model


def write_wide(dst, **changes):
    return write_small(dst, **{**WIDE, **changes})


def slow(*values):
    """A case of a parametrised test that waits for the long run."""
    return pytest.param(*values, marks=pytest.mark.slow)


@functools.cache
def _loaded(model):
    return Engine.load(model).family.model


@functools.cache
def alone(model, *, mode="bounded", replay_windows=None):
    """The engine of a model and settings, without a store."""
    return Engine(V41Family(_loaded(model), mode=mode, replay_windows=replay_windows), Path(model))


def with_store(model, kv, **options):
    """A new engine on the store in folder `kv`; the caller closes it."""
    family = alone(model, **options).family
    store, refusal = open_store(family, Path(model), Settings(kv=kv))
    assert refusal is None
    return Engine(family, Path(model), store=store)


def some_ids(n, seed=0, vocab=VOCAB):
    return random.Random(seed).choices(range(3, vocab), k=n)


def row_bytes(rows, start, stop):
    """Codes and scales of rows [start, stop) of one run of stored rows."""
    return b"".join(part.numpy().tobytes() for part in rows.stored(start, stop))


def tensor_bytes(*tensors):
    return b"".join(t.contiguous().numpy().tobytes() for t in tensors if t is not None)


def source_rows(state, n_tokens):
    """Codes and scales of every complete group below `n_tokens`, by source and kind."""
    found = {}
    for layer, source in state.sources.items():
        stop = n_tokens // source.ratio
        found[f"latent.{layer}"] = row_bytes(source.latents, 0, stop)
        found[f"index_key.{layer}"] = row_bytes(source.keys, 0, stop)
    return found


def pending_tokens(state):
    """Projections of each source's token without a partner."""
    kept = {layer: source.pending for layer, source in state.sources.items()}
    return {layer: tensor_bytes(*pending) for layer, pending in kept.items() if pending}


def last_rows(windows, n_tokens, window):
    """The last W rows of every layer's window, as bytes."""
    return [row_bytes(own, max(0, n_tokens - window), n_tokens) for own in windows]


@dataclass
class Run:
    """What a sequence was left with; compared with == it is compared bit for bit."""

    logits: bytes
    sources: dict[str, bytes]
    pending: dict[int, bytes]
    encoder_windows: list[bytes]
    decoder_windows: list[bytes]


def taken(sequence):
    """Everything a sequence holds after a prefill or a decoded token."""
    state, n = sequence._state, len(sequence.ids)
    window = state.config.window
    return Run(
        tensor_bytes(sequence.logits),
        source_rows(state, n),
        pending_tokens(state),
        last_rows(state.windows, n, window),
        last_rows(state.decoder_windows, n, window),
    )


def run(engine: Engine, *pieces) -> Run:
    """Prefill the pieces one after the other on a sequence of its own."""
    sequence = engine.sequence()
    for piece in pieces:
        sequence.prefill(piece)
    found = taken(sequence)
    sequence.close()
    return found


def answer(engine: Engine, known, suffix) -> tuple[bytes, PrefillUsage]:
    """The next-token logits of a sequence over `known` ids after the append of `suffix`."""
    sequence = engine.sequence(known)
    usage = sequence.prefill(suffix)
    logits = tensor_bytes(sequence.logits)
    sequence.close()
    return logits, usage


def cold(model, ids, **options) -> bytes:
    """The next-token logits of one prefill that nothing is known of."""
    engine = Engine(alone(model, **options).family, Path(model))
    logits, usage = answer(engine, [], ids)
    assert usage.encoded == len(ids)
    return logits


def publish(model, kv, *texts, **options):
    """Fill a store with these texts, each prefilled on an engine that is then closed."""
    engine = with_store(model, kv, **options)
    for ids in texts:
        answer(engine, [], ids)
    assert not engine.notices
    engine.close()
