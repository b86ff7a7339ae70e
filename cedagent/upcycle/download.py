"""Downloads one pinned wheel with this environment's pip; nothing is installed.

Where packages come from is pip's configuration and never ours. The caller checks what came.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from cedagent.errors import CedError
from cedagent.upcycle.source import Progress

_ADVICE = "fetch that wheel by other means and give it with --wheel"


def download_wheel(requirement: str, folder: Path, *, n_bytes: int, progress: Progress) -> Path:
    """Download the wheel of `requirement` alone into `folder` and return its path.

    `n_bytes` is the size to expect, for the progress bar. Raises CedError when pip is missing or
    fails, with pip's last error line.
    """
    if importlib.util.find_spec("pip") is None:
        raise CedError(f"this environment has no pip to download {requirement}: {_ADVICE}")
    wheels, scratch = folder / "download", folder / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download",
        "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--quiet",
        "--retries=2", f"--dest={wheels}", requirement,
    ]  # fmt: skip
    what = f"download {requirement}"
    log = folder / "pip.log"
    # pip's temporary files go below our folder, where they can be counted and are swept away.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                progress(what, min(_size(folder), n_bytes), n_bytes)
                time.sleep(0.1)
        except BaseException:
            pip.terminate()
            raise
    found = sorted(wheels.glob("*.whl"))
    if pip.returncode or len(found) != 1:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else "no wheel came"
        raise CedError(f"pip cannot download {requirement}: {reason}; try again, or {_ADVICE}")
    progress(what, n_bytes, n_bytes)
    return found[0]


def _size(folder: Path) -> int:
    """Return the bytes of all files below `folder`; files may vanish meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name), follow_symlinks=False).st_size
            except OSError:
                continue
    return total
