"""What `bench` runs in processes of its own: timed prefills and their logits.

A task is JSON on the command line and its answer is JSON on stdout, so that a new process truly
starts from what is on disk. Token ids are drawn from a seed: two processes agree on them without
sending them. Times run from the call of prefill to the first drawn token, the model being loaded
and one tile run before.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cedagent.errors import CedError, EngineError

if TYPE_CHECKING:
    from cedagent.engine import CedSequence, Engine
    from cedagent.engine.protocol import PrefillUsage
    from cedagent.model.weights_choice import WeightsChoice

TILE = 128


def run_task(name: str, **arguments: Any) -> dict[str, Any]:
    """Run a task of this module in a new process; raises EngineError with its last line."""
    return run_elsewhere("cedagent.cli.probe", {"task": name, **arguments}, f"for {name}")


def run_elsewhere(module: str, task: dict[str, Any], purpose: str) -> dict[str, Any]:
    """Run a module with a task in a new process; raises EngineError with its last line."""
    # The child finds the packages where this process found them, installed or not.
    found = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(task)],
        capture_output=True,
        text=True,
        env=os.environ | found,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EngineError(f"a process {purpose} failed: {last}")
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def draw_ids(n_tokens: int, *, seed: int, engine: Engine) -> list[int]:
    """Return ordinary token ids that depend on the seed alone."""
    from cedagent.chat.tokenizer import Tokenizer

    control = Tokenizer.load(engine.model_dir).control_ids
    ordinary = [token for token in range(engine.vocab_size) if token not in control]
    return random.Random(seed).choices(ordinary, k=n_tokens)


def first_process(
    *,
    model: str,
    kv: str,
    context: int,
    append: int,
    seed: int,
    restored: Sequence[int],
    weights: WeightsChoice,
) -> dict[str, Any]:
    """Cold prefill into a new store, then appends to the live session.

    Adds the cold logits of what `second_process` will restore, for contexts of these lengths.
    """
    engine = _load(model, kv, weights)
    ids = draw_ids(context, seed=seed, engine=engine)
    sequence = engine.sequence()
    times = {"cold": _first_token(sequence, ids)[0]}
    bytes_on_disk = _disk_bytes(Path(kv))
    times["append"] = _first_token(sequence, draw_ids(append, seed=seed + 1, engine=engine))[0]
    # The same append where the context does not end at a tile's end.
    odd = engine.sequence()
    odd.prefill(ids[: context - TILE + 37])
    times["append_odd"] = _first_token(odd, draw_ids(append, seed=seed + 2, engine=engine))[0]
    digests = []
    for n_tokens in restored:
        cold = _without_store(engine).sequence()
        cold.prefill([*ids[:n_tokens], *draw_ids(append, seed=seed + 3, engine=engine)])
        digests.append(digest(cold))
    engine.close()
    return {"times": times, "bytes_per_token": bytes_on_disk / context, "digests": digests}


def second_process(
    *, model: str, kv: str, context: int, append: int, seed: int, weights: WeightsChoice
) -> dict[str, Any]:
    """Resume the context of `first_process`, or its beginning, from its store and append to it."""
    engine = _load(model, kv, weights)
    ids = draw_ids(context, seed=seed, engine=engine)
    new = draw_ids(append, seed=seed + 3, engine=engine)
    sequence = engine.sequence(ids)
    seconds, used = _first_token(sequence, new)
    answer = {"seconds": seconds, "rerun": used.rerun, "digest": digest(sequence)}
    engine.close()
    return answer


def warm_start(*, model: str, kv: str, ids: list[int], weights: WeightsChoice) -> dict[str, Any]:
    """Time to the first token of ids whose beginning a store may hold, in a new session."""
    engine = _load(model, kv, weights)
    answer = {"seconds": _first_token(engine.sequence(), ids)[0]}
    engine.close()
    return answer


def digest(sequence: CedSequence) -> str:
    """Return the SHA-256 of the next-token logits."""
    return hashlib.sha256(sequence.logits.contiguous().numpy().tobytes()).hexdigest()


def _load(model: str, kv: str | Path, weights: WeightsChoice = "auto") -> Engine:
    from cedagent.cli.loading import open_engine

    engine = open_engine(model, kv=Path(kv), weights=weights)
    # One tile, so that no first use of a library is in the first figure.
    _first_token(_without_store(engine).sequence(), [0] * TILE)
    return engine


def _without_store(engine: Engine) -> Engine:
    from cedagent.engine import Engine

    return Engine(engine.family, engine.model_dir)


def _first_token(sequence: CedSequence, new_ids: Sequence[int]) -> tuple[float, PrefillUsage]:
    from cedagent.engine.protocol import Sampling

    started = time.perf_counter()
    used = sequence.prefill(new_ids)
    sequence.sample(Sampling())
    return time.perf_counter() - started, used


def _disk_bytes(folder: Path) -> int:
    from cedagent.cli.report import disk_bytes

    return disk_bytes(folder)


_TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task for task in (first_process, second_process, warm_start)
}

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    try:
        print(json.dumps(_TASKS[arguments.pop("task")](**arguments)))
    except CedError as error:
        sys.exit(str(error))
