"""Short runs of a stage over a small model: what they log, and ways to end them early."""

import json
from dataclasses import replace

import torch
from safetensors.torch import load_file
from training import LENGTHS, Texts

from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.training.batches import Room
from cedagent.upcycle.training.checkpoint import LOG
from cedagent.upcycle.training.heal import Heal
from cedagent.upcycle.training.pair import Pair
from cedagent.upcycle.training.recipe import Recipe
from cedagent.upcycle.training.run import run
from cedagent.upcycle.training.teach import Teach
from cedagent.upcycle.training.trainer import Cadence

RECIPE = Recipe(
    "heal", steps=4, rank=3, lr=2e-2, lr_global=2e-2, batch_tokens=144, pass_tokens=96,
    precision="float32", seed=1,
)  # fmt: skip
SHORT = replace(RECIPE, steps=2, batch_tokens=96)
ALWAYS = Cadence(checkpoint_s=0, held_out_s=1e9)
NEVER = Cadence(checkpoint_s=1e9, held_out_s=1e9)


def heal(model_dir, folder, recipe=RECIPE, **more):
    more = {"minutes": None, "texts": Texts(), "lengths": LENGTHS, "cadence": ALWAYS} | more
    return run(model_dir, folder, recipe=recipe, **more)


def stage_of(model_dir, recipe, texts=None):
    """The stage that a run of this recipe trains, alone."""
    config = LlamaConfig.load(model_dir)
    tensors = load_file(model_dir / "model.safetensors")
    pair = Pair(config, tensors, dtype=torch.float32, device=torch.device("cpu"))
    room = Room(config, recipe.pass_tokens, recipe.replay_share, LENGTHS)
    texts, seed = texts or Texts(), recipe.seed
    plain, held_out = texts.plain("train", seed), texts.plain("heldout", 0)
    if recipe.stage == "heal":
        return Heal(pair, recipe, plain=plain, held_out=held_out, room=room)
    return Teach(
        pair,
        recipe,
        transcripts=texts.transcripts("train", seed),
        plain=plain,
        held_out_transcripts=texts.transcripts("heldout", 0),
        held_out_plain=held_out,
        room=room,
    )


def log_of(folder, event=None):
    """The entries of a log, or those of one event."""
    entries = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [entry for entry in entries if event in (None, entry["event"])]


def same(a, b):
    """Whether two safetensors files hold the same bits."""
    mine, theirs = load_file(a), load_file(b)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


class StopAfter:
    """Says stop once so many steps were done."""

    def __init__(self, steps):
        self.steps, self.seen = steps, 0

    def report(self, status):
        self.seen = status.step

    def __call__(self):
        return self.seen >= self.steps
