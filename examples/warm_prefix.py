"""Encode a long system prompt once; later sessions start from it.

Run: python examples/warm_prefix.py [MODEL]. Two engines stand for two processes: the second one
finds on disk what the first one encoded, and
reads only the question.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cedagent as ca

RULES = "\n".join(f"Rule {n}: answer question number {n} in {n + 2} words." for n in range(1, 40))


def main(model: str, kv: Path) -> None:
    engine = ca.Engine.load(model, kv=kv)
    report = ca.Agent(engine, system=RULES).warm()
    print(f"warm: {report.tokens} tokens, {report.encoded} encoded, {report.seconds:.2f} s")
    engine.close()

    engine = ca.Engine.load(model, kv=kv)
    agent = ca.Agent(engine, system=RULES, limits=ca.Limits(tokens=20))
    again = agent.warm()
    print(f"warm again: hit {again.hit}")
    usage = agent.run("What does rule 7 say?").usage
    print(f"question: {usage.reused_ram + usage.reused_disk} reused, {usage.encoded} encoded")
    engine.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            main(sys.argv[1], Path(folder) / "kv")
        else:
            from cedagent.model.tiny import write_tiny

            main(str(write_tiny(Path(folder) / "tiny")), Path(folder) / "kv")
