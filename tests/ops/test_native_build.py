"""Building the native library: once, several at a time, and one clear line when it fails."""

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ced_kernels
from ced_kernels.native import build as building
from ced_kernels.native.build import NativeUnavailable, build
from ced_kernels.native.library import RECIPE, NativeKernels, load_native

KERNELS = Path(ced_kernels.__file__).parent.parent


@pytest.fixture
def compiler(native, tmp_path, monkeypatch):
    """Puts a script in the place of the compiler; `native` skips where there is none at all."""

    def put(body: str) -> None:
        script = tmp_path / "fake-cc"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o700)
        monkeypatch.setenv("CC", str(script))

    return put


def test_a_second_load_compiles_nothing(native, native_dir, compiler):
    before = sorted(native_dir.iterdir())
    assert len(before) == 1
    version = subprocess.run(["gcc", "--version"], capture_output=True, text=True).stdout
    compiler(f"[ \"$1\" = --version ] && printf %s '{version}' && exit 0; exit 1")
    load_native(native_dir, head_dim=64)
    assert sorted(native_dir.iterdir()) == before


@pytest.mark.slow
def test_another_source_is_another_file(native, native_dir, tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in RECIPE.folder.glob("*.[ch]"):
        (sources / path.name).write_bytes(path.read_bytes())
    changed = sources / "vec.h"
    changed.write_text(changed.read_text() + "/* changed */\n")
    recipe = replace(RECIPE, folder=sources)
    assert build(recipe, tmp_path / "cache", openmp=None).name not in {
        path.name for path in native_dir.iterdir()
    }


@pytest.mark.slow
def test_several_processes_build_at_once(native, tmp_path):
    code = (
        "import sys, pathlib; from ced_kernels.native.library import load_native; "
        "load_native(pathlib.Path(sys.argv[1]), head_dim=64)"
    )
    environment = os.environ | {"PYTHONPATH": str(KERNELS), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "kept")], env=environment)
        for _ in range(2)
    ]
    assert [process.wait() for process in running] == [0, 0]
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".so"]


def test_threads_are_those_of_torch(native):
    """One OpenMP runtime in the process means one pool of threads."""
    maps = Path("/proc/self/maps").read_text()
    runtimes = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    assert len(runtimes) == 1
    assert next(iter(runtimes)).startswith(str(Path(torch.__file__).parent))


@pytest.mark.slow
def test_without_openmp_it_is_one_thread_and_the_same_bits(native, tmp_path):
    library = ctypes.CDLL(str(build(RECIPE, tmp_path, openmp=None)))
    x = torch.randn(128, 576, generator=torch.Generator().manual_seed(0))
    expected, got = native.quantize(x), NativeKernels(library).quantize(x)
    assert torch.equal(got.codes, expected.codes)
    assert torch.equal(got.scale, expected.scale)


def test_no_compiler(monkeypatch, tmp_path, native):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NativeUnavailable, match="no C compiler was found"):
        build(RECIPE, tmp_path / "cache", openmp=None)


def test_a_failed_compile_is_the_first_error(compiler, tmp_path):
    compiler(
        '[ "$1" = --version ] && echo Fake 1 && exit 0\n'
        "echo 'x.c: In function f:' >&2; echo 'x.c:3:1: error: no such thing' >&2; exit 1"
    )
    with pytest.raises(NativeUnavailable, match=r"^the C compiler failed: x\.c:3:1: error: no su"):
        build(RECIPE, tmp_path / "cache", openmp=None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cpu_without_the_instructions(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "_cpu_flags", lambda: frozenset({"avx512f", "fma"}))
    with pytest.raises(NativeUnavailable, match="has no avx512_vnni, avx512bw"):
        build(RECIPE, tmp_path, openmp=None)


def test_a_folder_that_cannot_be_made(native, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeUnavailable, match="cannot be written"):
        build(RECIPE, tmp_path / "file" / "cache", openmp=None)


@pytest.mark.slow
def test_importing_compiles_and_loads_nothing(tmp_path):
    code = (
        "import ced_kernels.native.library, pathlib; "
        "assert 'ced_kernels-' not in pathlib.Path('/proc/self/maps').read_text()"
    )
    environment = os.environ | {"PYTHONPATH": str(KERNELS), "HOME": str(tmp_path), "CC": "false"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
    assert list(tmp_path.iterdir()) == []
