"""The engine without chat, tools or sessions: token ids in, token ids out.

Run: python examples/engine_only.py [MODEL]. It shows the promise on one case: a sequence that was
appended to and one that was read in one go give the same next-token logits, bit for bit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cedagent as ca
from cedagent.engine.protocol import Sampling


def main(model: str) -> None:
    engine = ca.Engine.load(model)
    prompt = [(7 * n) % 200 for n in range(300)]

    live = engine.sequence()
    live.prefill(prompt[:290])
    used = live.prefill(prompt[290:])
    print(f"append: {used.reused_ram} reused, {used.encoded} encoded, {used.replayed} replayed")

    cold = engine.sequence()
    cold.prefill(prompt)
    print(f"same logits: {bool((live.logits == cold.logits).all())}")

    written = []
    for _ in range(8):
        written.append(live.sample(Sampling(temperature=0.8, seed=5)))
        live.feed(written[-1])
    print(f"sampled: {written}")
    print(f"logits of every position: {list(engine.logits(prompt).shape)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from cedagent.model.tiny import write_tiny

        with tempfile.TemporaryDirectory() as folder:
            main(str(write_tiny(Path(folder) / "tiny")))
