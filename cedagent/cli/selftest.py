"""`cedagent kv selftest`: a hit gives the bits of a cold run, shown on the user's own machine.

For every length it compares the logits after the same append: of a live session, of one that shares
rows in RAM, of one restored from disk in a new process, and of a cold run without a store. It is
restored once more from a copy that went through an archive, once with a bit flipped on the disk,
and, for a model with encoder windows, from a store whose only snapshot lies further on, so that its
windows begin empty and are run again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_proofs import BLOCK, Compared, proofs_of
from cedagent.cli.render import warn
from cedagent.cli.report import print_json
from cedagent.errors import EngineError

if TYPE_CHECKING:
    from cedagent.cli.kv_probe import Resumed
    from cedagent.engine import CedSequence, Engine

LENGTHS = (1, 127, 128, 129, 255, 256, 257, 700)
"""Tokens before the append: both sides of the ends of blocks, and one far from them."""
BEYOND = 3 * BLOCK
"""Tokens after the longest in the store whose snapshot is to lie further on."""
APPEND = 20
SEED = 20260
ROWS_AT = 128 + 4 * BLOCK
"""Where rows begin in a block's record: behind its header and ids."""


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
    from cedagent.cli import kv_probe, probe
    from cedagent.engine import Engine

    near = folder / "kv"
    engine = Engine.load(model, kv=near)
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
    second = engine.store.hashes(ids)[1].hex()
    engine.close()
    resume = partial(
        kv_probe.resume_elsewhere, model=str(model), seed=SEED, known=list(LENGTHS), append=APPEND
    )
    disk, bare, moved, damaged = resume(kv=str(near)), None, None, None
    if engine.family.windows is not None:
        bare = _without_snapshot(engine, folder / "far", text, resume)
    # What is not there can be neither carried nor damaged; the verdict says that it is not there.
    if disk.reused[-1] >= LENGTHS[-1] // BLOCK * BLOCK:
        moved = _carried(near, folder / "moved", resume)
        _flip(near, second)
        damaged = resume(kv=str(near))

    def same(got: Resumed | None, i: int) -> bool | None:
        return None if got is None else got.digests[i] == cold[i]

    def reused(got: Resumed | None, i: int) -> int | None:
        return None if got is None else got.reused[i]

    rows = [
        Compared(
            tokens=n_tokens,
            live=live[i] == cold[i],
            ram=ram[i] == cold[i],
            disk=disk.digests[i] == cold[i],
            reused_disk=disk.reused[i],
            rerun=disk.rerun[i],
            no_snapshot=same(bare, i),
            rerun_no_snapshot=None if bare is None else bare.rerun[i],
            reused_no_snapshot=reused(bare, i),
            moved=same(moved, i),
            reused_moved=reused(moved, i),
            damaged=same(damaged, i),
            reused_damaged=reused(damaged, i),
        )
        for i, n_tokens in enumerate(LENGTHS)
    ]
    return rows, list(dict.fromkeys([*notices, *disk.notices]))


def _without_snapshot(
    engine: Engine, far: Path, text: Sequence[int], resume: partial[Resumed]
) -> Resumed:
    """Resume from a store whose one snapshot lies beyond all lengths."""
    from cedagent.engine import Engine
    from cedagent.engine.prefix_store import open_store
    from cedagent.engine.settings import Settings

    store, refusal = open_store(engine.family, engine.model_dir, Settings(kv=far))
    if store is None:
        raise EngineError(str(refusal))
    with_far = Engine(engine.family, engine.model_dir, store=store)
    with_far.sequence().prefill(text)
    with_far.close()
    return resume(kv=str(far))


def _carried(near: Path, moved: Path, resume: partial[Resumed]) -> Resumed:
    """Resume from a copy of a store that went through an archive; raises EngineError."""
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
    return resume(kv=str(moved))


def _flip(near: Path, block_hash: str) -> None:
    """Flip one bit of a block's rows on the disk."""
    from cedagent.cli.kv_folder import open_store

    store = open_store(near)
    assert store is not None
    with store:
        found = store.show(block_hash)
    with (near / found.file).open("r+b") as segment:
        segment.seek(found.offset + ROWS_AT)
        byte = segment.read(1)[0]
        segment.seek(found.offset + ROWS_AT)
        segment.write(bytes([byte ^ 1]))


def _alone(engine: Engine) -> Engine:
    """Return an engine on the same model that knows no store and no other sequence."""
    from cedagent.engine import Engine

    return Engine(engine.family, engine.model_dir)


def _digest(sequence: CedSequence, new: list[int]) -> str:
    from cedagent.cli import probe

    sequence.prefill(new)
    return probe.digest(sequence)
