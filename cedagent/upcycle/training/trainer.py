"""The loop of a stage: steps, optimiser, schedule, checkpoints, log.

Knows neither text nor model, only a stage that names its parameters, its passes and their loss. All
that is random is drawn from (seed, step), so a run that goes on needs no state of draws. Invariant:
on one device with one thread, a run that was stopped or killed and went on ends with the same bits
as one that was not, when its budget is in steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from cedagent.errors import EngineError
from cedagent.upcycle.training.batches import Batch
from cedagent.upcycle.training.checkpoint import (
    LOG,
    Log,
    Standing,
    read_checkpoint,
    write_checkpoint,
)
from cedagent.upcycle.training.optimizer import Optimizer
from cedagent.upcycle.training.recipe import Budget, Recipe, rate_at
from cedagent.upcycle.training.stage import Stage

_END = "end"
"""The log's last event, once there is nothing more to do."""


@dataclass(frozen=True, slots=True)
class Status:
    """How far a run is."""

    step: int
    tokens: int
    used: float
    """Share of the budget, at most 1."""
    seconds: float
    seconds_left: float | None
    """None until a step was done."""
    tokens_per_second: float
    """Over the steps of this process."""
    loss: float | None
    """Of the last step."""


Report = Callable[[Status], None]


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often a run writes down where it stands, in seconds."""

    checkpoint_s: float = 180.0
    held_out_s: float = 900.0


def train(
    stage: Stage,
    folder: Path,
    *,
    recipe: Recipe,
    budget: Budget,
    identity: Mapping[str, Any],
    report: Report,
    should_stop: Callable[[], bool],
    cadence: Cadence | None = None,
) -> Standing | None:
    """Run steps until the budget is used; None when `should_stop` said so before.

    Goes on from the folder's checkpoint and leaves one there. A smaller budget than before, used up
    already, ends a run where it stands; one that has ended is left as it is. Raises EngineError
    when the loss is no number, UsageError for another run's checkpoint.
    """
    run = _Run(stage, folder, recipe, budget, identity, cadence or Cadence())
    return run.to_end(report, should_stop)


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        recipe: Recipe,
        budget: Budget,
        identity: Mapping[str, Any],
        cadence: Cadence,
    ) -> None:
        self._stage, self._folder, self._recipe = stage, folder, recipe
        self._budget, self._identity, self._cadence = budget, identity, cadence
        self._optimizer = Optimizer(
            stage.weights.parameters(),
            whole=stage.weights.full,
            lr=recipe.lr,
            lr_whole=recipe.lr_global,
        )
        self._found = found = read_checkpoint(folder, identity)
        self._step = self._tokens = 0
        self._before_s = 0.0
        if found is not None:
            self._step, self._tokens, self._before_s = found.step, found.tokens, found.seconds
            self._optimizer.restore(found.tensors, steps=found.step)
        self._first_tokens = self._tokens
        self._log = Log(folder / LOG, steps=None if found is None else found.step)
        self._started = time.monotonic()
        self._saved_s = self._before_s

    @property
    def _seconds(self) -> float:
        return self._before_s + time.monotonic() - self._started

    @property
    def _is_over(self) -> bool:
        return self._step > 0 and self._budget.used(self._step, self._seconds) >= 1

    def to_end(self, report: Report, should_stop: Callable[[], bool]) -> Standing | None:
        if self._found is not None and self._is_over and self._log.last_event == _END:
            return self._found
        event = "start" if self._found is None else "resume"
        self._log.write(event, self._step, **self._identity)
        if self._found is None:
            self._held_out()
        held_out_s = self._seconds
        report(self._status(None))
        if not self._is_over:
            passes = self._stage.steps()
            for _ in range(self._step):
                if should_stop():
                    self._stop()
                    return None
                next(passes)
        while not self._is_over:
            loss = self._one_step(next(passes), should_stop)
            if loss is None:
                self._stop()
                return None
            if self._seconds - self._saved_s >= self._cadence.checkpoint_s:
                self._save()
            if self._seconds - held_out_s >= self._cadence.held_out_s:
                self._held_out()
                held_out_s = self._seconds
            report(self._status(loss))
        standing = self._save()
        self._held_out()
        self._log.write(_END, self._step, seconds=round(self._seconds, 1), tokens=self._tokens)
        return standing

    def _stop(self) -> None:
        self._save()
        self._log.write("stop", self._step, seconds=round(self._seconds, 1))

    def _one_step(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float | None:
        """Run one step and return its loss; None, and nothing changed, when told to stop."""
        stage, began = self._stage, time.monotonic()
        draw = Random(f"{self._recipe.seed}/{self._step}/int8")
        is_rounded = stage.rounding is not None and draw.random() < self._recipe.fake_int8
        stage.weights.refresh(rounding=stage.rounding if is_rounded else None)
        self._optimizer.forget_gradients()
        total, figures = 0.0, dict[str, float]()
        shares = dict[str, float]()
        for batch in batches:
            if should_stop():
                return None
            loss, found = stage.loss(batch)
            torch.autograd.backward(loss * batch.share)
            stage.weights.collect()
            total += float(loss.detach()) * batch.share
            for name, value in found.items():
                figures[name] = figures.get(name, 0.0) + value * batch.share
                shares[name] = shares.get(name, 0.0) + batch.share
        norm = self._optimizer.clip()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise EngineError(
                f"step {self._step}: the loss is {total} and its gradient {norm}, no numbers to go "
                "on with; begin again with a lower --lr"
            )
        used = self._budget.used(self._step, self._seconds)
        self._optimizer.step(rate_at(used))
        n_tokens = sum(len(batch.ids) for batch in batches)
        self._step += 1
        self._tokens += n_tokens
        took = time.monotonic() - began
        self._log.write(
            "step",
            self._step,
            tokens=self._tokens,
            loss=round(total, 6),
            **{name: round(value / shares[name], 6) for name, value in figures.items()},
            gradient=round(norm, 5),
            rate=round(rate_at(used), 5),
            int8=is_rounded,
            seconds=round(self._seconds, 1),
            tokens_per_second=round(n_tokens / took, 1),
        )
        return total

    def _held_out(self) -> None:
        self._stage.weights.refresh()
        figures = {name: round(value, 6) for name, value in self._stage.held_out().items()}
        self._log.write("held_out", self._step, seconds=round(self._seconds, 1), **figures)

    def _status(self, loss: float | None) -> Status:
        seconds = self._seconds
        used = min(1.0, self._budget.used(self._step, seconds))
        here_s = max(seconds - self._before_s, 1e-9)
        return Status(
            step=self._step,
            tokens=self._tokens,
            used=used,
            seconds=seconds,
            seconds_left=seconds * (1 - used) / used if used else None,
            tokens_per_second=(self._tokens - self._first_tokens) / here_s,
            loss=loss,
        )

    def _save(self) -> Standing:
        standing = Standing(
            self._step,
            self._tokens,
            round(self._seconds, 3),
            self._identity,
            self._optimizer.tensors(),
        )
        write_checkpoint(self._folder, standing)
        self._saved_s = self._seconds
        return standing
