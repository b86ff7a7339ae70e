"""A full, read-only or forbidden disk: one notice, no exception, and reading goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ced_kvstore import Anchor, Files

TROUBLES: dict[str, Callable[[], Exception]] = {
    "ENOSPC": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "EROFS": lambda: OSError(errno.EROFS, os.strerror(errno.EROFS)),
    "EIO": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "LMDB": lambda: lmdb.DiskError("mdb_txn_commit", errno.ENOSPC),
}
WRITING = ["open", "create", "pwritev", "sync_data", "sync_directory", "publish", "unlink", "lock"]
OPENING = [*WRITING, "make_directory", "write_small", "open_index", "names", "make_private"]
OPENING += ["replace", "disk_bytes", "free_bytes", "is_writable", "close"]
READING = ["preadv", "open", "size", "read_small", "identity", "names", "lock", "unlock", "close"]


def test_every_call_that_touches_the_disk_is_made_to_fail() -> None:
    calls = {name for name in vars(Files) if not name.startswith("_")}
    assert calls == {*OPENING, *READING, "preadv_cached"}


# What kind it is matters to nobody but the user; each has its turn.
BOTH = [(method, list(TROUBLES)[at % 3]) for at, method in enumerate(OPENING)]
BOTH += [("publish", "LMDB"), ("open_index", "LMDB")]


def fails(kind: str, *, only_writing: bool = True) -> Callable[..., Any]:
    def method(self: Files, *args: Any, **options: Any) -> Any:
        raise TROUBLES[kind]()

    def opening(self: Files, path: Path, *, write: bool = False, create: bool = False) -> int:
        if write:
            raise TROUBLES[kind]()
        return os.open(path, os.O_RDONLY)

    return opening if only_writing else method


def break_files(monkeypatch: pytest.MonkeyPatch, method: str, kind: str) -> None:
    monkeypatch.setattr(Files, method, fails(kind, only_writing=method == "open"))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), [pair for pair in BOTH if pair[0] in WRITING])
def test_trouble_while_committing_ends_writing_with_one_notice(
    kit: Any, monkeypatch: pytest.MonkeyPatch, method: str, kind: str
) -> None:
    # Small segments and a budget that is nearly full, so that a commit takes every step.
    store = kit.open(max_bytes=2 << 20)
    for seed in range(1, 25):
        kit.commit(store, kit.ids(8, seed=seed))
    held = kit.ids(8, seed=24)
    store.match(held)
    with monkeypatch.context() as broken:
        break_files(broken, method, kind)
        reasons = [kit.commit(store, kit.ids(40, seed=s)).reason for s in range(50, 54)]
    assert reasons == ["read_only"] * 4
    assert store.read_only
    assert store.notice is not None
    assert "\n" not in store.notice
    assert "nothing new is stored" in store.notice
    # What was there is read on, and the trouble does not come back by itself.
    assert kit.good_blocks(store, held) == 8
    assert kit.commit(store, kit.ids(1, seed=90)).reason == "read_only"
    assert store.match(kit.ids(1, seed=90)).blocks == 0
    assert store.explain(held + kit.ids(1, seed=90)).reason == "read_only"
    assert store.remove("nothing").reason == "read_only"
    assert store.evict(0) == 0
    store.close()
    # Once there is room again the next process goes on as if nothing had been.
    store = kit.open(max_bytes=2 << 20)
    assert store.notice is None
    assert store.verify() == []
    assert kit.good_blocks(store, held) == 8
    assert kit.commit(store, kit.ids(3, seed=91)).blocks == 3


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), BOTH)
@pytest.mark.parametrize("existing", [False, True])
def test_trouble_at_open_gives_a_store_that_misses(
    kit: Any, monkeypatch: pytest.MonkeyPatch, method: str, kind: str, existing: bool
) -> None:
    ids = kit.ids(3)
    if existing:
        store = kit.open()
        kit.anchored(store, ids, "session:a")
        store.close()
    with monkeypatch.context() as broken:
        break_files(broken, method, kind)
        store = kit.open(max_bytes=1 << 20)
        assert kit.good_blocks(store, ids) in ((0, 3) if existing else (0,))
        assert kit.commit(store, kit.ids(2, seed=4)).blocks in (0, 2)
        assert store.read_only is (store.notice is not None)
        assert store.stats().read_only is store.read_only
        store.explain(ids)
        store.anchors()
        store.verify()
        store.read_snapshot(bytes(32))
        store.close()
    store = kit.open(max_bytes=1 << 20)
    assert store.notice is None
    assert kit.good_blocks(store, ids) == (3 if existing else 0)
    assert kit.commit(store, ids).blocks == (0 if existing else 3)


@pytest.mark.parametrize("method", READING)
def test_trouble_while_reading_is_a_miss(
    kit: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    store = kit.open()
    ids = kit.ids(3)
    kit.anchored(store, ids, "session:a")
    key = store.hashes(ids)[-1]
    with monkeypatch.context() as broken:
        broken.setattr(Files, method, fails("EIO", only_writing=False))
        assert kit.good_blocks(store, ids) in (0, 3)
        store.read_snapshot(key)
        store.explain(kit.ids(2, seed=1))
        store.verify()
        store.stats()
    store.close()
    assert kit.open().match(ids).blocks in (0, 3)


def test_a_process_without_free_descriptors_keeps_its_records(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(3))

    def none_left(self: Files, path: Path, **options: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as broken:
        broken.setattr(Files, "open", none_left)
        assert kit.good_blocks(store, kit.ids(3)) == 0
    assert kit.good_blocks(store, kit.ids(3)) == 3


AS_NOBODY = """
import os, sys
from ced_kvstore import Store, Stream
# Imported first: the other user may not be allowed to read the interpreter's own folder.
os.setgid(65534); os.setuid(65534)
streams = [Stream("k", 1003), Stream("v", 517), Stream("e_out", 2049)]
fingerprint = {"family": "ced_llama", "weights.layers.3": "ab" * 32, "torch": "2.13", "rope": None}
store = Store.open(sys.argv[1], fingerprint=fingerprint, streams=streams)
ids = list(range(128 * 3))
match = store.match(ids)
buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in streams}
good = store.read(match, buffers)
rows = {s.name: bytes(s.block_bytes) for s in streams}
done = store.commit([9] * 128, first_block=0, rows=rows)
print(match.blocks, good, done.blocks, done.reason, store.read_only)
print(store.notice)
print(len(store.anchors()), len(store.verify()))
store.close()
"""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def let_others_in(path: Path) -> None:
    for parent in path.parents:
        if parent == Path("/tmp"):
            break
        parent.chmod(parent.stat().st_mode | 0o055)


@needs_root
def test_another_user_reads_a_folder_it_cannot_write_to(kit: Any, run_python: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(3), "session:a")
    store.close()
    let_others_in(kit.directory)
    for path in [kit.directory, *kit.directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    done = run_python(AS_NOBODY, kit.directory)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "3 3 0 read_only True"
    assert "Permission denied" in lines[1]
    assert lines[2] == "1 0"


@needs_root
def test_a_user_who_cannot_register_misses_while_another_writes(kit: Any, run_python: Any) -> None:
    store = kit.open()
    kit.anchored(store, kit.ids(3), "session:a")
    let_others_in(kit.directory)
    for path in [kit.directory, *kit.directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    done = run_python(AS_NOBODY, kit.directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0 0 0 read_only True"
    assert kit.commit(store, kit.ids(2, seed=3)).blocks == 2


@needs_root
@pytest.mark.parametrize("where", ["a private store", "a folder below a forbidden one"])
def test_a_forbidden_folder_is_one_notice(kit: Any, run_python: Any, where: str) -> None:
    if where == "a private store":
        kit.open().close()
        let_others_in(kit.directory)
        target = kit.directory
    else:
        kit.directory.mkdir(mode=0o755)
        let_others_in(kit.directory)
        target = kit.directory / "new"
    done = run_python(AS_NOBODY, target)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("0 0 0 ")
    assert lines[0].endswith("True")
    assert "Permission denied" in lines[1]
    assert not (kit.directory / "new").exists()


def test_anchors_do_not_outlive_a_failed_commit(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    with monkeypatch.context() as broken:
        break_files(broken, "publish", "ENOSPC")
        anchor = Anchor(store.hashes(kit.ids(2))[0], "session:a")
        assert store.commit([], first_block=0, rows={}, anchors=[anchor]).reason == "read_only"
    assert store.anchors() == []
