"""Compile a folder of C files into one shared library in a cache folder, once.

The file's name is a hash of sources, flags, compiler version and thread runtime, so that a changed
source is another file and a finished one is never written again. Each process builds beside it and
renames, hence several may build at once. Knows compilers; knows no kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to compile, and how."""

    name: str
    """Begins the library's file name."""
    folder: Path
    """Where the C files are."""
    flags: tuple[str, ...]
    cpu_flags: frozenset[str] = frozenset()
    """Instruction sets, as Linux names them, that the files are written for; none: any CPU."""


_TIMEOUT_S = 300


class NativeUnavailable(Exception):
    """Native kernels cannot run here; the message is one line that says why."""


def build(recipe: Recipe, cache_dir: Path, *, openmp: Path | None) -> Path:
    """Return the library's path in `cache_dir`, compiling it when it is not there.

    `openmp` is the thread runtime to link (the one that torch has loaded); None compiles for one
    thread. Raises NativeUnavailable: wrong CPU, no compiler, a failed compile, a folder that cannot
    be written.
    """
    if recipe.cpu_flags:
        _check_cpu(recipe.cpu_flags)
    compiler, version = _compiler()
    if "Free Software Foundation" not in version:
        # Another compiler's OpenMP calls another runtime, which would be a second pool of threads.
        openmp = None
    flags = [*recipe.flags, *(["-fopenmp"] if openmp else [])]
    sources = sorted(recipe.folder.glob("*.c"))
    key = hashlib.sha256("\0".join([version, str(openmp), *flags]).encode())
    if "-march=native" in flags:
        # A home folder may be shared by machines, of which another has other instructions.
        key.update(" ".join(sorted(_cpu_flags())).encode())
    for path in [*sources, *sorted(recipe.folder.glob("*.h"))]:
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    library = cache_dir / f"{recipe.name}-{key.hexdigest()[:32]}.so"
    if library.is_file():
        return library
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix="build-") as work:
            _run([compiler, *flags, "-c", *map(str, sources)], work)
            objects = [f"{path.stem}.o" for path in sources]
            # The runtime is named as a file: torch's own is then found by its name at load time.
            linked = [str(openmp)] if openmp else []
            _run([compiler, "-shared", "-o", "library.so", *objects, *linked, "-lm"], work)
            os.replace(Path(work) / "library.so", library)
    except OSError as error:
        raise NativeUnavailable(f"{cache_dir}: cannot be written: {error.strerror}") from None
    return library


def torch_openmp() -> Path | None:
    """Return the OpenMP runtime that torch brings and has loaded, if it is GCC's."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return found[0] if found else None


def _check_cpu(wanted: frozenset[str]) -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NativeUnavailable(
            f"they are written for Linux on x86_64, this is {platform.system()} on "
            f"{platform.machine()}"
        )
    missing = sorted(wanted - _cpu_flags())
    if missing:
        raise NativeUnavailable(f"this CPU has no {', '.join(missing)}")


def _cpu_flags() -> frozenset[str]:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def _compiler() -> tuple[str, str]:
    """Return the compiler's path and what it says of its version."""
    wanted = os.environ.get("CC")
    for name in [wanted] if wanted else ["gcc", "cc", "clang"]:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            return path, said.stdout
    names = f"CC = {wanted}" if wanted else "gcc, cc or clang"
    raise NativeUnavailable(f"no C compiler was found ({names})")


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S,
            env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(f"the C compiler took longer than {_TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise NativeUnavailable(f"the C compiler failed: {first.strip()}")
