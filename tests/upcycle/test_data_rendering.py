"""Examples have the ids that a served session has, and only what the model writes is trained."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import cedagent as ca
from cedagent.agent.tools import Tool
from cedagent.chat.template import ChatFormat, ToolSpec, chat_format
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import UsageError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.testing import ScriptedModel, write_tiny_tokenizer
from cedagent.upcycle.data import Conversation, heldout_conversations, render, tool_examples
from cedagent.upcycle.data.conversation import Said, Turn
from cedagent.upcycle.data.examples import conversations
from cedagent.upcycle.data.rendering import WORDING, output_ids, spell, weights


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


@pytest.fixture(scope="module")
def fmt(tokenizer: Tokenizer) -> ChatFormat:
    return chat_format("chatml", tokenizer=tokenizer)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripted")
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def some(tokenizer: Tokenizer) -> list[Conversation]:
    found = list(itertools.islice(conversations(tokenizer, split="train", seed=11), 18))
    for kind in ("known", "unseen", "multi_step", "chat", "recovery", "needle_700"):
        found += heldout_conversations(kind, seed=5, n=3, tokenizer=tokenizer)
    return found


@dataclass(frozen=True, eq=False)
class Replayed(Tool):
    """A tool with a given schema that returns the next of the conversation's results."""

    given: ToolSpec | None = None

    @functools.cached_property
    def spec(self) -> ToolSpec:
        assert self.given is not None
        return self.given

    @functools.cached_property
    def signature(self) -> SimpleNamespace:
        return SimpleNamespace(convert=dict, context_names=())


def answering(results: Iterator[str]) -> Callable[..., str]:
    def function(**arguments: object) -> str:
        return next(results)

    return function


def served(conversation: Conversation, model_dir: Path, fmt: ChatFormat) -> tuple[int, ...]:
    """Return the ids of a session that has this conversation with a model that says its part."""
    said = [output for turn in conversation.turns for output in turn.outputs]
    written = [spell(output.calls, fmt) if output.calls else output.text for output in said]
    left: dict[str, Iterator[str]] = {}
    for name in {spec.name for spec in conversation.tools}:
        own = [
            result
            for output in said
            for call, result in zip(output.calls, output.results, strict=True)
            if call[0] == name
        ]
        left[name] = iter(own)
    tools = [
        Replayed(
            function=answering(left[spec.name]),
            name=spec.name,
            description=spec.description,
            paged=False,
            given=spec,
        )
        for spec in conversation.tools
    ]
    engine = ScriptedModel(written, model_dir=model_dir, context_limit=100_000)
    limits = ca.Limits(result_tokens=100_000)
    agent = ca.Agent(engine, conversation.system, tools=tools, limits=limits, seed=0)
    with agent.session() as session:
        for turn in conversation.turns:
            result = session.run(turn.user)
            assert result.stop_reason == "end"
        return tuple(session.ids)


def is_replayable(conversation: Conversation) -> bool:
    """Parallel calls of one tool may end in another order; the results of others are in order."""
    return all(
        len({name for name, _ in output.calls}) == len(output.calls)
        for turn in conversation.turns
        for output in turn.outputs
    )


def test_an_example_has_the_ids_of_a_served_session(some, fmt, tokenizer, model_dir) -> None:
    replayable = [conversation for conversation in some if is_replayable(conversation)]
    kinds = {conversation.kind for conversation in replayable}
    assert {"builtin", "made_up", "chain", "needle_700", "multi_step"} <= kinds
    for conversation in replayable[::6]:
        example = render(conversation, fmt, tokenizer=tokenizer)
        if len(example.ids) > 4_000:
            # Long system turns take long and test nothing more.
            continue
        assert example.ids == served(conversation, model_dir, fmt), conversation.kind


def test_parallel_results_stand_in_call_order(some, fmt, tokenizer) -> None:
    checked = 0
    for conversation in some:
        text = tokenizer.decode(render(conversation, fmt, tokenizer=tokenizer).ids)
        for turn in conversation.turns:
            for output in turn.outputs:
                assert len(output.results) == len(output.calls)
                blocks = [f"<tool_response>\n{text}\n</tool_response>" for text in output.results]
                assert "\n".join(blocks) in text
                checked += len(set(blocks)) > 1
    assert checked > 1


def test_only_what_the_model_writes_is_trained(some, fmt, tokenizer) -> None:
    (end,) = fmt.stop_ids
    for conversation in some:
        example = render(conversation, fmt, tokenizer=tokenizer)
        assert len(example.ids) == len(example.trained)
        spans = []
        marked = zip(example.ids, example.trained, strict=True)
        for is_trained, group in itertools.groupby(marked, key=lambda pair: pair[1] > 0):
            if is_trained:
                ids = [token for token, _ in group]
                assert ids[-1] == end
                assert ids.count(end) == 1
                spans.append(tokenizer.decode(ids))
        outputs = [output for turn in conversation.turns for output in turn.outputs]
        taught = [output for output in outputs if output.trained]
        assert spans == [spell(o.calls, fmt) if o.calls else o.text for o in taught]


def test_words_that_could_be_others_count_for_little(some, fmt, tokenizer) -> None:
    found = {"calls": 0, "needed": 0, "wording": 0}
    for output in (o for c in some for turn in c.turns for o in turn.outputs if o.trained):
        ids = output_ids(output, fmt, tokenizer=tokenizer)
        counted = weights(output, ids, tokenizer=tokenizer)
        assert len(counted) == len(ids)
        assert counted[0] == counted[-1] == 1
        if output.calls:
            assert set(counted) == {1}
            found["calls"] += 1
            continue
        needed: set[int] = set()
        for value in output.contains:
            at = output.text.encode().find(value.encode())
            while at >= 0:
                needed |= set(range(at, at + len(value.encode())))
                at = output.text.encode().find(value.encode(), at + 1)
        at = 0
        for token, weight in list(zip(ids, counted, strict=True))[:-1]:
            size = len(tokenizer.token_bytes(token) or b"")
            is_needed = at == 0 or bool(needed & set(range(at, at + size)))
            assert weight == (1 if is_needed else WORDING)
            found["needed" if is_needed and at else "wording"] += 1
            at += size
    assert min(found.values()) > 20, found


def test_the_example_says_how_much_each_token_counts(fmt, tokenizer) -> None:
    said = Said(text="It is noon.", contains=("noon",))
    made = render(Conversation("x", None, (), (Turn("When?", (said,)),)), fmt, tokenizer=tokenizer)
    ids = output_ids(said, fmt, tokenizer=tokenizer)
    start = made.trained.index(1.0)
    assert list(made.ids[start : start + len(ids)]) == ids
    assert list(made.trained[start : start + len(ids)]) == weights(said, ids, tokenizer=tokenizer)
    assert WORDING in made.trained
    assert not any(made.trained[:start])
    assert not any(made.trained[start + len(ids) :])


def test_wrong_turns_are_there_and_never_trained(tokenizer, fmt) -> None:
    found = 0
    for conversation in itertools.islice(conversations(tokenizer, split="train", seed=3), 100):
        for turn in conversation.turns:
            for i, output in enumerate(turn.outputs):
                if not output.trained:
                    found += 1
                    assert output.results[0].startswith("Error: ")
                    assert turn.outputs[i + 1].calls
                    assert turn.outputs[i + 1].calls != output.calls
    assert found > 1


def test_the_most_tokens_are_kept_to(fmt, tokenizer) -> None:
    examples = tool_examples(fmt, tokenizer, split="train", seed=2, max_tokens=1_777)
    sizes = [len(example.ids) for example in itertools.islice(examples, 20)]
    assert max(sizes) <= 1_777
    with_all = tool_examples(fmt, tokenizer, split="train", seed=2, max_tokens=100_000)
    assert max(len(example.ids) for example in itertools.islice(with_all, 20)) > 1_777


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_limit_that_nothing_keeps_to_is_an_error_not_a_search_without_end(
    split, fmt, tokenizer, monkeypatch
) -> None:
    monkeypatch.setattr("cedagent.upcycle.data.examples._MOST_LEFT_OUT", 3)
    with pytest.raises(UsageError, match="no transcript of at most 2 tokens among 3: allow more"):
        next(tool_examples(fmt, tokenizer, split=split, seed=2, max_tokens=2))


def test_a_format_with_other_calls_is_refused(some, tokenizer) -> None:
    from cedagent.model.tokenizer_build import build_tiny_dsml

    other = Tokenizer(build_tiny_dsml().to_str())
    dsml = chat_format("dsml", tokenizer=other)
    with_calls = next(c for c in some if c.turns[0].outputs[0].calls)
    with pytest.raises(UsageError, match="chatml"):
        render(with_calls, dsml, tokenizer=other)
