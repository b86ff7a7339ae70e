"""Runs of small V4.1 models, and every row they leave, as bytes: what equality is asserted on.

A run closes its sequence, so that no later run of the same engine copies its rows from RAM.
"""

import random
from dataclasses import dataclass

from cedagent.engine import Engine
from cedagent.engine.protocol import PrefillUsage
from cedagent.model.tiny_v41 import write_tiny_v41

VOCAB = 352
SMALL = {"n_decoder_layers": 3, "n_experts": 4, "vocab_size": VOCAB}
"""Every layer mode in seven layers: two window-only, Full, Reuse | Full, Reuse, Reindex; W = 16."""
WIDE = {"n_encoder_layers": 4, "n_decoder_layers": 2, "window": 100, "n_experts": 4}
"""W = 100: without a snapshot a re-run reaches back 100 + 4 * 99 rows, four or five tiles."""


def write_small(dst, **changes):
    return write_tiny_v41(dst, **{**SMALL, **changes})


def write_wide(dst, **changes):
    return write_tiny_v41(dst, **{**WIDE, "vocab_size": VOCAB, **changes})


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


def cold(engine: Engine, ids) -> bytes:
    """The next-token logits of one prefill that nothing is known of; `engine` has no store."""
    assert engine.store is None
    logits, usage = answer(engine, [], ids)
    assert usage.encoded == len(ids)
    return logits


def publish(model, kv, *known, **settings):
    """Fill a store with these texts, each prefilled on an engine that is then closed."""
    engine = Engine.load(model, kv=kv, **settings)
    for ids in known:
        answer(engine, [], ids)
    assert not engine.notices
    engine.close()
