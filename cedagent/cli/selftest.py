"""`cedagent kv selftest`: a hit gives the bits of a cold run, shown on the user's own machine.

For every length it compares the logits after the same append: of a live session, of one that shares
rows in RAM, of one restored from disk in a new process, and of a cold run without a store. It is
restored once more from a copy that went through an archive, once with a bit flipped on the disk,
and, for a model with encoder windows, from a store whose only snapshot lies further on, so that its
windows begin empty and are run again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_proofs import BLOCK, Compared, proofs_of
from cedagent.cli.render import warn
from cedagent.cli.report import print_json
from cedagent.errors import EngineError

if TYPE_CHECKING:
    from cedagent.engine import CedSequence, Engine

LENGTHS = (1, 127, 128, 129, 255, 256, 257, 700)
"""Tokens before the append: both sides of the ends of blocks, and one far from them."""
BEYOND = 3 * BLOCK
"""Tokens after the longest in the store whose snapshot is to lie further on."""
APPEND = 20
SEED = 20260


def run_selftest(model: Path, *, folder: Path | None = None, as_json: bool) -> int:
    """Compare all lengths and say what that proves; return 0, or 5 when any bit differs.

    The stores are made and removed in the system's folder for temporary files, or beside `folder`.
    """
    beside = None
    if folder is not None:
        beside = next(path for path in folder.absolute().parents if path.is_dir())
    with tempfile.TemporaryDirectory(prefix="cedagent-selftest-", dir=beside) as made:
        rows, notices = _compare(model, Path(made))
    proofs, verdict = proofs_of(rows), _verdict(rows)
    if as_json:
        print_json({"good": verdict is None, "proofs": proofs, "rows": rows})
    else:
        kv_screen.show_pairs((proof.answer, proof.words) for proof in proofs)
        click.echo(verdict or "A hit gives the bits of a cold run.")
    for notice in notices:
        warn(notice)
    return 0 if verdict is None else EngineError.exit_code


def _verdict(rows: Sequence[Compared]) -> str | None:
    """Return what is wrong, None when nothing is."""
    if not all(row.same for row in rows):
        return "A hit changes the answer!"
    if not all(row.is_read for row in rows):
        return "Stored rows were not used."
    if not all(row.is_missed for row in rows):
        return "A damaged record was not noticed where it is."
    return None


def _compare(model: Path, folder: Path) -> tuple[list[Compared], list[str]]:
    """Run every length in every way; return what came of it, and what the user should know."""
    from cedagent.cli import kv_probe

    here = _run_here(model, folder)
    found = kv_probe.resume_elsewhere(
        model=str(model), stores=here.stores, seed=SEED, known=list(LENGTHS), append=APPEND
    )

    def same(name: str, i: int) -> bool | None:
        return found[name].digests[i] == here.cold[i] if name in found else None

    def reused(name: str, i: int) -> int | None:
        return found[name].reused[i] if name in found else None

    rows = [
        Compared(
            tokens=n_tokens,
            live=here.live[i] == here.cold[i],
            ram=here.ram[i] == here.cold[i],
            disk=found["near"].digests[i] == here.cold[i],
            reused_disk=found["near"].reused[i],
            rerun=found["near"].rerun[i],
            no_snapshot=same("far", i),
            rerun_no_snapshot=found["far"].rerun[i] if "far" in found else None,
            reused_no_snapshot=reused("far", i),
            moved=same("moved", i),
            reused_moved=reused("moved", i),
            damaged=same("damaged", i),
            reused_damaged=reused("damaged", i),
        )
        for i, n_tokens in enumerate(LENGTHS)
    ]
    return rows, list(dict.fromkeys([*here.notices, *found["near"].notices]))


@dataclass(frozen=True, slots=True)
class _Here:
    """What this process found for each length, and the stores that it leaves to another one."""

    cold: Sequence[str]
    live: Sequence[str]
    ram: Sequence[str]
    stores: Mapping[str, str]
    """Folders: near, and where there is something to try far, moved and damaged."""
    notices: Sequence[str]


def _run_here(model: Path, folder: Path) -> _Here:
    from cedagent.cli import probe
    from cedagent.engine import Engine

    engine = Engine.load(model, kv=folder / "near")
    notices = list(engine.notices)
    text = probe.draw_ids(max(LENGTHS) + BEYOND, seed=SEED, engine=engine)
    ids = text[: max(LENGTHS)]
    new = probe.draw_ids(APPEND, seed=SEED + 1, engine=engine)
    cold, live, ram = [], [], []
    for n_tokens in LENGTHS:
        cold.append(_digest(_alone(engine).sequence(ids[:n_tokens]), new))
    # The longest one first: it publishes every block, and the shorter ones share its rows in RAM.
    longest = engine.sequence()
    longest.prefill(ids)
    longest.settle()
    for n_tokens in LENGTHS:
        alone = _alone(engine).sequence()
        alone.prefill(ids[:n_tokens])
        live.append(_digest(alone, new))
        fork = longest.fork(n_tokens)
        ram.append(_digest(fork, new))
        fork.close()
    if engine.store is None:
        raise EngineError("; ".join(notices) or "the prefix store cannot be opened")
    is_whole = engine.store.match(ids).position >= max(LENGTHS) // BLOCK * BLOCK
    if not is_whole and engine.store.read_only:
        raise EngineError(f"kv selftest: nothing can be tried; {engine.store.notice}")
    second = engine.store.hashes(ids)[1].hex()
    engine.close()
    names = ["near"]
    if engine.family.windows is not None:
        _make_far(engine, folder / "far", text)
        names.append("far")
    # What is not there can be neither carried nor damaged; the verdict says that it is not there.
    if is_whole:
        _carry(folder / "near", folder / "moved")
        try:
            shutil.copytree(folder / "near", folder / "damaged")
        except OSError:
            raise EngineError(
                f"kv selftest: a store cannot be copied in {folder.parent}; make room there, or "
                "name another disk's folder with --kv"
            ) from None
        _flip(folder / "damaged", second)
        names += ["moved", "damaged"]
    return _Here(cold, live, ram, {name: str(folder / name) for name in names}, notices)


def _make_far(engine: Engine, far: Path, text: Sequence[int]) -> None:
    """Make a store whose one snapshot lies beyond all lengths."""
    from cedagent.engine import Engine
    from cedagent.engine.prefix_store import open_store
    from cedagent.engine.settings import Settings

    store, refusal = open_store(engine.family, engine.model_dir, Settings(kv=far))
    if store is None:
        raise EngineError(str(refusal))
    with_far = Engine(engine.family, engine.model_dir, store=store)
    with_far.sequence().prefill(text)
    with_far.close()


def _carry(near: Path, moved: Path) -> None:
    """Copy a store by way of an archive; raises EngineError."""
    from ced_kvstore import StoreError
    from cedagent.cli.kv_folder import open_store

    archive = near.with_suffix(".tar")
    source, target = open_store(near), open_store(moved, create=True)
    assert source is not None
    assert target is not None
    try:
        with source, target:
            reason = source.export(archive).reason or target.import_(archive).reason
    except StoreError as error:
        reason = str(error)
    if reason is not None:
        raise EngineError(f"an archive of the store does not arrive whole: {reason}")


def _flip(folder: Path, block_hash: str) -> None:
    """Flip one bit of a block's rows on the disk."""
    from ced_kvstore.read_plan import HEAD_BYTES
    from cedagent.cli.kv_folder import open_store

    store = open_store(folder)
    assert store is not None
    with store:
        found = store.show(block_hash)
    with (folder / found.file).open("r+b") as segment:
        segment.seek(found.offset + HEAD_BYTES)
        byte = segment.read(1)[0]
        segment.seek(found.offset + HEAD_BYTES)
        segment.write(bytes([byte ^ 1]))


def _alone(engine: Engine) -> Engine:
    """Return an engine on the same model that knows no store and no other sequence."""
    from cedagent.engine import Engine

    return Engine(engine.family, engine.model_dir)


def _digest(sequence: CedSequence, new: list[int]) -> str:
    from cedagent.cli import probe

    sequence.prefill(new)
    return probe.digest(sequence)
