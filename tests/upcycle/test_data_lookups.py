"""Many questions about a document have one answer each in it; made-up kinds and words are many."""

from __future__ import annotations

from random import Random

from cedagent.upcycle.data import Conversation
from cedagent.upcycle.data.coined import coin, uncommon_word
from cedagent.upcycle.data.conversation import Split
from cedagent.upcycle.data.documents import MAX_LINES, few_rows, long_document, questioned
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.made_up_records import made_up_records
from cedagent.upcycle.data.records import RECORDS
from cedagent.upcycle.data.transcripts import of_kind
from cedagent.upcycle.data.verbs import THINGS
from cedagent.upcycle.data.words import Name, word_list

_LISTS: tuple[Name, ...] = (
    "first_names", "surnames", "cities", "companies", "products", "words", "stems", "folders",
    "topics",
)  # fmt: skip


def made(seed: int, split: Split = "train") -> Conversation:
    return of_kind(Draw(f"lookups {seed}", split=split), "lookups", count=len)


def document_of(conversation: Conversation) -> str:
    first = conversation.turns[0]
    return first.outputs[0].results[0] if first.outputs[0].calls else first.user


def test_every_answer_stands_in_the_document() -> None:
    for seed in range(60):
        conversation = made(seed)
        text = document_of(conversation)
        for turn in conversation.turns:
            answer = turn.outputs[-1]
            (value,) = answer.contains
            assert value in answer.text
            assert value in text


def test_only_the_first_question_of_a_lookup_calls() -> None:
    n_called = 0
    for seed in range(60):
        first, *more = made(seed).turns
        n_called += bool(first.outputs[0].calls)
        assert not any(said.calls for turn in more for said in turn.outputs)
    assert 20 < n_called < 50


def test_a_question_about_a_document_names_one_row_and_no_two_are_alike() -> None:
    for seed in range(60):
        documents = questioned(Draw(f"q{seed}", split="train"), 2_000, 12, count=len)
        (text,) = {document.text for document in documents}
        asked = set()
        for document in documents:
            name = " ".join(str(document.target[part]) for part in document.kind.key)
            rows = document.kind.line.format(**document.target)
            assert rows in text
            assert text.replace(rows, "", 1).casefold().count(name.casefold()) == 0
            asked.add((name, document.target["want"]))
        assert len(asked) == len(documents)


def test_a_document_of_two_rows_has_all_its_questions() -> None:
    for seed in range(40):
        documents = questioned(Draw(f"few {seed}", split="train"), 1, 99, count=len)
        kind = documents[0].kind
        names = {tuple(document.target[part] for part in kind.key) for document in documents}
        assert 1 <= len(names) <= 2
        assert len(documents) == len(names) * len(kind.wants)


def test_a_made_up_kind_writes_what_it_is_asked_for() -> None:
    kinds = set()
    for seed in range(120):
        draw = Draw(f"kind {seed}", split="train")
        kind = made_up_records(draw)
        kinds.add((kind.line, *kind.titles.values()))
        document = few_rows(draw, draw.whole(1, 7), kind=kind)
        row = kind.line.format(**document.target)
        assert row in document.text
        assert document.target["value"] in row
        assert document.target["value"] in document.answer(draw)
    assert len(kinds) > 110


def test_rows_of_several_lines_fit_what_a_file_tool_shows() -> None:
    for seed in range(40):
        draw = Draw(f"tall {seed}", split="train")
        kind = made_up_records(draw)
        document = long_document(draw, 40_000, depth=0.5, count=len, kind=kind)
        assert document.text.count("\n") < MAX_LINES + 5


def test_nothing_made_up_is_held_out() -> None:
    lines = {kind.line for kind in RECORDS}
    names = {first for first in word_list("first_names")}
    nouns = {word for name in ("words", "stems") for word in word_list(name)}
    seen = [few_rows(Draw(f"r{i}", split="heldout"), 3).kind.line for i in range(80)]
    assert set(seen) <= lines
    draw = Draw("held", split="heldout")
    for _ in range(200):
        assert draw.first_name() in names
        assert draw.noun() in nouns
        assert draw.stem() in nouns


def test_training_meets_words_of_no_list_about_half_of_the_time() -> None:
    draw = Draw("open", split="train")
    drawn = [draw.noun() for _ in range(2_000)]
    listed = sum(word in word_list("words") for word in drawn)
    assert 0.4 < listed / 2_000 < 0.6
    assert len(set(drawn)) > 500
    kinds = [few_rows(Draw(f"r{i}", split="train"), 2).kind.line for i in range(400)]
    known = sum(line in {kind.line for kind in RECORDS} for line in kinds)
    assert 0.4 < known / 400 < 0.6


def test_a_common_word_is_in_no_list_that_is_parted() -> None:
    common = word_list("common")
    assert len(set(common)) == len(common) > 200
    parted = {piece for name in _LISTS for i, entry in enumerate(word_list(name))
              if i % 5 == 4 for piece in entry.split()}  # fmt: skip
    assert not parted & set(common)
    assert not set(THINGS) & set(common)


def test_the_same_seed_coins_the_same_words() -> None:
    first, again = Random(3), Random(3)
    words = [coin(first) for _ in range(500)]
    assert words == [coin(again) for _ in range(500)]
    assert all(word.isalpha() and word.islower() and 3 <= len(word) <= 11 for word in words)
    assert len(set(words)) > 450
    assert {uncommon_word(first) in word_list("common") for _ in range(50)} == {True, False}
