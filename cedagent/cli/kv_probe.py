"""What `kv selftest` runs in processes of their own: resumes from a store, and the logits after.

The task is JSON on the command line and its answer JSON on stdout, so that a new process truly
starts from what is on disk. It publishes nothing: what one resume adds must not help the next.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cedagent.cli import probe
from cedagent.errors import CedError


@dataclass(frozen=True, slots=True)
class Resumed:
    """What resuming each length gave, in the order in which they were asked for."""

    digests: Sequence[str]
    """SHA-256 of the logits after the same append."""
    reused: Sequence[int]
    """Tokens read from disk."""
    rerun: Sequence[int]
    """Tokens run again for windows."""
    notices: Sequence[str]


def resume_elsewhere(
    *, model: str, kv: str, seed: int, known: Sequence[int], append: int
) -> Resumed:
    """Resume lengths of one text from a store in a new process; raises EngineError."""
    task = {"model": model, "kv": kv, "seed": seed, "known": known, "append": append}
    return Resumed(**probe.run_elsewhere("cedagent.cli.kv_probe", task, f"that resumes from {kv}"))


def resume(*, model: str, kv: str, seed: int, known: list[int], append: int) -> Resumed:
    """Do so in this process."""
    from cedagent.engine import Engine

    class Reader(Engine):
        """An engine that leaves its store as it finds it."""

        def publish(self, *args: Any, **options: Any) -> None:
            """Keep nothing."""

    engine = Reader.load(model, kv=kv)
    text = probe.draw_ids(max(known), seed=seed, engine=engine)
    new = probe.draw_ids(append, seed=seed + 1, engine=engine)
    digests, reused, rerun = [], [], []
    for n_tokens in known:
        sequence = engine.sequence(text[:n_tokens])
        used = sequence.prefill(new)
        reused.append(used.reused_disk)
        rerun.append(used.rerun)
        digests.append(probe.digest(sequence))
        sequence.close()
    engine.close()
    return Resumed(digests, reused, rerun, engine.notices)


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(resume(**json.loads(sys.argv[1])))))
    except CedError as error:
        sys.exit(str(error))
