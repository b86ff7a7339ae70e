"""Evaluates a converted model: how close it is to its parent, and whether it calls tools rightly.

`prepare` loads the model and draws what it will be run on; the `Evaluation` that it returns knows
what it will cost before it runs. The student runs as it serves: stored int8 weights, compiled
kernels, bounded replay. Knows no terminal and no plot. Invariant: a report holds everything that is
needed to measure it again, and the same settings on the same model give the same figures.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cedagent.engine import Engine
from cedagent.errors import UsageError
from cedagent.model.cost import read_cost
from cedagent.model.llama.config import LlamaConfig
from cedagent.paths import cache_home
from cedagent.upcycle.evaluation.closeness import (
    FED,
    Closeness,
    closeness,
    ends_within,
    score_after_prefill,
    score_positions,
)
from cedagent.upcycle.evaluation.conversation import Speaker
from cedagent.upcycle.evaluation.cost import Work, measure
from cedagent.upcycle.evaluation.figures import figures_of
from cedagent.upcycle.evaluation.material import Generators, Material, draw, heldout
from cedagent.upcycle.evaluation.parent import (
    ParentSource,
    check_shape,
    find_parent,
    read_origin,
)
from cedagent.upcycle.evaluation.report import Cost, ModelReport, Settings
from cedagent.upcycle.evaluation.rows import missing_tokens, parent_rows
from cedagent.upcycle.evaluation.tools import KindReport, n_asked, run_kind
from cedagent.upcycle.source import Progress, silent

_APPEND = 512
_CONFIG = (
    "num_hidden_layers", "n_encoder_layers", "encoder_global_layers", "decoder_window",
    "replay_windows", "weights_dtype",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model, ready to be run on its material."""

    name: str
    engine: Engine
    settings: Settings
    material: Material
    speaker: Speaker
    parent: ParentSource | None
    """None without the text suite."""

    def seconds(self) -> float:
        """Return about how long `run` will take; measures the engine for a second."""
        ids = self.material.texts[0] if self.material.texts else []
        return measure(self.engine, ids).seconds(self.work())

    def work(self) -> Work:
        """Return what `run` runs."""
        texts = self.material.texts
        read = sum(max(ends_within(len(text)), default=0) for text in texts)
        cases = [case for of_kind in self.material.cases.values() for case in of_kind]
        missing = 0
        if self.parent is not None:
            missing = missing_tokens(self.parent, _read(texts), folder=_rows_folder())
        return Work(
            parent=missing,
            positions=sum(len(text) - 1 for text in texts),
            prefilled=read + sum(map(self.speaker.prompt_tokens, cases)),
            fed=sum(FED * len(ends_within(len(text))) for text in texts),
            outputs=sum(map(n_asked, cases)),
        )

    def run(self, *, progress: Progress = silent) -> ModelReport:
        """Measure everything; raises UsageError when the parent is needed and cannot be read."""
        engine, seconds = self.engine, {}
        text = None
        if self.parent is not None:
            started = time.monotonic()
            text = self._text(self.parent, progress)
            seconds["text"] = time.monotonic() - started
        kinds: list[KindReport] = []
        for kind, cases in self.material.cases.items():
            started = time.monotonic()
            kinds.append(run_kind(self.speaker, kind, cases, progress=progress))
            seconds[kind] = time.monotonic() - started
        return ModelReport(
            model=self.name,
            digest=engine.model_digest,
            origin=read_origin(engine.model_dir),
            config=_shape(engine),
            kernels=_kernels(engine),
            parent=self.parent.key if self.parent is not None else "",
            cost=_cost(engine.model_dir),
            settings=self.settings,
            figures=figures_of(text, kinds),
            text=text,
            kinds=tuple(kinds),
            seconds={name: round(value, 1) for name, value in seconds.items()},
            machine=_machine(),
            versions={name: _version(name) for name in ("cedagent", "torch", "llguidance")},
        )

    def _text(self, source: ParentSource, progress: Progress) -> Closeness:
        engine, texts = self.engine, self.material.texts
        parent = parent_rows(source, _read(texts), folder=_rows_folder(), progress=progress)
        positions = score_positions(engine, parent, texts, progress=progress)
        ends = ends_within(len(texts[0]))
        fed = None
        if ends:
            fed = score_after_prefill(engine, parent, texts, ends=ends, progress=progress)
        return closeness(positions, fed, ends=ends, digest=self.material.digest)


def prepare(
    model: str | Path,
    *,
    settings: Settings,
    parent: Path | None = None,
    generators: Generators | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Load a model by name or directory, find its parent, and draw texts and cases.

    `parent` is a checkpoint as `find_parent` takes it. Raises UsageError and its kinds.
    """
    engine = Engine.load(model)
    config = engine.family.config
    speaker = Speaker(engine)
    source = None
    if "text" in settings.suites:
        if not isinstance(config, LlamaConfig):
            raise UsageError(
                f"{model}: the text suite compares with a Llama parent, which a model of "
                f"{config.model_type} has not; choose other suites"
            )
        source = find_parent(engine.model_dir, parent, progress=progress)
        if parent is not None:
            check_shape(source.read().config, config, where=parent)
    material = draw(
        settings, speaker.tokenizer, generators or heldout(), context=engine.context_limit
    )
    return Evaluation(str(model), engine, settings, material, speaker, source)


def _read(texts: tuple[list[int], ...]) -> list[list[int]]:
    """Return what the parent reads of the texts: the last token is only predicted."""
    return [text[:-1] for text in texts]


def _rows_folder() -> Path:
    return cache_home() / "eval"


def _cost(model_dir: Path) -> Cost:
    found = read_cost(model_dir, n_tokens=_APPEND)
    return Cost(
        append_tokens=_APPEND,
        append_token_layers=found.ced_token_layers,
        full_token_layers=found.full_token_layers,
        bytes_per_token=found.bytes_per_token,
        snapshot_bytes=found.snapshot_bytes,
    )


def _shape(engine: Engine) -> dict[str, Any]:
    """Return config fields as JSON holds them."""
    values = {name: getattr(engine.family.config, name, None) for name in _CONFIG}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _kernels(engine: Engine) -> str:
    model = getattr(engine.family, "model", None)
    return str(getattr(getattr(model, "kernels", None), "name", "reference"))


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
