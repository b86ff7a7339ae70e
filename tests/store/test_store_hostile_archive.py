"""Tars and manifests that somebody made to do harm, or that broke on the way, are refused whole."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_archive import END, Forge, Target, make_archive, member

from ced_kvstore import StoreError, Stream, unpack
from ced_kvstore.hashing import Fingerprint


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_archive(tmp_path_factory.mktemp("good"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with Target(tmp_path) as made:
        yield made


def test_the_forge_makes_good_archives(good: bytes, target: Target) -> None:
    # Else the tests below would see the wrong refusals.
    forge = Forge(good)
    forge.files = dict(reversed(forge.files.items()))
    target.path.write_bytes(forge.sign().pack() + bytes(9000))
    assert target.store.import_(target.path) == unpack.Imported(8, 3, 3, 8 * 64, 2, 0)


GNU, PAX = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT
B1 = "000001-blocks.safetensors"


def odd(forge: Forge, kind: bytes, link: str = "") -> bytes:
    """A chunk with its right name and bytes, but of another type."""
    return (
        forge.pack(without=B1)[:-1024] + member(B1, forge.files[B1], type=kind, linkname=link) + END
    )


def renamed(forge: Forge) -> bytes:
    """A manifest in a folder; plain tar writes the folder into a field of its own."""
    return member("d" * 90 + "/manifest.json", forge.text()) + forge.pack(without="manifest.json")


def flipped(raw: bytes, where: int) -> bytes:
    return raw[:where] + bytes([raw[where] ^ 1]) + raw[where + 1 :]


PLAIN = "a regular file of a plain tar"
MORE = "there is more"
CUT = "the archive is cut off: the file ends at "
TAR: dict[str, tuple[str, Callable[[Forge], bytes]]] = {
    "parent": ("'../evil'", lambda f: f.pack()[:-1024] + member("../evil", b"x") + END),
    "absolute": ("'/tmp/evil'", lambda f: f.pack()[:-1024] + member("/tmp/evil", b"x") + END),
    "extra": ("'more'", lambda f: f.pack()[:-1024] + member("more") + END),
    "twice": ("once", lambda f: f.pack()[:-1024] + member(B1, f.files[B1]) + END),
    "missing": ("it is missing", lambda f: f.pack(without=B1)),
    "manifest last": ("as its first file", lambda f: member(B1, f.files.pop(B1)) + f.pack()),
    "folder": (PLAIN, lambda f: member(B1, type=tarfile.DIRTYPE) + f.pack()),
    "huge": (CUT, lambda f: member("manifest.json", size=8**11 - 1) + END),
    "huge chunk": (CUT, lambda f: f.pack(without=B1)[:-1024] + member(B1, size=1 << 32) + END),
    "huge gnu": ("octal", lambda f: member("manifest.json", b"", GNU, size=1 << 62) + END),
    "negative": ("octal", lambda f: member("manifest.json", b"", GNU, size=-512) + END),
    "long name": (PLAIN, lambda f: member("n" * 200, b"x", GNU) + f.pack()),
    "prefix": (PLAIN, renamed),
    "header": ("its sum does not fit", lambda f: flipped(f.pack(), 100)),
    "padding": (MORE, lambda f: flipped(f.pack(), 512 + len(f.text()))),
    "cut": (CUT, lambda f: f.pack()[:-1024]),
    "cut in the end": (CUT, lambda f: f.pack()[:-1000]),
    "cut in a header": (CUT, lambda f: f.pack(without=B1)[:-1024] + member(B1)[:100]),
    "cut in a file": (CUT, lambda f: f.pack()[:-2000]),
    "cut in the manifest": (CUT, lambda f: f.pack()[:700]),
    "half an end": (CUT, lambda f: f.pack()[:-512]),
    "garbage behind": (MORE, lambda f: f.pack() + b"x"),
    "too much behind": (MORE, lambda f: f.pack() + bytes(2 << 20)),
    "second tar behind": (MORE, lambda f: f.pack() + f.pack()),
    "gzip": ("uncompressed tar", lambda f: gzip.compress(f.pack())),
    "empty": (CUT + "0;", lambda f: b""),
    "zeros": ("as its first file", lambda f: bytes(10_240)),
    **{
        f"type {kind!r}": (f"it is of type {kind.decode()!r};", lambda f, kind=kind: odd(f, kind))  # type: ignore[misc]
        for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"x", b"g", b"L", b"\0")
    },
    "hard link": (PLAIN, lambda f: odd(f, b"1", "/etc/passwd")),
    "symlink": (PLAIN, lambda f: odd(f, b"2", "../../etc/passwd")),
    "link name": (PLAIN, lambda f: odd(f, b"0", "/etc/passwd")),
    "pax": (PLAIN, lambda f: member("x", b"", PAX, pax_headers={"size": "9"}) + f.pack()),
    "sparse": (
        PLAIN,
        lambda f: member("x", b"", PAX, pax_headers={"GNU.sparse.map": "0,1"}) + f.pack(),
    ),
}


@pytest.mark.parametrize("name", TAR)
def test_a_hostile_tar_is_refused(good: bytes, target: Target, name: str) -> None:
    why, work = TAR[name]
    assert why in target.refuses(work(Forge(good)))


def at(*path: Any, value: Any) -> Callable[[Forge], Any]:
    """Change one value of the manifest."""

    def change(forge: Forge) -> None:
        place: Any = forge.manifest
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def huge() -> dict[str, Any]:
    """A fingerprint that is right, of blocks that no record can hold."""
    streams = [Stream(name, 1 << 30) for name in "abcd"]
    made = Fingerprint.of({}, streams)
    rows = [{"name": s.name, "block_bytes": s.block_bytes} for s in streams]
    empty: dict[str, Any] = {"blocks": [], "snapshots": [], "anchors": []}
    return {"digest": made.digest.hex(), "fields": made.fields, "streams": rows, **empty}


F, A, C = ("fingerprints", 0), ("fingerprints", 0, "anchors", 0), ("fingerprints", 0, "blocks", 0)
MANIFEST: dict[str, Callable[[Forge], Any]] = {
    "version": at("version", value=2),
    "no version": lambda f: f.manifest.pop("version"),
    "format": at("format", value="other"),
    "more": at("more", value=1),
    "no list": at("fingerprints", value={}),
    "twice": lambda f: f.manifest["fingerprints"].append(f.first),
    "twice, empty": lambda f: f.manifest["fingerprints"].append(
        {**f.first, "blocks": [], "snapshots": [], "anchors": []}
    ),
    "larger than a record": lambda f: f.manifest["fingerprints"].append(huge()),
    "digest": at(*F, "digest", value="0" * 64),
    "no digest": at(*F, "digest", value=None),
    "another model": at(*F, "fields", "family", value="z"),
    "stream in no field": lambda f: f.first["fields"].pop("stream_order"),
    "float field": at(*F, "fields", "family", value=1.5),
    "list field": at(*F, "fields", "family", value=[]),
    "huge field": at(*F, "fields", "family", value=1 << 70),
    "long field": at(*F, "fields", "family", value="x" * 70_000),
    "store format": at(*F, "fields", "store_format", value=2),
    "no streams": at(*F, "streams", value=[]),
    "stream size": at(*F, "streams", 0, "block_bytes", value=41),
    "negative stream": at(*F, "streams", 0, "block_bytes", value=-1),
    "huge stream": at(*F, "streams", 0, "block_bytes", value=1 << 40),
    "bool stream": at(*F, "streams", 0, "block_bytes", value=True),
    "stream name": at(*F, "streams", 0, "name", value="a,b" * 500),
    "chunk twice": lambda f: f.first["blocks"].insert(0, f.first["blocks"][0]),
    "chunk name": at(*C, "file", value="../../evil"),
    "manifest as chunk": at(*C, "file", value="manifest.json"),
    "no blocks": at(*C, "count", value=0),
    "negative blocks": at(*C, "count", value=-1),
    "more blocks": at(*C, "count", value=5),
    "too many blocks": at(*C, "count", value=10**9),
    "snapshot count": at(*F, "snapshots", 0, "count", value=3),
    "anchor nowhere": at(*A, "block", value="ab" * 32),
    "anchor twice": lambda f: f.first["anchors"].append(f.first["anchors"][0]),
    "label": at(*A, "label", value=7),
    "no label": at(*A, "label", value=""),
    "half label": at(*A, "label", value="\ud800"),
    "long label": at(*A, "label", value="l" * (1 << 17)),
    "pinned": at(*A, "pinned", value=1),
    "created": at(*A, "created", value=-1),
    "created text": at(*A, "created", value="now"),
    "n_tokens": at(*A, "n_tokens", value=1 << 40),
    "n_tokens float": at(*A, "n_tokens", value=1.0),
    "left open": lambda f: f.first.pop("anchors"),
}


@pytest.mark.parametrize("name", MANIFEST)
def test_a_hostile_manifest_is_refused(good: bytes, target: Target, name: str) -> None:
    forge = Forge(good)
    MANIFEST[name](forge)
    forge.sign(keep_bytes=name in ("chunk name", "manifest as chunk"))
    line = target.refuses(forge.pack())
    why = {
        "version": "expected an archive of version 1, got 2",
        "too many blocks": "count: expected a whole number",
        "twice, empty": "it is there twice",
        "larger than a record": "they are larger",
        "anchor twice": "one is there twice",
        "store format": "store_format: expected 1, got 2",
        "no label": "label: expected a text by which",
    }
    assert why.get(name, "") in line


DEEP = b'{"format":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda raw: b"",
    "no JSON": lambda raw: b"not JSON",
    "a number": lambda raw: b"1",
    "deep": lambda raw: DEEP,
    "deep field": lambda raw: raw.replace(b'"a"', b"[" * 900 + b"]" * 900, 1),
    "NaN": lambda raw: raw.replace(b"5.0", b"NaN", 1),
    "infinite": lambda raw: raw.replace(b"5.0", b"1e999", 1),
    "digits": lambda raw: raw.replace(b"5.0", b"9" * 10_000, 1),
    "name twice": lambda raw: raw.replace(b'"version"', b'"version": 1, "version"', 1),
    "two values": lambda raw: raw + raw,
    "other letters": lambda raw: raw.decode().encode("utf-16"),
    "no letters": lambda raw: raw.replace(b"session", b"\xff\xfe", 1),
    "label": lambda raw: raw.replace(b"session:1", b"session:2", 1),
    "too long": lambda raw: raw + b" " * (16 << 20),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_refused(good: bytes, target: Target, name: str) -> None:
    forge = Forge(good)
    line = target.refuses(forge.pack(TEXTS[name](forge.text())))
    why = {"digits": "a number is too long", "no letters": "is not UTF-8", "deep": "too deeply"}
    assert why.get(name, "") in line
    assert "sys." not in line


@pytest.mark.parametrize("kind", ["nothing", "folder", "pipe"])
def test_only_a_file_is_an_archive(target: Target, kind: str) -> None:
    if kind == "folder":
        target.path.mkdir()
    elif kind == "pipe":
        os.mkfifo(target.path)
    with pytest.raises(StoreError, match="expected an archive file"):
        target.store.import_(target.path)


def test_other_tar_programs_may_pack_it_again(good: bytes, target: Target) -> None:
    forge = Forge(good)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in [("manifest.json", forge.text()), *forge.files.items()]:
            info = tarfile.TarInfo(name)
            info.size, info.uname, info.mtime = len(content), "somebody", 1_700_000_000
            tar.addfile(info, io.BytesIO(content))
    target.path.write_bytes(made.getvalue())
    assert target.store.import_(target.path).left_out == 0
