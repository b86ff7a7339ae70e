"""The parent's answers: whole, kept, continued, and mixed in by their share."""

import fcntl
import json
import re
from itertools import count, islice

import pytest
from safetensors.torch import load_file
from training import Made

from cedagent.chat.template import load_chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine import Engine
from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import write_model
from cedagent.model.tiny import write_tiny
from cedagent.upcycle.training import own_answers
from cedagent.upcycle.training.own_answers import mixed, read_answers, write_answers
from cedagent.upcycle.training.texts import ModelTexts


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A model to which every token is equally likely: some answers end within 200, some do not."""
    made = write_tiny(
        tmp_path_factory.mktemp("parent") / "m",
        n_layers=1, n_encoder_layers=1, hidden_size=16, tie_word_embeddings=False,
    )  # fmt: skip
    tensors = load_file(made / "model.safetensors")
    tensors["lm_head.weight"].zero_()
    write_model(made, LlamaConfig.load(made), tensors, int8=tensors)
    return made


def answer(parent, path, n, *, seed=4, **more):
    tokenizer = Tokenizer.load(parent)
    fmt = load_chat_format(parent, "chatml", tokenizer=tokenizer)
    engine = Engine.load(parent)
    more = {"progress": lambda *step: None} | more
    return write_answers(engine, path, n=n, seed=seed, fmt=fmt, tokenizer=tokenizer, **more)


@pytest.fixture(scope="module")
def whole(parent, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "all.jsonl"
    assert answer(parent, path, 5) == 5
    return path


def test_answers_are_trained_on_in_a_prompt_that_lists_tools(parent, whole):
    examples = read_answers(whole)
    assert 1 <= len(examples) < 5
    tokenizer = Tokenizer.load(parent)
    stop = load_chat_format(parent, "chatml", tokenizer=tokenizer).stop_ids
    for example in examples:
        start = example.trained.index(True)
        output = [t for t, trained in zip(example.ids, example.trained, strict=True) if trained]
        assert output == list(example.ids[start : start + len(output)])
        assert output[-1] in stop
        assert len(output) > 1
    assert any("<tools>" in tokenizer.decode(example.ids) for example in examples)


def test_a_run_goes_on_where_the_file_ends_also_in_the_middle_of_a_line(parent, whole, tmp_path):
    path = tmp_path / "part.jsonl"
    assert answer(parent, path, 2) == 2
    with path.open("a") as file:
        file.write('{"ids": [1, 2')
    assert answer(parent, path, 5) == 5
    assert path.read_text() == whole.read_text()
    assert answer(parent, path, 3) == 5


def test_answers_of_another_seed_or_model_are_not_gone_on_with(parent, whole, tmp_path):
    path = tmp_path / "part.jsonl"
    other = write_tiny(tmp_path / "m", n_layers=1, n_encoder_layers=1)
    path.write_text(whole.read_text())
    for model, seed, message in (
        (parent, 5, "seed was 4, now 5"),
        (other, 4, "model was [0-9a-f]{16}, now [0-9a-f]{16}"),
    ):
        with pytest.raises(UsageError, match=f"holds answers of other settings .{message}.: give"):
            answer(model, path, 6, seed=seed)
    assert path.read_text() == whole.read_text()


def test_answers_that_do_not_say_how_they_were_made_are_read_and_not_gone_on_with(
    parent, whole, tmp_path
):
    path = tmp_path / "old.jsonl"
    path.write_text(re.sub(r', "made_with": \{.*?\}', "", whole.read_text()))
    before = path.read_text()
    assert [one.ids for one in read_answers(path)] == [one.ids for one in read_answers(whole)]
    with pytest.raises(UsageError, match="model was None, now"):
        answer(parent, path, 6)
    assert path.read_text() == before


def test_a_stopped_run_keeps_whole_answers(parent, whole, tmp_path):
    path, seen = tmp_path / "part.jsonl", []
    done = answer(
        parent, path, 5,
        progress=lambda what, done, n: seen.append(done), should_stop=lambda: len(seen) == 2,
    )  # fmt: skip
    assert (done, seen) == (2, [0, 1, 2])
    assert path.read_text() == "".join(whole.read_text().splitlines(keepends=True)[:2])


def test_answers_are_mixed_in_by_their_share_and_go_round():
    answers = [Made([-1], [True]), Made([-2], [True])]
    examples = (Made([i], [True]) for i in count())
    taken = [one.ids[0] for one in islice(mixed(examples, answers, share=0.25, seed=0), 400)]
    assert 60 < sum(t < 0 for t in taken) < 140
    assert abs(taken.count(-1) - taken.count(-2)) <= 1
    assert [t for t in taken if t >= 0] == list(range(sum(t >= 0 for t in taken)))


def test_an_answer_without_a_word_is_none_and_each_has_draws_of_its_own(
    parent, tmp_path, monkeypatch
):
    seeds, space = [], Tokenizer.load(parent).encode(" ")[0]

    def blank(engine, prompt, fmt, *, seed):
        seeds.append(seed)
        return [space]

    monkeypatch.setattr(own_answers, "_answer", blank)
    assert answer(parent, tmp_path / "empty.jsonl", 2) == 2
    lines = (tmp_path / "empty.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(line["ids"], line["trained"]) for line in found] == 2 * [([], [])]
    assert answer(parent, tmp_path / "empty.jsonl", 3) == 3
    assert seeds == [4, 5, 6]


def test_answers_in_another_vocabulary_are_refused(parent):
    answers = [Made([1, 384], [False, True])]
    with pytest.raises(UsageError, match="the answers have token 384, but vocab_size is 384"):
        ModelTexts(parent, longest=100, answers=answers, answers_share=0.5)


def test_answers_are_among_the_transcripts_to_train_on_alone(parent):
    answers = [Made([1, 2], [False, True])]
    texts = ModelTexts(parent, longest=1000, answers=answers, answers_share=1.0)
    assert next(texts.transcripts("train", 0)) is answers[0]
    assert next(texts.transcripts("heldout", 0)) is not answers[0]


def test_each_seed_takes_them_in_an_order_of_its_own():
    answers = [Made([i], [True]) for i in range(20)]
    orders = [
        [one.ids[0] for one in islice(mixed(iter([]), answers, share=1.0, seed=seed), 20)]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(20)) != orders[0]


@pytest.mark.parametrize("content", ["{}", '{"ids": [1]}\nsomething else', "one\ntwo"])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(parent, tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"x\.json: expected answers that .* in line 1"):
        read_answers(path)
    with pytest.raises(UsageError, match=r"x\.json: expected answers that .* in line 1"):
        answer(parent, path, 1)
    assert path.read_text() == content


def test_reading_leaves_a_line_that_is_being_written(whole, tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_text(whole.read_text() + '{"ids": [1, 2')
    assert read_answers(path) == read_answers(whole)
    assert path.read_text() == whole.read_text() + '{"ids": [1, 2'


def test_one_process_writes_a_file_at_a_time(parent, whole, tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_text(whole.read_text())
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=r"another process writes \S+part\.jsonl"):
            answer(parent, path, 6)
    assert path.read_text() == whole.read_text()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}\n",
        '{"ids": [], "trained": []}\n',
        '{"ids": [-1, 3], "trained": [0, 1]}\n',
        '{"ids": [1, 3], "trained": [0, NaN]}\n',
        "[1]\n",
        "nothing\n",
        None,
    ],
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=r"x\.jsonl"):
        read_answers(path)
