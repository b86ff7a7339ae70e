"""`cedagent kv selftest`: a hit gives the bits of a cold run, shown on the user's own machine.

For every length it compares the logits after the same append: of a live session, of one that shares
rows in RAM, of one restored from disk in a new process, and of a cold run without a store.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from cedagent.cli.report import print_json, print_table
from cedagent.errors import EngineError

LENGTHS = (1, 127, 128, 129, 255, 256, 257, 700)
"""Tokens before the append: both sides of the ends of blocks, and one far from them."""
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


def run_selftest(model: Path, *, as_json: bool) -> int:
    """Compare all lengths and print the table; return 0, or 5 when any bit differs."""
    with tempfile.TemporaryDirectory(prefix="cedagent-selftest-") as folder:
        rows = _compare(model, str(Path(folder) / "kv"))
    good = all(row.live and row.ram and row.disk for row in rows)
    if as_json:
        print_json({"good": good, "rows": rows})
    else:
        word = {True: "same bits", False: "DIFFERS"}
        table = [
            [f"{r.tokens} + {APPEND}", word[r.live], word[r.ram], word[r.disk], str(r.reused_disk)]
            for r in rows
        ]
        print_table(["tokens", "live", "from RAM", "from disk", "read from disk"], table)
        click.echo("A hit gives the bits of a cold run." if good else "A hit changes the answer!")
    return 0 if good else EngineError.exit_code


def _compare(model: Path, kv: str) -> list[Compared]:
    from cedagent.cli import probe
    from cedagent.engine import Engine

    engine = Engine.load(model, kv=kv)
    ids = probe.draw_ids(max(LENGTHS), seed=SEED, engine=engine)
    new = probe.draw_ids(APPEND, seed=SEED + 1, engine=engine)
    cold, live, ram = [], [], []
    for n_tokens in LENGTHS:
        sequence = Engine(engine.family, engine.model_dir).sequence(ids[:n_tokens])
        sequence.prefill(new)
        cold.append(probe.digest(sequence))
    # The longest one first: it publishes every block, and the shorter ones share its rows in RAM.
    longest = engine.sequence()
    longest.prefill(ids)
    longest.settle()
    for n_tokens in LENGTHS:
        alone = Engine(engine.family, engine.model_dir).sequence()
        alone.prefill(ids[:n_tokens])
        alone.prefill(new)
        live.append(probe.digest(alone))
        fork = longest.fork(n_tokens)
        fork.prefill(new)
        ram.append(probe.digest(fork))
        fork.close()
    engine.close()
    disk = probe.run_task(
        "restored", model=str(model), kv=kv, seed=SEED, known=list(LENGTHS), append=APPEND
    )
    return [
        Compared(n, live[i] == cold[i], ram[i] == cold[i], disk["digests"][i] == cold[i],
                 disk["reused"][i])
        for i, n in enumerate(LENGTHS)
    ]  # fmt: skip
