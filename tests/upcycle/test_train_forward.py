"""Training computes what is served: the same logits, whole and after a bounded replay."""

import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from cedagent.engine import Engine
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.rope import Rope
from cedagent.model.tiny import write_tiny
from cedagent.upcycle.training.adapters import frozen_weights
from cedagent.upcycle.training.attention import Documents, Layout, Stretch, whole
from cedagent.upcycle.training.forward import TrainModel, parent_of

LENGTHS = (261, 1, 17, 128, 129)


def some_ids(n, seed=0):
    return random.Random(seed).choices(range(384), k=n)


def train_model(model_dir, dtype=torch.float32):
    tensors = load_file(model_dir / "model.safetensors")
    frozen = frozen_weights(tensors, dtype=dtype, device=torch.device("cpu"))
    return TrainModel(LlamaConfig.load(model_dir), frozen)


def side_by_side(lengths):
    """Documents of these lengths, one each, and their ids."""
    documents, ids = [], []
    for seed, length in enumerate(lengths):
        documents.append(Documents(len(ids), 1, length))
        ids += some_ids(length, seed)
    return documents, torch.tensor(ids)


def run(model, ids, documents, stretches):
    e_out = model.encode(model.embed(ids), documents)
    return model.logits(model.decode(e_out, documents, stretches))


MODELS = {
    "yoco": {"window": 0, "n_encoder_layers": 2},
    "w16": {"window": 16, "n_encoder_layers": 3, "n_heads": 4, "n_kv_heads": 2},
    "w128": {"window": 128, "n_encoder_layers": 2, "tie_word_embeddings": False},
    # Wider than the rows that share a run of keys.
    "w200": {"window": 200, "n_encoder_layers": 2},
    "decoder only": {"window": 16, "n_encoder_layers": 5},
    "windowed": {"window": 16, "n_encoder_layers": 4, "encoder_global_layers": (1, 3)},
    "all windowed": {"window": 128, "n_encoder_layers": 3, "encoder_global_layers": ()},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: write_tiny(folder / name, n_layers=5, int8=False, seed=i, **shape)
        for i, (name, shape) in enumerate(MODELS.items())
    }


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_a_full_engine(models, name):
    engine = Engine.load(models[name], precision="float32", mode="full")
    documents, ids = side_by_side(LENGTHS)
    logits = run(train_model(models[name]), ids, documents, whole(documents))
    for one in documents:
        expected = engine.logits(one.of(ids)[0].tolist())
        assert torch.allclose(one.of(logits)[0], expected, atol=1e-4, rtol=0)


def test_documents_of_one_length_run_side_by_side_as_they_do_alone(models):
    model = train_model(models["w16"])
    ids = torch.tensor(some_ids(3 * 77))
    together = [Documents(0, 3, 77)]
    alone = [Documents(0, 1, 77), Documents(77, 1, 77), Documents(154, 1, 77)]
    a, b = (run(model, ids, documents, whole(documents)) for documents in (together, alone))
    assert torch.allclose(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "replay_windows"),
    [
        ("yoco", 1), ("w16", 2), ("w128", 1), ("w200", 2), ("windowed", 1), ("all windowed", 1),
        *(pytest.param(*more, marks=pytest.mark.slow)
          for more in (("w16", 1), ("w128", 2), ("w200", 1), ("windowed", 2), ("all windowed", 2)))
    ],
)  # fmt: skip
def test_a_stretch_is_a_bounded_prefill_and_what_is_fed_after_it(models, name, replay_windows):
    model = train_model(models[name])
    config = replace(model.config, replay_windows=replay_windows)
    engine = Engine.load(
        models[name], precision="float32", mode="bounded", replay_windows=replay_windows
    )
    draw = random.Random(name)
    # The first replay starts within its text, the second may be the whole of it.
    ends = [config.replay_rows(500) + draw.randrange(20, 150), draw.randrange(1, 145)]
    documents, ids = side_by_side((ends[0] + 11, 150))
    stops = [min(end + 25, one.length) for end, one in zip(ends, documents, strict=True)]
    starts = [end - config.replay_rows(end) for end in ends]
    stretches = [Stretch(*of) for of in zip(documents, starts, stops, strict=True)]
    logits = run(model, ids, documents, stretches)
    used = 0
    for one, (_, start, stop), end in zip(documents, stretches, ends, strict=True):
        rows = logits[used : used + stop - start]
        used += stop - start
        text = one.of(ids)[0].tolist()
        sequence = engine.sequence()
        sequence.prefill(text[:end])
        for pos in range(end - 1, stop):
            assert torch.allclose(rows[pos - start], sequence.logits, atol=1e-4, rtol=0), pos
            if pos + 1 < stop:
                sequence.feed(text[pos + 1])


def test_a_replay_differs_from_a_whole_text_where_its_window_was_cut(models):
    model = train_model(models["w16"])
    documents, ids = side_by_side((90,))
    everything = run(model, ids, documents, whole(documents))
    replayed = run(model, ids, documents, [Stretch(documents[0], 60, 90)])
    difference = (everything[60:] - replayed).abs().amax(1)
    assert difference[14] > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("window", "has_global"),
    [(None, False), (1, False), (19, False), (0, True), (1, True), (19, True), (128, True)],
)
def test_both_implementations_attend_alike_and_have_the_same_gradients(dtype, window, has_global):
    config = LlamaConfig.from_json(PLAIN | {"decoder_window": 19})
    documents = [Documents(0, 2, 201), Documents(402, 1, 7)]
    stretches = whole(documents) if window is None else [
        Stretch(documents[0], 40, 201), Stretch(documents[1], 0, 7)
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(1)

    def rows(n, heads):
        return torch.randn(n, heads, 16, generator=generator).to(dtype).requires_grad_()

    n_rows = sum(stretch.n_rows for stretch in stretches)
    own = rows(n_rows, 4), rows(n_rows, 2), rows(n_rows, 2)
    far = (rows(409, 2), rows(409, 2)) if has_global else None
    found = []
    for impl in ("products", "fused"):
        layout = Layout(stretches, rope=Rope(config), device=torch.device("cpu"), impl=impl)
        attended = layout.attend(*own, window=window, far=far)
        attended.float().square().sum().backward()
        taken = [*own, *(far or ())]
        found.append([attended.float(), *(part.grad.float() for part in taken)])
        for part in taken:
            part.grad = None
    atol = 1e-4 if dtype is torch.float32 else 0.1
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, atol=atol, rtol=0.02)


@pytest.mark.parametrize("impl", ["products", "fused"])
def test_only_keys_within_reach_are_multiplied(impl):
    """What no row of a block sees may be anything, as a mask would not make it."""
    config = LlamaConfig.from_json(PLAIN | {"decoder_window": 19, "max_position_embeddings": 700})
    layout = Layout([Stretch(Documents(0, 1, 700), 40, 700)], rope=Rope(config),
                    device=torch.device("cpu"), impl=impl)  # fmt: skip
    q, k, v = torch.ones(660, 4, 16), torch.ones(660, 2, 16), torch.ones(660, 2, 16)
    far = torch.ones(700, 2, 16), torch.ones(700, 2, 16)
    # Of the stretch's last block of rows, 128 or 512 in each, position 552 is the first.
    k[:480] = far[0][700 - 19 :] = torch.nan
    attended = layout.attend(q, k, v, window=19, far=far)
    assert torch.isfinite(attended[512:]).all()


def test_the_parent_sees_everything_in_every_layer(models):
    config = LlamaConfig.load(models["windowed"])
    parent = parent_of(config)
    assert parent.encoder_global_layers == (0, 1, 2, 3, 4)
    assert parent.n_decoder_layers == 0


PLAIN = {
    "model_type": "ced_llama", "vocab_size": 384, "hidden_size": 48, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "n_encoder_layers": 1, "encoder_global_layers": [0],
}  # fmt: skip
