"""Plain text: lengths, kinds, files, and samples that the caller gives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedagent.chat.template import chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data import (
    chat_prompts,
    interleaved,
    plain_example,
    plain_examples,
    plain_sources,
)
from cedagent.upcycle.data.plain_sources import Source, heldout_sources, sources


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small packages with prose, code and data."""
    root = tmp_path_factory.mktemp("packages")
    for i in range(60):
        folder = root / f"package{i % 3}" / f"part{i}"
        folder.mkdir(parents=True)
        words = " ".join(f"word{j % (90 + i)}" for j in range(4_500))
        code = "\n\n".join(f'"""About {j}. {words[: 90 + j]}"""\nx{j} = {j}' for j in range(120))
        (folder / f"read{i}.md").write_text(words.replace("7 ", "7\n"))
        (folder / f"code{i}.py").write_text(code)
        (folder / f"data{i}.json").write_text(words.replace("3 ", "3\n"))
    return root


@pytest.fixture
def installed(packages: Path, monkeypatch) -> Iterator[None]:
    """Nothing is installed but those packages."""
    paths = dict.fromkeys(("stdlib", "purelib", "platlib"), str(packages))
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
    plain_sources.sources.cache_clear()
    yield
    plain_sources.sources.cache_clear()


def test_a_small_installation_is_found_whole(installed) -> None:
    found = Counter((source.kind, source.part) for source in sources())
    assert [found[kind, "all"] for kind in ("prose", "code", "data")] == [60, 60, 60]
    assert found["prose", "docstrings"] == 60
    docs = next(source for source in sources() if source.part == "docstrings")
    assert docs.text().startswith("About 0. word0")
    assert '"""' not in docs.text()


def test_training_and_the_held_out_side_read_other_files(installed, tokenizer, monkeypatch) -> None:
    real, read = Source.text, set()
    monkeypatch.setattr(Source, "text", lambda self: read.add(self) or real(self))
    examples = plain_examples(tokenizer, split="train", seed=5, lengths=(64, 256))
    for _ in itertools.islice(examples, 40):
        pass
    trained = {source.path for source in read if source.part != "topic"}
    assert len(trained) > 15
    assert not any(source.is_heldout for source in read)
    read.clear()
    list(plain_examples(tokenizer, split="heldout", seed=5, lengths=(64, 256)))
    assert len(read) > 5
    assert all(source.is_heldout for source in read)


def test_documents_have_the_wanted_lengths_and_all_but_the_first_id_is_trained(
    installed, tokenizer
) -> None:
    sizes = []
    for example in itertools.islice(plain_examples(tokenizer, split="train", seed=1), 25):
        assert len(example.ids) == len(example.trained)
        assert example.trained == (False, *[True] * (len(example.ids) - 1))
        sizes.append(len(example.ids))
    assert 256 <= min(sizes) < 500
    assert 2_000 < max(sizes) <= 4096


def test_lengths_can_be_chosen(installed, tokenizer) -> None:
    found = plain_examples(tokenizer, split="heldout", seed=1, lengths=(777, 777))
    assert {len(example.ids) for example in itertools.islice(found, 10)} == {777}


def test_held_out_documents_are_each_from_another_file_and_end(tokenizer, monkeypatch) -> None:
    few = [source for source in made_up_sources(500) if source.is_heldout]
    assert len(few) > 20
    monkeypatch.setattr("cedagent.upcycle.data.plain_sources.sources", lambda: tuple(few))
    read: Counter[Source] = Counter()
    monkeypatch.setattr(Source, "text", lambda self: read.update([self]) or "word " * 400)
    texts = list(plain_examples(tokenizer, split="heldout", seed=3))
    assert set(read) == set(few)
    assert set(read.values()) == {1}
    assert len(texts) >= len(few)


def made_up_sources(n: int) -> list[Source]:
    """Sources of all kinds in folders of ten; there are no files."""
    kinds = ("prose", "code", "data")
    return [
        Source(kinds[i % 3], f"p{i // 10}/f{i}.py", f"p{i // 10}", None, 9_000) for i in range(n)
    ]


def test_what_is_trained_on_elsewhere_is_not_held_out(monkeypatch) -> None:
    plain = made_up_sources(200)
    generated = [Source("code", f"ops/g{i}.h", "ops", None, 9_000) for i in range(1_000)]
    topics = [Source("prose", f"topics/{i}", "topics", None, 9, "topic") for i in range(200)]
    found = (*plain, *generated, *topics)
    assert sum(source.is_heldout for source in generated) > 20
    assert sum(source.is_heldout for source in topics) > 3
    monkeypatch.setattr("cedagent.upcycle.data.plain_sources.sources", lambda: found)
    assert heldout_sources() == [source for source in plain if source.is_heldout]
    fewer = (*plain, *generated[1:])
    monkeypatch.setattr("cedagent.upcycle.data.plain_sources.sources", lambda: fewer)
    assert len(heldout_sources()) > len([source for source in plain if source.is_heldout])


@pytest.mark.slow
def test_training_reads_no_held_out_file_of_this_installation(tokenizer, monkeypatch) -> None:
    read = set()
    real = Source.text
    monkeypatch.setattr(Source, "text", lambda self: read.add(self) or real(self))
    examples = plain_examples(tokenizer, split="train", seed=5, lengths=(64, 256))
    for _ in itertools.islice(examples, 60):
        pass
    assert len(read) > 20
    assert not any(source.is_heldout for source in read)
    assert {source.kind for source in read} == {"prose", "code", "data"}


@pytest.mark.slow
def test_sources_are_of_every_kind_and_have_text() -> None:
    found = sources()
    kinds = Counter((source.kind, source.part) for source in found)
    assert kinds["code", "all"] > 500
    assert kinds["prose", "docstrings"] > 100
    assert kinds["prose", "topic"] > 10
    assert kinds["data", "all"] > 3
    names = [source.name for source in found]
    assert names == sorted(names)
    assert not [name for name in names if "LICENSE" in name or "/tests/" in name]
    assert not [name for name in names if name.startswith(("cedagent", "ced_"))]
    topic = next(source for source in found if source.part == "topic")
    assert len(topic.text()) > 1_000
    docs = next(s for s in found if s.part == "docstrings" and s.name == "argparse.py")
    assert "parser" in docs.text()
    assert "def " not in docs.text()[:200]
    readme = next(source for source in found if source.name.endswith("METADATA"))
    assert not readme.text().startswith("Metadata-Version")


def test_a_file_that_is_no_utf8_is_left_out(tmp_path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"\xff\xfe\xff")
    assert Source("code", "a.py", "a", path, 3).text() == ""
    assert Source("code", "b.py", "b", tmp_path / "b.py", 3).text() == ""


def test_samples_of_the_caller_come_in_their_share(tokenizer) -> None:
    own = (plain_example([7, 8, 9]) for _ in range(400))
    given = [[1, 2, 3, 4]] * 400
    mixed = list(itertools.islice(interleaved(own, given, share=0.3, seed=1), 300))
    share = sum(example.ids == (1, 2, 3, 4) for example in mixed) / len(mixed)
    assert 0.2 < share < 0.4
    assert {example.trained for example in mixed} == {(False, True, True), (False, *[True] * 3)}
    few = list(interleaved(iter([plain_example([5, 6])] * 50), [[1, 2]] * 2, share=0.5, seed=2))
    assert sum(example.ids == (1, 2) for example in few) == 2


def test_prompts_for_the_parent_list_no_tools_and_its_answers_do(tokenizer) -> None:
    fmt = chat_format("chatml", tokenizer=tokenizer)
    with_tools = 0
    for prompt in itertools.islice(chat_prompts(split="train", seed=1), 30):
        ids = prompt.ids(fmt)
        assert "<tools>" not in tokenizer.decode(ids)
        assert prompt.conversation.turns[0].user in tokenizer.decode(ids)
        example = prompt.example("My answer.", fmt, tokenizer=tokenizer)
        said = [i for i, trained in zip(example.ids, example.trained, strict=True) if trained]
        assert tokenizer.decode(said) == "My answer."
        with_tools += "<tools>" in tokenizer.decode(example.ids)
    assert 10 < with_tools < 30
