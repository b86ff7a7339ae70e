"""`cedagent kv tree`: the block tree, a line for each stretch between forks.

Knows runs of blocks as the store tells them and how they are drawn. What merely goes on stays at
its place; only a fork goes one step to the right, so that a long session does not leave the screen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_folder import NOTHING, check_readable, folder_option, open_store
from cedagent.cli.options import json_option
from cedagent.cli.report import age, count, print_json, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ced_kvstore import Anchor
    from ced_kvstore.forest import TreeNode

Children = dict[int | None, list[int]]
"""Run -> the runs that go on from it, by index; None: where texts begin."""

_DRAWN = ("├─ ", "│  ", "└─ ", "   ", "… ")
_ASCII = ("|- ", "|  ", "`- ", "   ", "~ ")
_FOLDED = "    "
"""Before what is left of a folded line, so that the next stretch is not taken for it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Runs that follow one another without a fork and belong to the same labels: one line."""

    runs: Sequence[TreeNode]
    next: Sequence[int]
    """Indices of the branches after it; none where the line goes on or ends."""


@click.command()
@folder_option
@json_option
def tree(folder: Path | None, as_json: bool) -> int:
    """Show which texts share their beginnings, and what keeps them.

    A line says: tokens, labels, size, hits (decayed by half a day by day) and last use of it and of
    all after it, and the hash of its last block for `kv show`.
    """
    store = open_store(folder)
    if store is None:
        if as_json:
            print_json({"runs": [], "before_first_block": []})
        else:
            click.echo(NOTHING)
        return 0
    with store:
        runs, anchors = store.tree(), store.anchors()
        check_readable(store, found=runs or anchors)
    ends = {run.block_hash for run in runs}
    early = [anchor for anchor in anchors if anchor.block_hash not in ends]
    if as_json:
        print_json({"runs": runs, "before_first_block": early})
    elif runs or early:
        _print(runs, early)
    else:
        click.echo("No block is stored.")
    return 0


def _stretches(runs: Sequence[TreeNode], children: Children, first: int) -> Iterator[Stretch]:
    """Yield what follows from a run on, up to the next fork."""
    at, joined = first, [runs[first]]
    while len(children[at]) == 1:
        (after,) = children[at]
        if runs[after].labels != runs[at].labels:
            yield Stretch(joined, ())
            joined = []
        joined.append(runs[after])
        at = after
    yield Stretch(joined, children[at])


def _print(runs: Sequence[TreeNode], early: Sequence[Anchor]) -> None:
    from rich.text import Text

    on = kv_screen.console()
    children: Children = defaultdict(list)
    for index, run in enumerate(runs):
        children[run.parent].append(index)
    lines: list[Text] = []
    names = dict.fromkeys(run.fingerprint for run in runs)
    for name in names:
        roots = [index for index in children[None] if runs[index].fingerprint == name]
        mine = [run for run in runs if run.fingerprint == name]
        blocks = count(sum(run.n_tokens for run in mine) // 128, "block")
        total = size(sum(run.bytes for run in mine))
        lines.append(Text(f"fingerprint {name[:12]}: {blocks}, {total}", style="bold"))
        lines += _drawn(runs, children, roots, on)
    if early:
        named = ", ".join(dict.fromkeys(kv_screen.one_line(anchor.label) for anchor in early))
        lines.append(Text(f"without a whole block yet: {named}"))
    kv_screen.show(*lines, on=on)


def _drawn(
    runs: Sequence[TreeNode], children: Children, roots: Sequence[int], on: Console
) -> Iterator[Text]:
    branch, bar, last, blank, cut = _DRAWN if kv_screen.can_draw() else _ASCII
    waiting = [(index, "", index == roots[-1]) for index in reversed(roots)]
    while waiting:
        index, guide, is_last = waiting.pop()
        own, below = guide + (last if is_last else branch), guide + (blank if is_last else bar)
        for stretch in _stretches(runs, children, index):
            yield from _lines(stretch, own, below, cut, on)
            own = below
            waiting += [
                (child, below, child == stretch.next[-1]) for child in reversed(stretch.next)
            ]


def _lines(stretch: Stretch, own: str, below: str, cut: str, on: Console) -> Iterator[Text]:
    """Yield the line of a stretch, folded behind its guide."""
    from rich.text import Text

    most = max(len(cut) + 3, on.width // 3)
    if len(below) > most:
        # Deep down only the nearest forks are drawn; the text needs the rest of the line.
        own, below = (cut + guide[len(cut) - most :] for guide in (own, below))
    for line in _text(stretch).wrap(on, max(16, on.width - len(below) - len(_FOLDED))):
        line.rstrip()
        yield Text.assemble((own, "dim"), line)
        own = below + _FOLDED


def _text(stretch: Stretch) -> Text:
    from rich.text import Text

    first, last = stretch.runs[0], stretch.runs[-1]
    n_tokens = sum(run.n_tokens for run in stretch.runs)
    text = Text(f"{first.position:,}-{first.position + n_tokens:,}  ")
    pinned = {label for run in stretch.runs for label in run.pinned}
    labels = [kv_screen.one_line(s) + (" (pinned)" if s in pinned else "") for s in last.labels]
    if len(stretch.runs) > 1 and labels:
        labels[-1] += f", {count(len(stretch.runs), 'anchor')}"
    if labels:
        text.append(", ".join(labels), style="bold").append("  ")
    elif not stretch.next:
        text.append("nobody's", style="italic").append("  ")
    snapshots, bad = (sum(getattr(r, name) for r in stretch.runs) for name in ("snapshots", "bad"))
    figures = [
        count(n_tokens, "token"),
        size(sum(run.bytes for run in stretch.runs)),
        f"{first.hits:.1f} hits",
        f"used {age(first.last)} ago" if first.last else "never used",
        *([count(snapshots, "snapshot")] if snapshots else []),
    ]
    text.append(", ".join(figures), style="dim")
    if bad:
        text.append(f", {count(bad, 'damaged block')}", style="red")
    return text.append(f"  {last.block_hash.hex()[:12]}")
