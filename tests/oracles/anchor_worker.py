"""Answers for anchors in a process of its own: JSON in on stdin, JSON out on stdout.

In: {"model", "kv": path or null, "anchors": [{"known", "prefill", "feed", "append"}]}. Each anchor
is answered from scratch: `known` ids are given as known but not run, `prefill` is prefilled (null:
not), `feed` goes through decode one by one, `append` (null: none) is prefilled. Out: per anchor the
digest of the logits, the tokens sampled from there, and the usage of the last prefill.
"""

import dataclasses
import hashlib
import json
import sys

import torch

from cedagent.engine import CedSequence, Engine
from cedagent.engine.protocol import PrefillUsage, Sampling

N_SAMPLED = 8
SAMPLING = Sampling(temperature=1.2, top_p=0.98, seed=77)


def answer(sequence: CedSequence) -> dict:
    """The next-token logits' digest and the tokens sampled from there."""
    digest = hashlib.sha256(sequence.logits.numpy().tobytes()).hexdigest()
    sampled = []
    for _ in range(N_SAMPLED):
        sampled.append(sequence.sample(SAMPLING))
        sequence.feed(sampled[-1])
    return {"logits": digest, "sampled": sampled}


def run(engine: Engine, anchor: dict) -> dict:
    """One anchor's answer on a sequence of its own."""
    sequence = engine.sequence(anchor["known"])
    usage = PrefillUsage()
    if anchor["prefill"] is not None:
        usage = sequence.prefill(anchor["prefill"])
    for token in anchor["feed"]:
        sequence.feed(token)
    if anchor["append"] is not None:
        usage = sequence.prefill(anchor["append"])
    result = answer(sequence) | {"usage": dataclasses.asdict(usage)}
    sequence.close()
    return result


def main() -> None:
    task = json.load(sys.stdin)
    engine = Engine.load(task["model"], kv=task["kv"])
    results = [run(engine, anchor) for anchor in task["anchors"]]
    info = {"impl": engine.family.model.impl, "threads": torch.get_num_threads()}
    json.dump({"results": results, "info": info, "notices": engine.notices}, sys.stdout)


if __name__ == "__main__":
    main()
