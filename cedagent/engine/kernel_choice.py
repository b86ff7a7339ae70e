"""Choose the kernel set of a `ced_llama` model: native where it can run, else the references.

An explicit choice is met or refused; only "auto" goes without, and then says so in one line.
"""

from __future__ import annotations

from typing import Literal, get_args

from ced_kernels.kernel_set import KernelSet
from ced_kernels.native.build import NativeUnavailable
from ced_kernels.native.library import load_native
from ced_kernels.ordered.kernel_set import OrderedKernels, OrderedReference
from ced_kernels.ordered.native import load_ordered
from cedagent.errors import EngineError, UsageError
from cedagent.model.config import WeightsDtype
from cedagent.paths import cache_home

KernelChoice = Literal["auto", "reference", "native"]


def choose_kernels(
    choice: KernelChoice, *, head_dim: int, precision: WeightsDtype
) -> tuple[KernelSet | None, str | None]:
    """Return (kernel set, None for the references; notice for the user or None).

    Compiles the native kernels into the cache folder at first use. Raises EngineError when
    "native" cannot be had, UsageError for an unknown choice.
    """
    if choice not in get_args(KernelChoice):
        raise UsageError(f"kernels must be auto, reference or native, got {choice!r}")
    if choice == "reference" or (choice == "auto" and precision == "float32"):
        return None, None
    if precision == "float32":
        raise EngineError("native kernels serve int8; for float32 choose the reference kernels")
    try:
        return load_native(cache_home() / "native", head_dim=head_dim), None
    except NativeUnavailable as error:
        if choice == "native":
            raise EngineError(f"native kernels cannot run here: {error}") from None
        return None, f"native kernels cannot run here, several times slower ones do: {error}"


def choose_ordered(choice: KernelChoice) -> tuple[OrderedKernels, str | None]:
    """Return (the kernels of deepseek_v41, notice for the user or None); all have the same bits.

    Raises EngineError when "native" cannot be had, UsageError for an unknown choice.
    """
    if choice not in get_args(KernelChoice):
        raise UsageError(f"kernels must be auto, reference or native, got {choice!r}")
    if choice == "reference":
        return OrderedReference(), None
    try:
        return load_ordered(cache_home() / "native"), None
    except NativeUnavailable as error:
        if choice == "native":
            raise EngineError(f"native kernels cannot run here: {error}") from None
        return OrderedReference(), (
            f"native kernels cannot run here, many times slower ones do: {error}"
        )
