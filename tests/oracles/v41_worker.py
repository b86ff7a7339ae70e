"""Answers for anchors of a V4.1 model in a process of its own: JSON in on stdin, out on stdout.

In: {"model", "kv": path or null, "settings": of Engine.load, "n_sampled", "anchors": as in
anchor_worker}. Out: {"results", "notices"}.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import anchor_worker

from ced_kvstore import Commit
from cedagent.engine import Engine


def in_new_process(model, tasks, *, kv=None, n_sampled=2, environment=None, **settings):
    """Answer anchors in a process of its own."""
    folders = [str(Path(__file__).parent), *sys.path]
    task = {"model": str(model), "kv": kv and str(kv), "settings": settings}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(task | {"n_sampled": n_sampled, "anchors": tasks}),
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main() -> None:
    task = json.load(sys.stdin)
    engine = Engine.load(task["model"], kv=task["kv"], **task["settings"])
    anchor_worker.N_SAMPLED = task["n_sampled"]
    if engine.store is not None:
        # What one resume adds must not help the next.
        engine.store.commit = lambda *args, **options: Commit(0, 0, None)
    results = [anchor_worker.run(engine, anchor) for anchor in task["anchors"]]
    notices = list(engine.notices)
    engine.close()
    json.dump({"results": results, "notices": notices}, sys.stdout)


if __name__ == "__main__":
    main()
