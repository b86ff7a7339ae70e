"""One run of a stage, from a model directory to trained.safetensors in a folder.

Joins model, texts, stage and loop, and knows which run a folder holds. Invariant: the folder's
result is whole, and belongs to the recipe, model and start that the checkpoint beside it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cedagent.errors import UsageError
from cedagent.model.config import CONFIG_FILE
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint
from cedagent.upcycle.source import sha256_file
from cedagent.upcycle.training.adapters import Rounding
from cedagent.upcycle.training.batches import LENGTHS, Example, Room
from cedagent.upcycle.training.checkpoint import RESULT, Standing, locked
from cedagent.upcycle.training.heal import Heal
from cedagent.upcycle.training.int8_rounding import rounding_of
from cedagent.upcycle.training.pair import Pair, load_untrained
from cedagent.upcycle.training.recipe import Budget, Precision, Recipe
from cedagent.upcycle.training.stage import Stage
from cedagent.upcycle.training.teach import Teach
from cedagent.upcycle.training.trained_file import (
    check_fits,
    check_names,
    made_for,
    parent_digest,
    read_trained,
    write_trained,
)
from cedagent.upcycle.training.trainer import Cadence, Report, train

Split = Literal["train", "heldout"]

_PASS_TOKENS = {"cpu": 4096, "cuda": 32_768}


class Texts(Protocol):
    """Where examples come from; the same split and seed give the same ones."""

    def plain(self, split: Split, seed: int) -> Iterator[Example]:
        """Yield plain text without end."""
        ...

    def transcripts(self, split: Split, seed: int) -> Iterator[Example]:
        """Yield tool transcripts without end."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    path: Path
    """trained.safetensors."""
    steps: int
    tokens: int
    seconds: float


def run(
    model_dir: Path,
    folder: Path,
    *,
    recipe: Recipe,
    minutes: float | None,
    texts: Texts,
    start: Path | None = None,
    device: torch.device | None = None,
    lengths: tuple[int, ...] = LENGTHS,
    cadence: Cadence | None = None,
    report: Report = lambda status: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result | None:
    """Train a converted model's weights into FOLDER/trained.safetensors.

    Goes on where the folder's checkpoint of the same recipe stands; None when `should_stop` ended
    it before its budget did. `start` is an earlier stage's trained file. Raises UsageError's kinds
    for settings, files and folders that do not fit, CedError when the folder cannot be written.
    """
    budget = Budget(recipe.steps, minutes)
    if (folder / CONFIG_FILE).exists():
        raise UsageError(
            f"{folder} holds a model: expected a folder of the run's own, give another --out"
        )
    device = device or torch.device("cpu")
    config, tensors = load_untrained(model_dir)
    parent = parent_digest(tensors)
    pair = Pair(config, tensors, dtype=getattr(torch, recipe.precision), device=device)
    earlier: list[Mapping[str, Any]] = []
    if start is not None:
        trained = read_trained(start)
        check_fits(trained, parent=parent, config=config)
        check_names(trained, tensors)
        pair.weights.go_on_from(trained.full, trained.pairs)
        earlier = list(trained.metadata["stages"])
    identity = {
        "recipe": recipe.as_json(),
        "parent": parent,
        "made_for": made_for(config),
        "start": None if start is None else sha256_file(start),
    }
    rounding = _rounding(model_dir, config, tensors) if recipe.fake_int8 else None
    stage = _stage(pair, recipe, texts, lengths, rounding)
    with locked(folder):
        standing = train(
            stage,
            folder,
            recipe=recipe,
            budget=budget,
            identity=identity,
            report=report,
            should_stop=should_stop,
            cadence=cadence,
        )
        if standing is None:
            return None
        write_trained(
            folder / RESULT,
            full=pair.weights.full,
            pairs=pair.weights.pairs,
            config=config,
            parent=parent,
            stages=[*earlier, _stage_record(recipe, standing)],
        )
    return Result(folder / RESULT, standing.step, standing.tokens, standing.seconds)


def pass_tokens_of(device: torch.device) -> int:
    """Return how many tokens run at once on a device when nothing else is said."""
    return _PASS_TOKENS.get(device.type, _PASS_TOKENS["cpu"])


def precision_of(device: torch.device) -> Precision:
    """Return the type of products that is fastest on a device: bfloat16 where it has them."""
    if device.type == "cuda":
        return "bfloat16"
    able = torch.cpu.get_capabilities()
    return "bfloat16" if able.get("avx512_bf16") or able.get("amx_bf16") else "float32"


def _stage(
    pair: Pair,
    recipe: Recipe,
    texts: Texts,
    lengths: tuple[int, ...],
    rounding: Rounding | None,
) -> Stage:
    room = Room(pair.config, recipe.pass_tokens, recipe.replay_share, lengths)
    plain, held_out = texts.plain("train", recipe.seed), texts.plain("heldout", 0)
    if recipe.stage == "heal":
        return Heal(pair, recipe, plain=plain, held_out=held_out, room=room, rounding=rounding)
    return Teach(
        pair,
        recipe,
        transcripts=texts.transcripts("train", recipe.seed),
        plain=plain,
        held_out_transcripts=texts.transcripts("heldout", 0),
        held_out_plain=held_out,
        room=room,
        rounding=rounding,
    )


def _rounding(
    model_dir: Path, config: LlamaConfig, tensors: Mapping[str, Tensor]
) -> Callable[[str, Tensor], Tensor]:
    if config.weights_dtype != "int8":
        raise UsageError(
            f"{model_dir} has no int8 weights to take the rounding from: convert the checkpoint "
            "with them, or leave out --fake-int8"
        )
    return rounding_of(Checkpoint(model_dir, config, dtype="int8"), tensors, config)


def _stage_record(recipe: Recipe, standing: Standing) -> dict[str, Any]:
    return {
        **recipe.as_json(),
        "steps": standing.step,
        "tokens": standing.tokens,
        "seconds": round(standing.seconds),
    }
