"""The order of windows: every figure is that of a model with these windows, every step the best."""

import json
import random
from dataclasses import replace

import pytest
import torch
from plain_llama import random_parent
from tokenizers import Tokenizer

from cedagent.engine import Engine
from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import write_model
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.source import Parent, parent_config
from cedagent.upcycle.training import window_order as module
from cedagent.upcycle.training.texts import compared_documents
from cedagent.upcycle.training.window_order import document_length, window_order

E, L, W = 4, 5, 6


def some_parent(layers, *, context=512, tokenizer=None):
    fields, tensors = random_parent(layers=layers, hidden=32, heads=2, head_dim=16)
    for layer in range(layers):
        # The higher a layer, the more it has to say, so that the last is not windowed first.
        tensors[f"model.layers.{layer}.self_attn.o_proj.weight"] *= 0.1 * 3**layer
    config = parent_config(fields | {"max_position_embeddings": context}, where="config.json")
    tokenizer_json = (tokenizer or build_tiny(384)).to_str()
    return Parent(config, tensors, tokenizer_json, {})


def shape(parent, n_encoder_layers, window):
    return replace(
        parent.config,
        n_encoder_layers=n_encoder_layers,
        encoder_global_layers=tuple(range(n_encoder_layers)),
        decoder_window=window,
    )


@pytest.fixture(scope="module")
def parent():
    return some_parent(L)


@pytest.fixture(scope="module")
def documents():
    draw = random.Random(2)
    return [draw.choices(range(384), k=59) for _ in range(3)]


@pytest.fixture(scope="module")
def order(parent, documents):
    return window_order(parent, documents, config=shape(parent, E, W))


@pytest.fixture(scope="module")
def kl_of(parent, documents, tmp_path_factory):
    """KL of the parent with these layers windowed, by the engine that serves such a model."""
    folder = tmp_path_factory.mktemp("models")

    def logits(windowed):
        values = parent.config.as_json() | {
            "decoder_window": W,
            "encoder_global_layers": [layer for layer in range(L) if layer not in windowed],
        }
        made = folder / "-".join(map(str, ["m", *sorted(windowed)]))
        made.mkdir(exist_ok=True)
        write_model(made, LlamaConfig.from_json(values), parent.tensors)
        engine = Engine.load(made, precision="float32", mode="full")
        rows = [engine.logits(ids)[2 * W :: 4] for ids in documents]
        return torch.cat(rows).log_softmax(-1)

    theirs = logits(())

    def kl(windowed):
        mine = logits(windowed)
        return float((theirs.exp() * (theirs - mine)).sum(-1).mean())

    return kl


def test_each_layer_alone_costs_what_a_model_with_this_window_loses(order, kl_of):
    for layer, kl in enumerate(order.alone):
        assert kl > 1e-3
        assert kl == pytest.approx(kl_of({layer}), rel=1e-3)


def test_every_choice_is_the_best_step_from_the_one_before(order, kl_of):
    assert [len(choice.global_layers) for choice in order.choices] == [4, 3, 2, 1]
    assert order.choices[0].kl == 0
    # A layer with others above it, which are then compared on what it gives.
    assert order.choices[1].global_layers == (0, 2, 3)
    for before, after in zip(order.choices, order.choices[1:], strict=False):
        costs = {
            layer: kl_of(set(range(E)) - set(before.global_layers) | {layer})
            for layer in before.global_layers
        }
        assert after.kl == pytest.approx(min(costs.values()), rel=1e-3)
        (taken,) = set(before.global_layers) - set(after.global_layers)
        assert costs[taken] == min(costs.values())
        assert after.global_layers == tuple(sorted(after.global_layers))


def test_the_first_two_windows_are_not_compared(order, documents):
    assert order.n_positions == len(documents) * len(range(2 * W, 59, 4))


def test_only_the_cheapest_few_are_tried(parent, documents, order, monkeypatch):
    monkeypatch.setattr(module, "_TRIED", 1)
    steps = []
    found = window_order(
        parent, documents, config=shape(parent, E, W), progress=lambda *step: steps.append(step)
    )
    # By their single figures alone; and one set after the other is reported.
    cheapest = sorted(range(E), key=order.alone.__getitem__)
    assert [set(choice.global_layers) for choice in found.choices] == [
        set(cheapest[n:]) for n in range(E)
    ]
    assert steps == [("compare", done, 6) for done in range(7)]


def test_bfloat16_products_tell_the_same(parent, documents, order):
    found = window_order(parent, documents, config=shape(parent, E, W), dtype=torch.bfloat16)
    assert found.alone == pytest.approx(order.alone, rel=0.15)


def test_one_encoder_layer_stays_global(parent, documents):
    found = window_order(parent, documents, config=shape(parent, 1, W))
    assert [choice.global_layers for choice in found.choices] == [(0,)]


def test_documents_are_long_enough_for_the_window_and_short_enough_for_the_context():
    assert document_length(shape(some_parent(2, context=4096), 2, 128)) == 768
    assert document_length(shape(some_parent(2, context=4096), 2, 300)) == 1200
    assert document_length(shape(some_parent(2, context=700), 2, 300)) == 700
    with pytest.raises(UsageError, match="expected less than half of the checkpoint's context"):
        document_length(shape(some_parent(2, context=700), 2, 350))


@pytest.mark.slow
def test_documents_are_held_out_text_half_of_it_transcripts(parent):
    documents = compared_documents(parent, n=4, length=3000)
    assert [len(ids) for ids in documents] == [3000] * 4
    turn = build_tiny(384).token_to_id("<|im_start|>")
    assert [turn in ids for ids in documents] == [False, True, False, True]
    assert documents[0] != documents[2]


@pytest.mark.slow
def test_a_tokenizer_without_turns_has_plain_text_alone():
    spec = json.loads(build_tiny(384).to_str())
    spec["added_tokens"] = spec["added_tokens"][:1]
    bare = some_parent(2, tokenizer=Tokenizer.from_str(json.dumps(spec)))
    documents = compared_documents(bare, n=3, length=100)
    assert len({tuple(ids) for ids in documents}) == 3
