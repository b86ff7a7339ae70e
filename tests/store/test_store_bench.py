"""The benches run, say what they measured, and leave what they say they leave."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import bench_million
import lmdb.verify
import pytest

TIMES = r"[\d.]+ to [\d.]+, median [\d.]+ ms; at most"


def test_a_bench_of_a_million_blocks_opens_and_matches_a_whole_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("BLOCKS", 70),
        ("SEGMENT_BYTES", 10 << 20),
        ("OPENINGS", 2),
        ("PAUSE_S", 0.0),
    ):
        monkeypatch.setattr(bench_million, name, value)
    walks, walk = [], lmdb.verify.verify

    def walking(path: str) -> Any:
        walks.append(path)
        return walk(path)

    monkeypatch.setattr(lmdb.verify, "verify", walking)
    lines = list(bench_million.bench_million(tmp_path / "kv", 4 * 128 + 5, 3))
    for line, form in zip(
        lines,
        (
            r"built    72 blocks as 18 paths in \d+ s: index \d+ MB, put there directly; .*",
            rf"open     after a clean close: {TIMES} 1000 ms: (met|MISSED)",
            rf"open     after a kill: {TIMES} 1000 ms: (met|MISSED)",
            rf"match    512 tokens in it: {TIMES} 10 ms: (met|MISSED)",
        ),
        strict=True,
    ):
        assert re.fullmatch(form, line), line
    # Only what was killed has its pages walked.
    assert len(walks) == 2
    assert walk(walks[0]) == []
    assert len(list((tmp_path / "kv" / "seg").iterdir())) == 3
    with bench_million._open(tmp_path / "kv") as store:
        # Every block is there, and only its record is not.
        assert {problem.kind for problem in store.verify()} == {"corrupt"}
        assert len(store.verify()) == store.stats().blocks == 72
