"""`cedagent kv selftest`: a hit gives the bits of a cold run, shown on the user's own machine.

For every length it compares the logits after the same append: of a live session, of one that shares
rows in RAM, of one restored from disk in a new process, and of a cold run without a store. A model
with encoder windows is restored twice, the second time from a store whose only snapshot lies
further on, so that its windows begin empty and are run again.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedagent.cli.render import warn
from cedagent.cli.report import print_json, print_table
from cedagent.errors import EngineError

if TYPE_CHECKING:
    from cedagent.engine import CedSequence, Engine

LENGTHS = (1, 127, 128, 129, 255, 256, 257, 700)
"""Tokens before the append: both sides of the ends of blocks, and one far from them."""
BLOCK = 128
BEYOND = 3 * BLOCK
"""Tokens after the longest in the store whose snapshot is to lie further on."""
APPEND = 20
SEED = 20260


@dataclass(frozen=True, slots=True)
class Compared:
    """One length: which of the ways gave the cold run's bits."""

    tokens: int
    live: bool
    ram: bool
    disk: bool
    reused_disk: int
    """Tokens that were truly read from disk in the new process."""
    rerun: int
    """Tokens of these that were run again, for windows and outputs that are not stored."""
    no_snapshot: bool | None
    """From disk without a snapshot on the way; None for a model without encoder windows."""
    rerun_no_snapshot: int | None

    @property
    def same(self) -> bool:
        """Whether every way gave the same bits."""
        return self.live and self.ram and self.disk and self.no_snapshot is not False

    @property
    def is_read(self) -> bool:
        """Whether all whole blocks came from disk, so that there was something to compare."""
        return self.reused_disk >= self.tokens // BLOCK * BLOCK


def run_selftest(model: Path, *, as_json: bool) -> int:
    """Compare all lengths and print the table; return 0, or 5 when any bit differs."""
    with tempfile.TemporaryDirectory(prefix="cedagent-selftest-") as folder:
        rows, notices = _compare(model, Path(folder))
    same, is_read = all(row.same for row in rows), all(row.is_read for row in rows)
    good = same and is_read
    if as_json:
        print_json({"good": good, "rows": rows})
    else:
        _print(rows)
        if good:
            click.echo("A hit gives the bits of a cold run.")
        else:
            click.echo("Stored rows were not used." if same else "A hit changes the answer!")
    for notice in notices:
        warn(notice)
    return 0 if good else EngineError.exit_code


def _print(rows: list[Compared]) -> None:
    word = {True: "same bits", False: "DIFFERS"}
    header = ["tokens", "live", "from RAM", "from disk", "read from disk"]
    table = [
        [f"{r.tokens} + {APPEND}", word[r.live], word[r.ram], word[r.disk], str(r.reused_disk)]
        for r in rows
    ]
    if any(r.no_snapshot is not None for r in rows):
        header += ["run again", "without a snapshot", "run again"]
        for cells, r in zip(table, rows, strict=True):
            cells += [str(r.rerun), word[bool(r.no_snapshot)], str(r.rerun_no_snapshot)]
    print_table(header, table)


def _compare(model: Path, folder: Path) -> tuple[list[Compared], list[str]]:
    from cedagent.cli import probe
    from cedagent.engine import Engine
    from cedagent.engine.prefix_store import open_store
    from cedagent.engine.settings import Settings

    near, far = str(folder / "kv"), str(folder / "far")
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
    engine.close()
    task: dict[str, Any] = {
        "model": str(model), "seed": SEED, "known": list(LENGTHS), "append": APPEND,
    }  # fmt: skip
    disk = probe.run_task("restored", kv=near, **task)
    bare = None
    if engine.family.windows is not None:
        store, refusal = open_store(engine.family, engine.model_dir, Settings(kv=far))
        # Held open while the new process reads: it cannot add the snapshots that it would like.
        with_far = Engine(engine.family, engine.model_dir, store=store)
        with_far.sequence().prefill(text)
        bare = probe.run_task("restored", kv=far, **task)
        with_far.close()
        notices += [] if refusal is None else [refusal]
    rows = [
        Compared(
            tokens=n_tokens,
            live=live[i] == cold[i],
            ram=ram[i] == cold[i],
            disk=disk["digests"][i] == cold[i],
            reused_disk=disk["reused"][i],
            rerun=disk["rerun"][i],
            no_snapshot=None if bare is None else bare["digests"][i] == cold[i],
            rerun_no_snapshot=None if bare is None else bare["rerun"][i],
        )
        for i, n_tokens in enumerate(LENGTHS)
    ]
    return rows, list(dict.fromkeys([*notices, *disk["notices"]]))


def _alone(engine: Engine) -> Engine:
    """Return an engine on the same model that knows no store and no other sequence."""
    from cedagent.engine import Engine

    return Engine(engine.family, engine.model_dir)


def _digest(sequence: CedSequence, new: list[int]) -> str:
    from cedagent.cli import probe

    sequence.prefill(new)
    return probe.digest(sequence)
