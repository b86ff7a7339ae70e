"""What a store of V4.1 rows is keyed by and how often it is hit: tokens fed are tokens found."""

import random

import pytest
import torch

from cedagent.engine import Engine
from cedagent.model.tiny_v41 import write_tiny_v41

pytestmark = pytest.mark.slow

VOCAB, EOS = 352, 1
IDS = random.Random(2).choices(range(3, VOCAB), k=400)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_v41(
        tmp_path_factory.mktemp("m") / "model",
        n_encoder_layers=3, n_decoder_layers=2, n_experts=4, vocab_size=VOCAB, window=16,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cold(model):
    return Engine.load(model)


def prefill(engine, ids, known=()):
    sequence = engine.sequence(known)
    usage = sequence.prefill(ids)
    logits = sequence.logits.clone()
    sequence.close()
    return usage, logits


@pytest.fixture
def engine(model, tmp_path):
    """Engines over one store, one after the other."""
    opened = []

    def reopen():
        for old in opened:
            old.close()
        opened.append(Engine.load(model, kv=tmp_path / "kv"))
        return opened[-1]

    yield reopen
    for old in opened:
        old.close()


@pytest.mark.parametrize("n_tokens", [128, 257])
def test_an_identical_prompt_sent_again_is_a_hit(engine, cold, n_tokens):
    """Also short ones, and ones that end with a block: no page of thousands, no tail to shift.

    https://github.com/vllm-project/vllm/issues/42948 (no hits on an identical prompt) and
    https://github.com/vllm-project/vllm-ascend/issues/16270 (none below 4,096 tokens).
    """
    ids = IDS[:n_tokens]
    first, logits = prefill(engine(), ids)
    assert (first.reused_disk, first.encoded) == (0, n_tokens)
    again, same = prefill(engine(), ids)
    assert again.reused_disk == n_tokens // 128 * 128 > 0
    assert again.encoded == n_tokens % 128
    assert torch.equal(logits, same)
    assert torch.equal(prefill(cold, ids)[1], same)


def test_an_open_sequence_lends_an_identical_prompt_in_ram(cold):
    first = cold.sequence()
    first.prefill(IDS[:300])
    usage, logits = prefill(cold, IDS[:300])
    assert (usage.reused_ram, usage.encoded) == (256, 44)
    assert torch.equal(logits, first.logits)
    first.close()


@pytest.mark.parametrize("changed", [0, 127])
def test_one_other_token_anywhere_in_a_block_is_no_hit(cold, changed):
    first = cold.sequence()
    first.prefill(IDS[:130])
    other = list(IDS[:130])
    other[changed] = (other[changed] - 2) % (VOCAB - 3) + 3
    usage, _ = prefill(cold, other)
    assert (usage.reused_ram, usage.encoded) == (0, 130)
    first.close()


def test_less_than_one_block_is_encoded_again(engine):
    """127 tokens are below the unit of reuse, and the usage says so."""
    for _ in range(2):
        usage, _ = prefill(engine(), IDS[:127])
        assert (usage.reused_disk, usage.encoded) == (0, 127)


@pytest.mark.parametrize("n_fed", [128, 257])
def test_a_hit_is_as_long_as_the_whole_blocks_that_were_fed(engine, n_fed):
    """The offset of what is stored is the number of ids fed, not one more or less.

    https://github.com/osaurus-ai/osaurus/pull/2276: each tool round moved positions by one.
    """
    prefill(engine(), IDS[:n_fed])
    store = engine().store
    whole = n_fed // 128 * 128
    assert store.match(IDS).position == whole
    assert store.match(IDS[1:]).position == 0
    for wrong in (0, whole - 128, whole - 1):
        changed = list(IDS)
        changed[wrong] = (changed[wrong] - 2) % (VOCAB - 3) + 3
        assert store.match(changed).position == wrong // 128 * 128
    assert [anchor.n_tokens for anchor in store.anchors()] == [n_fed]


@pytest.mark.parametrize("closing", ["fed", "appended unseen"])
def test_an_end_token_counts_alike_written_and_read(engine, cold, closing):
    """127 tokens and the end: exactly one block, however the end came into the sequence.

    https://github.com/yanun0323/Whallm/pull/12: the end was counted once but fed twice.
    """
    writer = engine()
    sequence = writer.sequence()
    sequence.prefill(IDS[:120])
    for token in IDS[120:127]:
        sequence.feed(token)
    if closing == "fed":
        sequence.feed(EOS)
    else:
        sequence.append_unseen([EOS])
    sequence.settle()
    text = [*IDS[:127], EOS]
    assert sequence.ids == tuple(text)
    suffix = IDS[200:205]
    reader = engine()
    usage, logits = prefill(reader, suffix, known=text)
    assert (usage.reused_disk, usage.encoded) == (128, 5)
    assert torch.equal(logits, prefill(cold, [*text, *suffix])[1])
    usage, logits = prefill(reader, suffix, known=IDS[:127])
    assert (usage.reused_disk, usage.encoded) == (0, 132), "without the end it is another text"
    assert torch.equal(logits, prefill(cold, [*IDS[:127], *suffix])[1])
    usage, _ = prefill(reader, suffix, known=[*text, EOS])
    assert (usage.reused_disk, usage.encoded) == (128, 6), "nor are two ends one"


def test_a_block_is_known_by_all_tokens_before_it(engine, cold):
    """The same 128 ids after another first block are another text: no row of one session in
    another's. https://github.com/vllm-project/vllm-ascend/issues/10296"""
    first, second, shared = IDS[:128], IDS[128:256], IDS[256:384]
    prefill(engine(), first + shared)
    reader = engine()
    usage, logits = prefill(reader, second + shared)
    assert usage.reused_disk == 0
    assert torch.equal(logits, prefill(cold, second + shared)[1])
    usage, _ = prefill(reader, shared)
    assert usage.reused_disk == 0


def test_a_hit_reads_no_other_requests_windows(cold):
    """Two sessions over one prefix, each going its own way, answer as they do alone.

    https://github.com/ROCm/ATOM/issues/1417: a hit across requests read a stale ring.
    """
    prefix, a, b = IDS[:140], IDS[200:260], IDS[260:390]
    expected = [prefill(cold, prefix + own)[1] for own in (a, b)]
    first = cold.sequence()
    first.prefill(prefix)
    first.prefill(a)
    second = cold.sequence()
    assert second.prefill(prefix + b).reused_ram == 128
    assert torch.equal(first.logits, expected[0])
    assert torch.equal(second.logits, expected[1])
    for token in a[:5]:
        first.feed(token)
    first.settle()
    again, logits = prefill(cold, prefix + b)
    assert again.reused_ram >= 128
    assert torch.equal(logits, expected[1])
    first.close()
    second.close()


def test_what_was_decoded_and_taken_back_leaves_no_trace(cold):
    """A fork behind decoded tokens goes on as if they had never been.

    https://github.com/raullenchai/Rapid-MLX/pull/1469: pooled state did not rewind.
    """
    sequence = cold.sequence()
    sequence.prefill(IDS[:131])
    for token in IDS[300:306]:
        sequence.feed(token)
    fork = sequence.fork(131)
    fork.prefill(IDS[131:140])
    assert torch.equal(fork.logits, prefill(cold, IDS[:140])[1])
    sequence.settle()
    fork = sequence.fork(131)
    fork.prefill(IDS[131:140])
    assert torch.equal(fork.logits, prefill(cold, IDS[:140])[1])
    sequence.close()
    fork.close()


def test_a_conversation_is_encoded_once(cold):
    """A tool loop appends and decodes; only tokens since the last whole block are known again.

    https://github.com/yanun0323/Whallm/pull/12: every tool round ran the whole prompt again.
    """
    sequence = cold.sequence()
    sequence.prefill(IDS[:130])
    position = 130
    for _ in range(3):
        for token in IDS[position : position + 5]:
            sequence.feed(token)
        sequence.settle()
        settled = (position + 5) // 128 * 128
        usage = sequence.prefill(IDS[position + 5 : position + 50])
        position += 50
        assert (usage.reused_ram, usage.encoded) == (settled, position - settled)
        assert usage.rerun == 0, "its windows are still there"
        assert torch.equal(sequence.logits, prefill(cold, IDS[:position])[1])
    sequence.close()
