"""`du` and `tree`: every byte on the disk is in one row, every block in one run."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ced_kvstore import Anchor, Store, Stream
from ced_kvstore.forest import TreeNode

STREAM = Stream("k", 700)
Path_ = tuple[int, ...]
# A path is a tuple of small numbers; number n stands for one block of ids, () for no block at all.
PATHS = st.lists(st.integers(0, 2), max_size=6).map(tuple)
COMMITS = st.lists(
    st.tuples(PATHS, st.sampled_from([None, "a", "b", "c"]), st.booleans(), st.booleans()),
    max_size=12,
)
EXAMPLES = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def ids(path: Path_) -> list[int]:
    return [1000 * number + i for number in path for i in range(128)]


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Model:
    """A store, and which paths and anchors it must hold."""

    def __init__(self, commits: list[tuple[Path_, str | None, bool, bool]]) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="store-usage-"))
        self.store = Store.open(self.base / "kv", fingerprint={"model": "a"}, streams=[STREAM])
        self.paths: set[Path_] = set()
        self.anchors: dict[Path_, dict[str, bool]] = defaultdict(dict)
        self.snapshots: set[Path_] = set()
        for path, label, pinned, snapshot in commits:
            self.commit(path, label, pinned, snapshot)

    def key(self, path: Path_) -> bytes:
        return self.store.hashes(ids(path))[-1] if path else self.store.root

    def commit(self, path: Path_, label: str | None, pinned: bool, snapshot: bool) -> None:
        key = self.key(path)
        anchors = [Anchor(key, label, pinned=pinned)] if label else []
        rows = {"k": bytes(len(path) * STREAM.block_bytes)}
        snapshots = {key: b"w" * 5000} if snapshot and path else {}
        done = self.store.commit(
            ids(path), first_block=0, rows=rows, anchors=anchors, snapshots=snapshots
        )
        assert done.reason is None
        self.paths |= {path[:end] for end in range(1, len(path) + 1)}
        if label:
            self.anchors[path][label] = pinned or self.anchors[path].get(label, False)
        # Older snapshots of a branch are thinned out as new ones come.
        self.snapshots = {p for p in self.paths if self.store.read_snapshot(self.key(p))}

    def labels(self, path: Path_) -> set[str]:
        """Labels at a block or after it."""
        return {
            label
            for at, labels in self.anchors.items()
            for label in labels
            if at[: len(path)] == path
        }

    def end(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)


def check_du(model: Model) -> None:
    rows = model.store.du()
    assert sum(row.own_bytes for row in rows) == bytes_on_disk(model.store.directory)
    by_label = {row.label: row for row in rows if row.kind == "label"}
    assert set(by_label) == model.labels(())
    assert len(rows) == len(by_label) + len({row.kind for row in rows} - {"label"})
    block, snapshot, anchor = 4096, 8192, 4096
    parts: Counter[str] = Counter()
    for path in model.paths:
        size = block + snapshot * (path in model.snapshots)
        labels = model.labels(path)
        parts["shared" if len(labels) > 1 else min(labels, default="nobody")] += size
    for label, row in by_label.items():
        needs = [path for path in model.paths if label in model.labels(path)]
        snapshots = snapshot * sum(path in model.snapshots for path in needs)
        n_anchors = sum(label in labels for labels in model.anchors.values())
        assert (row.blocks, row.snapshot_bytes, row.anchors) == (len(needs), snapshots, n_anchors)
        assert row.bytes == block * len(needs) + snapshots + anchor * n_anchors
        assert row.own_bytes == parts[label] + anchor * n_anchors
        assert row.pinned == any(labels.get(label) for labels in model.anchors.values())
    for kind in ("shared", "nobody"):
        assert sum(row.own_bytes for row in rows if row.kind == kind) == parts[kind]


def expected_runs(model: Model) -> dict[Path_, tuple[int, int]]:
    """Return path of a run's end -> (its blocks, runs before it)."""
    children: dict[Path_, list[Path_]] = defaultdict(list)
    for path in model.paths:
        children[path[:-1]].append(path)
    runs: dict[Path_, tuple[int, int]] = {}
    for end in model.paths:
        if not model.anchors.get(end) and len(children[end]) == 1:
            continue
        cuts = [p for p in (end[:n] for n in range(1, len(end))) if len(children[p]) > 1]
        cuts += [end[:n] for n in range(1, len(end)) if model.anchors.get(end[:n])]
        runs[end] = len(end) - max(map(len, cuts), default=0), len(set(cuts))
    return runs


def check_tree(model: Model) -> None:
    runs = model.store.tree()
    expected = expected_runs(model)
    ends = {model.key(path): path for path in model.paths}
    found = {ends[run.block_hash]: (run.n_tokens // 128, run.depth) for run in runs}
    assert len(found) == len(runs)
    assert found == expected
    # Every block in one run and no more.
    assert sum(run.n_tokens for run in runs) == 128 * len(model.paths)
    for index, run in enumerate(runs):
        end = ends[run.block_hash]
        start = end[: len(end) - run.n_tokens // 128]
        assert run.position == 128 * len(start)
        before = () if run.parent is None else ends[runs[run.parent].block_hash]
        assert before == start
        assert run.parent is None or run.parent < index
        labels = model.anchors.get(end, {})
        assert run.labels == tuple(sorted(labels))
        assert run.pinned == tuple(sorted(label for label in labels if labels[label]))
        inside = [end[:n] for n in range(len(start) + 1, len(end) + 1)]
        assert run.snapshots == sum(path in model.snapshots for path in inside)
        assert run.bytes == 4096 * len(inside) + 8192 * run.snapshots
        assert run.bad == 0


def is_depth_first(runs: tuple[TreeNode, ...]) -> bool:
    """Whether each branch comes whole before the next one begins."""
    path: list[int | None] = [None]
    for index, run in enumerate(runs):
        while path[-1] != run.parent:
            path.pop()
            if not path:
                return False
        path.append(index)
    return True


@pytest.mark.slow
@given(commits=COMMITS)
@settings(EXAMPLES, max_examples=150)
def test_every_byte_is_in_one_row_and_every_block_in_one_run(commits: Any) -> None:
    model = Model(commits)
    try:
        check_du(model)
        check_tree(model)
        assert is_depth_first(model.store.tree())
    finally:
        model.end()


SOME = [
    ((0, 1, 2), "a", True, False),
    ((0, 1, 2, 0, 0), "a", False, True),
    ((0, 1, 1, 1), "b", False, False),
    ((2, 2), None, False, False),
    ((), "c", False, False),
]


def test_rows_and_runs_of_a_small_store() -> None:
    model = Model(SOME)
    check_du(model)
    check_tree(model)
    assert is_depth_first(model.store.tree())
    runs = [(run.depth, run.position, run.n_tokens, run.labels) for run in model.store.tree()]
    assert sorted(runs) == [
        (0, 0, 256, ()),
        (0, 0, 256, ()),
        (1, 256, 128, ("a",)),
        (1, 256, 256, ("b",)),
        (2, 384, 256, ("a",)),
    ]
    model.end()


def test_what_was_used_last_comes_first(kit: Any) -> None:
    store = kit.open()
    for seed in (1, 2, 3):
        kit.anchored(store, kit.ids(2, seed), f"s:{seed}")
    store.match(kit.ids(2, seed=1))
    kit.anchored(store, kit.ids(1, seed=4), "s:4")
    store.match(kit.ids(2, seed=1))
    store.commit([], first_block=0, rows={}, anchors=[Anchor(store.root, "now")])
    first, *_, last = store.tree()
    assert (first.labels, last.labels) == (("s:1",), ("s:2",))
    assert (first.hits > 2, last.hits < 1.1) == (True, True)


def test_pins_take_bytes_like_everything_else(kit: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(3), "s")
    store.pin(store.hashes(kit.ids(3))[-1])
    assert [path.stat().st_size > 0 for path in (kit.directory / "pins").iterdir()] == [True]
    assert sum(row.own_bytes for row in store.du()) == kit.bytes_on_disk()


def test_a_block_whose_path_is_lost_begins_a_run(kit: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(4), "s")
    first, second, *_, last = store.hashes(kit.ids(4))

    def lose(_core: Any, index: Any) -> bool:
        return bool(index.write(lambda tables: tables._delete("blocks", second)))

    assert store._core.change(lose, str) is True
    runs = {run.block_hash: (run.parent, run.position, run.n_tokens) for run in store.tree()}
    assert runs == {first: (None, 0, 128), last: (None, 256, 256)}


def test_dead_bytes_and_those_of_files_that_no_index_knows_are_counted(kit: Any) -> None:
    store = kit.open(max_bytes=32 * (64 << 10))
    for seed in range(6):
        kit.anchored(store, kit.ids(5, seed), f"s:{seed}")
    assert len(kit.segments()) > 3
    assert not [row for row in store.du() if row.kind == "dead"]
    store.remove("s:1")
    (kit.directory / "seg" / "000999.kvs").write_bytes(b"x" * 777)
    with kit.segments()[0].open("ab") as file:
        file.write(b"y" * 50)
    rows = store.du()
    (dead,) = [row.own_bytes for row in rows if row.kind == "dead"]
    assert dead >= 777 + 50
    assert sum(row.own_bytes for row in rows) == kit.bytes_on_disk()
    # Somebody cuts a file: what is not there is nobody's bytes.
    with kit.segments()[1].open("r+b") as file:
        file.truncate(5000)
    assert sum(row.own_bytes for row in store.du()) == kit.bytes_on_disk()
