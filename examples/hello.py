"""Ask one question. Run: python examples/hello.py [MODEL]

Without an argument it uses a tiny model with random weights: the answer is noise, made in seconds.
With a name or a directory it uses that model, e.g. smollm2-135m-ced.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cedagent as ca


def main(model: str) -> None:
    engine = ca.Engine.load(model)
    agent = ca.Agent(engine, system="Be brief.", limits=ca.Limits(tokens=60))
    for event in agent.stream("What is a prefix cache?"):
        match event:
            case ca.Prefill(done=done, total=total):
                print(f"[read {done} of {total} tokens]")
            case ca.Text(delta=delta):
                print(delta, end="", flush=True)
            case ca.Done(stop_reason=stop_reason, usage=usage):
                print(f"\n[{stop_reason}; encoded {usage.encoded}, sampled {usage.sampled}]")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from cedagent.model.tiny import write_tiny

        with tempfile.TemporaryDirectory() as folder:
            main(str(write_tiny(Path(folder) / "tiny")))
