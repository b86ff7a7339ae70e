"""`cedagent doctor`: what this machine and installation can do, which code runs, and why.

It looks and reports; it loads no weights and changes nothing, save that it compiles the native
kernels if that is still to be done, since nothing less shows that they run here.
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from cedagent import __version__
from cedagent.cli.options import json_option, kv_options, model_option
from cedagent.cli.report import disk_bytes, print_json, size
from cedagent.errors import CedError, UsageError
from cedagent.paths import cache_home, data_home, kv_dir

if TYPE_CHECKING:
    from cedagent.model.v41_config import V41Config

LIBRARIES = (
    "torch", "numpy", "safetensors", "tokenizers", "llguidance", "lmdb", "msgpack", "msgspec",
    "xxhash", "gguf", "click", "rich", "prompt-toolkit",
)  # fmt: skip


_MISSING = "not here"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    value: str
    note: str = ""
    """Why it is so, or what to do about it."""
    good: bool = True


@click.command()
@model_option
@kv_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, model: str, kv: Path | None, no_kv: bool, as_json: bool) -> int:
    """Say what this machine and installation can do, and why.

    Exit code 2 when the model is broken, or was named and is not there.
    """
    about_model = _model(model)
    found = about_model[0]
    # Before its first `model pull` an installation is not at fault for having no model.
    is_named = ctx.get_parameter_source("model") is not ParameterSource.DEFAULT
    is_wrong = not found.good and (is_named or found.value != _MISSING)
    findings = [*_machine(), *_arithmetic(), *about_model, *_folders(kv or kv_dir(), no_kv)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = " " if finding.good else "!"
            note = f"  ({finding.note})" if finding.note else ""
            click.echo(f"{mark} {finding.name:<{width}}  {finding.value}{note}")
    return UsageError.exit_code if is_wrong else 0


def _machine() -> list[Finding]:
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} missing")
    missing = [entry for entry in found if entry.endswith("missing")]
    return [
        Finding("cedagent", __version__),
        Finding(
            "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
        ),
        Finding(
            "libraries",
            ", ".join(found),
            "install cedagent again with pip" if missing else "",
            good=not missing,
        ),
    ]


def _arithmetic() -> list[Finding]:
    import torch

    from ced_kernels.int8_product import choose_impl

    impl = choose_impl()
    why = {
        "int_mm": "torch's int8 product gives exact sums of extreme codes on this CPU",
        "int8_fp32": "torch's int8 product saturates on this CPU, which has no VNNI or was told to "
        "use none; the codes are multiplied in fp32: the same bits, slower",
    }
    threads = torch.get_num_threads()
    return [
        Finding("cpu", torch.backends.cpu.get_cpu_capability(), f"{os.cpu_count()} cores"),
        Finding("threads", str(threads), "OMP_NUM_THREADS changes it; the bits stay the same"),
        Finding("int8", impl, why[impl], good=impl == "int_mm"),
        _kernels(),
    ]


def _kernels() -> Finding:
    from ced_kernels.native.build import NativeUnavailable
    from ced_kernels.native.library import load_native

    try:
        native = load_native(cache_home() / "native", head_dim=64)
    except NativeUnavailable as error:
        why = f"{error}; the references in plain torch run, several times slower"
        return Finding("kernels", "reference", why, good=False)
    return Finding("kernels", native.name, "compiled here; the references do without")


def _model(name: str) -> list[Finding]:
    from cedagent.cli.model_check import read_problems
    from cedagent.model.config import load_config
    from cedagent.model.llama.config import LlamaConfig
    from cedagent.model.locate import resolve_model

    try:
        directory = resolve_model(name)
    except CedError as error:
        return [Finding("model", _MISSING, str(error), good=False)]
    problems = read_problems(directory)
    if problems:
        return [Finding("model", f"{name} is broken", "; ".join(problems), good=False)]
    config = load_config(directory)
    if isinstance(config, LlamaConfig):
        kind, more = f"window {config.decoder_window}, {config.weights_dtype} weights", []
    else:
        kind, more = f"window {config.window}, {config.model_type}", _release(directory, config)
    layers = f"{config.n_encoder_layers} encoder + {config.n_decoder_layers} decoder layers"
    shape = f"{name}: {layers}, {kind}, context {config.max_position_embeddings}"
    return [Finding("model", shape, str(directory)), *more]


def _release(model_dir: Path, config: V41Config) -> list[Finding]:
    """Say what a checkpoint's weights take, how they would be held, and what is not read."""
    from cedagent.engine.kernel_choice import choose_ordered
    from cedagent.model.release import ReleaseCheckpoint, choose_weights
    from cedagent.model.weights_choice import available_memory

    checkpoint = ReleaseCheckpoint(model_dir, config, weights="keep")
    takes, available = checkpoint.estimate(), available_memory()
    weights, notice = choose_weights("auto", takes, available=available)
    held = {"dequantize": "held as float32", "keep": "kept as stored"}[weights]
    why = notice or f"of {size(available)} available; --weights keep takes less, and more time"
    value = f"{size(takes.stored)} as stored, {size(takes.dequantized)} as float32: {held}"
    kernels, slower = choose_ordered("auto")
    compiled = "reference" if slower else "native"
    skipped = (line.split(" is skipped: ") for line in (*config.notices, *checkpoint.skipped))
    return [
        Finding("v41 kernels", f"{compiled}, {kernels.name}", slower or "", good=slower is None),
        Finding("weights", value, why, good=notice is None),
        *(Finding("skipped", what, why) for what, why in skipped),
    ]


def _folders(kv: Path, no_kv: bool) -> list[Finding]:
    logs = list((data_home() / "sessions").glob("*.jsonl"))
    found = [Finding("sessions", str(len(logs)), str(data_home() / "sessions"))]
    if no_kv:
        return [*found, Finding("store", "off", "--no-kv")]
    return [*found, _store(kv)]


def _store(kv: Path) -> Finding:
    # The nearest parent that exists: the folder itself may not have been made yet.
    at = next(folder for folder in (kv, *kv.parents) if folder.exists())
    usage = shutil.disk_usage(at)
    free = f"{size(usage.free)} free"
    if not kv.exists():
        return Finding("store", "not made yet", f"{kv}, {free}")
    used = disk_bytes(kv)
    if not os.access(kv, os.W_OK):
        why = f"{kv} cannot be written: answers go on, nothing new is kept"
        return Finding("store", f"{size(used)}, read-only", why, good=False)
    return Finding("store", size(used), f"{kv}, {free}")
