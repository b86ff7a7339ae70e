"""A session that survives its process, and a fork of it. Run: python examples/resume.py [MODEL]

The log of token ids is in the sessions folder, the rows in the prefix store: the second engine goes
on where the first one stopped, and encodes only what is new.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
from pathlib import Path

import cedagent as ca

STORY = "Remember these words: " + ", ".join(f"word{n}" for n in range(120)) + "."


def main(model: str, kv: Path) -> None:
    name = f"example-resume-{secrets.token_hex(4)}"
    engine = ca.Engine.load(model, kv=kv)
    with ca.Agent(engine, limits=ca.Limits(tokens=20)).session(name) as session:
        session.run(STORY)
        print(f"first process: {session.n_tokens} tokens in the session")
    engine.close()

    engine = ca.Engine.load(model, kv=kv)
    with ca.Agent(engine, limits=ca.Limits(tokens=20)).session(name) as session:
        usage = session.run("Which word came first?").usage
        print(f"second process: {usage.reused_disk} from disk, {usage.encoded} encoded")
        with session.fork(turns=1) as other:
            usage = other.run("And which came last?").usage
            print(f"fork: {usage.reused_ram} from RAM, {usage.encoded} encoded")
    engine.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            main(sys.argv[1], Path(folder) / "kv")
        else:
            from cedagent.model.tiny import write_tiny

            main(str(write_tiny(Path(folder) / "tiny")), Path(folder) / "kv")
