"""A scripted conversation of ten turns, and every anchor in it with its four ways to be reached."""

import copy
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anchor_worker
from anchor_worker import SAMPLING, answer

from cedagent.engine import CedSequence, Engine

TURNS = (
    # (append up to or by n tokens, tokens sampled after it, closing ids)
    (127, 1, 0),
    (1, 6, 2),
    (118, 1, 0),
    (1, 10, 1),
    (5, 7, 2),
    (700, 9, 2),
    (63, 20, 0),
    (333, 3, 2),
    (5, 41, 1),
    (128, 4, 2),
)
"""Prefill and output ends fall on 127, 128, 129, 255, 256 and 257; results have 5 to 700 tokens."""

SUFFIX = [11, 12, 13, 14, 15] * 4
"""The same 20-token append after every anchor that is not a prefill end."""


@dataclass
class Anchor:
    ids: list[int]
    prefill_end: int
    live: dict

    @property
    def is_prefill_end(self) -> bool:
        return len(self.ids) == self.prefill_end

    @property
    def resumed(self) -> dict:
        """Known ids that were never run here, then the append."""
        if self.is_prefill_end:
            return {"known": [], "prefill": self.ids, "feed": [], "append": None}
        return {"known": self.ids, "prefill": None, "feed": [], "append": SUFFIX}

    @property
    def cold(self) -> dict:
        """Encode and replay to the last prefill end, then decode the rest one by one."""
        head, rest = self.ids[: self.prefill_end], self.ids[self.prefill_end :]
        append = None if self.is_prefill_end else SUFFIX
        return {"known": [], "prefill": head, "feed": rest, "append": append}


def hold(conversation: CedSequence, engine: Engine, turns=TURNS, vocab: int = 300) -> list[Anchor]:
    """Run the conversation on an open sequence and return its anchors with the live answers."""
    rng = random.Random(5)
    anchors = []

    def note(prefill_end: int) -> None:
        branch = copy.deepcopy(conversation, {id(engine): engine})
        if len(branch.ids) != prefill_end:
            branch.prefill(SUFFIX)
        anchors.append(Anchor(list(conversation.ids), prefill_end, answer(branch)))

    for n_appended, n_sampled, n_closing in turns:
        conversation.prefill(rng.choices(range(vocab), k=n_appended))
        prefill_end = len(conversation.ids)
        note(prefill_end)
        for i in range(n_sampled):
            conversation.feed(conversation.sample(SAMPLING))
            if i == n_sampled // 2:
                note(prefill_end)
        conversation.append_unseen(rng.choices(range(vocab), k=n_closing))
        conversation.settle()
        note(prefill_end)
    return anchors


def in_new_process(model: Path, tasks: list[dict], *, kv: Path | None, **environment: str) -> dict:
    """Answer anchors in a process of its own."""
    folders = [str(Path(anchor_worker.__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, anchor_worker.__file__],
        input=json.dumps({"model": str(model), "kv": kv and str(kv), "anchors": tasks}),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
