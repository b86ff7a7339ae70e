"""What the parent says itself: its answers to plain talk, sampled once and kept in a file.

One JSON line for each answer, as an example to learn from: the parent is asked without tools, the
example lists some, so that a model stays as talkative as its parent when there are tools. Knows the
engine's door, no training. Invariant: a run that was stopped goes on where its file ends, and
another's file is left as it is, be it one of another seed or model.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from cedagent.chat.template import ChatFormat
from cedagent.chat.tokenizer import Tokenizer
from cedagent.engine.engine import Engine
from cedagent.engine.protocol import Sampling
from cedagent.errors import UsageError
from cedagent.upcycle.data.own_samples import chat_prompts
from cedagent.upcycle.training.batches import Example
from cedagent.upcycle.training.checkpoint import difference

_SAMPLING = {"temperature": 0.7, "top_p": 0.9}
_MOST_TOKENS = 200
"""Longer answers are left out: they would be cut in the middle."""
_BEGINS = b'{"ids": '
"""How every line begins."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An example whose output the parent wrote."""

    ids: tuple[int, ...]
    trained: tuple[float, ...]
    made_with: Mapping[str, Any]
    """Seed and model; nothing in files of earlier versions."""


def write_answers(
    engine: Engine,
    path: Path,
    *,
    n: int,
    seed: int,
    fmt: ChatFormat,
    tokenizer: Tokenizer,
    progress: Callable[[str, int, int], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Let the parent answer the first `n` prompts of a seed into `path`; return how many are done.

    A prompt whose answer is empty or does not end is a line with no ids. What is in the file
    already is kept, but for a last line that was cut off. Ends after an answer when `should_stop`
    says so. Raises UsageError for a file of something else, of another seed or model, or one that
    another process writes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process writes {path}: give another --out") from None
        found, n_whole = _read(path)
        made_with = {"seed": seed, "model": engine.model_digest[:16]}
        other = next((one for one in found if one.made_with != made_with), None)
        if other is not None:
            raise UsageError(
                f"{path} holds answers of other settings "
                f"({difference(other.made_with, made_with)}): give the same settings to go on with "
                "it, or another --out"
            )
        file.truncate(n_whole)
        done = len(found)
        prompts = islice(chat_prompts(split="train", seed=seed), done, n)
        for prompt in prompts:
            if should_stop():
                break
            progress("answer", done, n)
            answer = _answer(engine, prompt.ids(fmt), fmt, seed=seed + done)
            line: dict[str, Any] = {"ids": [], "trained": []}
            if text := tokenizer.decode(answer).strip():
                example = prompt.example(text, fmt, tokenizer=tokenizer)
                line = {"ids": example.ids, "trained": example.trained}
            file.write(json.dumps(line | {"made_with": made_with}) + "\n")
            file.flush()
            done += 1
    progress("answer", done, n)
    return done


def read_answers(path: Path) -> list[Answered]:
    """Read what `write_answers` wrote; raises UsageError for a file that holds no answer."""
    kept = [one for one in _read(path)[0] if one.ids]
    if not kept:
        raise UsageError(f"{path}: expected answers that `cedagent model answers` wrote, got none")
    return kept


def mixed(
    examples: Iterator[Example], answers: Sequence[Example], *, share: float, seed: int
) -> Iterator[Example]:
    """Yield examples, a share of them answers, which go round in an order of their own."""
    draw = Random(f"answers/{seed}")
    order = list(answers)
    draw.shuffle(order)
    given = cycle(order)
    while True:
        yield next(given) if draw.random() < share else next(examples)


def _answer(engine: Engine, prompt: Sequence[int], fmt: ChatFormat, *, seed: int) -> list[int]:
    """Return what the parent writes; nothing if it does not come to an end."""
    sequence = engine.sequence()
    sequence.prefill(prompt)
    sampling = Sampling(**_SAMPLING, seed=seed)
    written: list[int] = []
    for _ in range(_MOST_TOKENS):
        token = sequence.sample(sampling)
        if token in fmt.stop_ids:
            break
        written.append(token)
        sequence.feed(token)
    else:
        written = []
    sequence.close()
    return written


def _read(path: Path) -> tuple[list[Answered], int]:
    """Return a file's answers, and how many bytes their lines are: a last one may be cut off.

    Raises UsageError for a file with anything else in it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    n_whole = content.rfind(b"\n") + 1
    found = [_answered(line) for line in content[:n_whole].splitlines()]
    cut = content[n_whole:]
    wrong = found.index(None) + 1 if None in found else len(found) + 1
    if None in found or cut[: len(_BEGINS)] != _BEGINS[: len(cut)]:
        raise UsageError(
            f"{path}: expected answers that `cedagent model answers` wrote, got something else in "
            f"line {wrong}"
        )
    return [one for one in found if one is not None], n_whole


def _answered(line: bytes) -> Answered | None:
    """Return what a line says; None if it is no answer."""
    try:
        values = json.loads(line)
        made = Answered(
            tuple(map(int, values["ids"])),
            tuple(map(float, values["trained"])),
            dict(values.get("made_with", {})),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    fits = len(made.ids) == len(made.trained) and min(made.ids, default=0) >= 0
    return made if fits and all(0 <= counted <= 1 for counted in made.trained) else None
