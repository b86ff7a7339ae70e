"""Every stage of a V4.1 model's `full` run, under the names that the oracle's trace has.

Wraps the parts of one loaded model from outside; the model's arithmetic is untouched.
"""

from collections import defaultdict

import torch

from cedagent.model import indexer
from cedagent.model.config import TILE


class Spy:
    """Stands for a part: passes calls on and tells `seen(method, arguments, result)`."""

    def __init__(self, part, seen):
        self._part, self._seen = part, seen

    def __call__(self, *args, **kwargs):
        result = self._part(*args, **kwargs)
        self._seen("call", args, result)
        return result

    def __getattr__(self, name):
        method = getattr(self._part, name)

        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            self._seen(name, args, result)
            return result

        return call if callable(method) else method


def blocks_of(model):
    return [*model.encoder._blocks, *model.decoder._blocks]


def trace_full(engine, ids, monkeypatch):
    """Run `ids` with every layer on every token; {(stage, layer): rows, or lists by token}."""
    family = engine.family
    config, n_tokens = family.config, len(ids)
    tiles = defaultdict(list)
    scored = []
    plain_scores = indexer.index_scores

    def index_scores(kernels, q, *args, **kwargs):
        scores = plain_scores(kernels, q, *args, **kwargs)
        scored.append((q, scores))
        return scores

    monkeypatch.setattr(indexer, "index_scores", index_scores)

    def watch(block):
        layer = block.layer

        def keep(name, value):
            tiles[name, layer].append(value.clone())

        def engram(method, args, result):
            keep("remembered", result)

        def attention(method, args, result):
            if method in ("call", "low_rank"):
                keep("attention" if method == "call" else "low", result)

        def picked(method, args, result):
            q, scores = scored.pop()
            shared = args[4].shared
            keep("index_query", q)
            tiles["score", layer].append(scores)
            tiles["picks", layer].append(shared.picks)
            if layer == config.candidate_source_layer_id:
                tiles["blocks", layer].append(shared.candidates)

        def mixes(site):
            def seen(method, args, result):
                for part, value in zip(("pre", "post", "comb"), result, strict=True):
                    keep(f"{site}_{part}", value)
                if site == "ffn":
                    keep("attn_streams", args[0])

            return seen

        def gate(method, args, result):
            for name, value in zip(("weights", "chosen"), result, strict=True):
                keep(name, value)

        def experts(method, args, result):
            keep("inner", args[0])
            keep("experts", result)

        plain_run = block.run

        def run(streams, x, *args):
            result = plain_run(streams, x, *args)
            keep("entered", x)
            keep("ffn_streams", result[0])
            return result

        monkeypatch.setattr(block, "run", run)
        monkeypatch.setattr(block._experts, "_gate", Spy(block._experts._gate, gate))
        for name, seen in (
            ("_engram", engram),
            ("_attention", attention),
            ("_indexer", picked),
            ("_attention_mix", mixes("attn")),
            ("_ffn_mix", mixes("ffn")),
            ("_experts", experts),
        ):
            part = getattr(block, name)
            if part is not None:
                monkeypatch.setattr(block, name, Spy(part, seen))

    for block in blocks_of(family.model):
        watch(block)
    state = family.new_state()
    with engine.forward():
        for tile in range(-(-n_tokens // TILE)):
            family.encode_tile(state, ids, tile=tile)
        logits = family.score(state, n_tokens=n_tokens)
        trace = {("logits", None): logits}
        for (name, layer), parts in tiles.items():
            if name in ("score", "picks", "blocks"):
                rows = [row for part in parts for row in part][:n_tokens]
                width = n_tokens // config.ratio(layer)
                trace[name, layer] = _square(rows, width) if name == "score" else _lists(name, rows)
            else:
                trace[name, layer] = torch.cat(parts)[:n_tokens]
        for layer in range(config.num_hidden_layers):
            first = layer - config.n_encoder_layers
            rows = state.windows[layer] if first < 0 else state.decoder_windows[first]
            trace["window", layer] = rows.values(0, n_tokens).clone()
        for layer, source in state.sources.items():
            n_rows = n_tokens // source.ratio
            trace["latent", layer] = source.latents.values(0, n_rows).clone()
            trace["key", layer] = source.keys.values(0, n_rows).clone()
    return trace


def _lists(name, rows):
    """Picks as lists of rows, candidate blocks as sets."""
    if name == "picks":
        return [[int(j) for j in row if j >= 0] for row in rows]
    return [set(row.nonzero()[:, 0].tolist()) for row in rows]


def _square(rows, width):
    """[T, N] scores of rows whose tiles saw fewer stored rows, or padding's."""
    scores = torch.full((len(rows), width), float("-inf"))
    for t, row in enumerate(rows):
        scores[t, : len(row)] = row[:width]
    return scores
