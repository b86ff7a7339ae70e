"""A DeepSeek-V4.1 checkpoint: run, restarted from the store, compared with a cold run.

Run: python examples/v41_tiny.py [CHECKPOINT]. Without one it writes a tiny checkpoint with random
weights, which has the release's tensor names, fp8 and fp4 codes, and Engram layers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cedagent as ca


def main(model: str, kv: Path) -> None:
    prompt = [50 + (11 * n) % 300 for n in range(700)]
    question = [50 + (5 * n) % 300 for n in range(30)]

    engine = ca.Engine.load(model, kv=kv)
    used = engine.sequence().prefill(prompt)
    print(f"first: {used.encoded} encoded, {used.replayed} of them through the decoder")
    engine.close()

    # A new engine, as a new process has: rows come from disk, the windows before them run again.
    engine = ca.Engine.load(model, kv=kv)
    resumed = engine.sequence(prompt)
    used = resumed.prefill(question)
    print(f"restarted: {used.reused_disk} reused, {used.encoded} encoded, {used.rerun} run again")
    engine.close()

    cold = ca.Engine.load(model).sequence()
    cold.prefill([*prompt, *question])
    print(f"same logits as a cold run: {bool((resumed.logits == cold.logits).all())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            main(sys.argv[1], Path(folder) / "kv")
        else:
            from cedagent.model.tiny_v41 import write_tiny_v41

            main(str(write_tiny_v41(Path(folder) / "tiny")), Path(folder) / "kv")
