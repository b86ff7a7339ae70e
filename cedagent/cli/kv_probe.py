"""What `kv selftest` runs in a process of its own: resumes from stores, and the logits after.

The task is JSON on the command line and its answer JSON on stdout, so that a new process truly
starts from what is on disk. It publishes nothing: what one resume adds must not help the next.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cedagent.cli import probe
from cedagent.errors import CedError

if TYPE_CHECKING:
    from cedagent.engine import Engine


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
    *, model: str, stores: Mapping[str, str], seed: int, known: Sequence[int], append: int
) -> dict[str, Resumed]:
    """Resume lengths of one text from each of some stores, all in one new process.

    `stores` names folders, and the answer has the same names. Raises EngineError.
    """
    task = {"model": model, "stores": stores, "seed": seed, "known": known, "append": append}
    purpose = f"that resumes from {', '.join(stores.values())}"
    answer = probe.run_elsewhere("cedagent.cli.kv_probe", task, purpose)
    return {name: Resumed(**found) for name, found in answer.items()}


def resume(
    *, model: str, stores: dict[str, str], seed: int, known: list[int], append: int
) -> dict[str, Resumed]:
    """Do so in this process."""
    from cedagent.engine import Engine

    loaded = Engine.load(model)
    text = probe.draw_ids(max(known), seed=seed, engine=loaded)
    new = probe.draw_ids(append, seed=seed + 1, engine=loaded)
    return {
        name: _resume(loaded, Path(folder), [text[:n] for n in known], new)
        for name, folder in stores.items()
    }


def _resume(
    loaded: Engine, folder: Path, texts: Sequence[Sequence[int]], new: Sequence[int]
) -> Resumed:
    """Resume from one store, by an engine that knows no other sequence."""
    from cedagent.engine import Engine
    from cedagent.engine.prefix_store import open_store
    from cedagent.engine.settings import Settings

    class Reader(Engine):
        """An engine that leaves its store as it finds it."""

        def publish(self, *args: Any, **options: Any) -> None:
            """Keep nothing."""

    store, refusal = open_store(loaded.family, loaded.model_dir, Settings(kv=folder))
    engine = Reader(loaded.family, loaded.model_dir, store=store)
    engine.take_notice(refusal)
    digests, reused, rerun = [], [], []
    for ids in texts:
        sequence = engine.sequence(ids)
        used = sequence.prefill(new)
        reused.append(used.reused_disk)
        rerun.append(used.rerun)
        digests.append(probe.digest(sequence))
        sequence.close()
    engine.close()
    return Resumed(digests, reused, rerun, engine.notices)


if __name__ == "__main__":
    try:
        found = resume(**json.loads(sys.argv[1]))
    except CedError as error:
        sys.exit(str(error))
    print(json.dumps({name: asdict(resumed) for name, resumed in found.items()}))
