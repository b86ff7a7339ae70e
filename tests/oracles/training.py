"""A small model to train, and texts for it that a tiny model can learn."""

import random
from dataclasses import dataclass

from cedagent.model.tiny import write_tiny

VOCAB = 384
LENGTHS = (24, 48)


@dataclass(frozen=True)
class Made:
    ids: list[int]
    trained: list[bool]


class Texts:
    """Random words as plain text; transcripts with the same seven tokens after every token 4."""

    def plain(self, split, seed):
        draw = random.Random(f"{split}/{seed}")
        words = [draw.choices(range(3, VOCAB), k=3) for _ in range(20)]
        while True:
            ids = [token for word in draw.choices(words, k=draw.randrange(5, 30)) for token in word]
            yield Made(ids, [True] * len(ids))

    def transcripts(self, split, seed):
        draw = random.Random(f"{split}/{seed}")
        while True:
            ids, trained = draw.choices(range(11, VOCAB), k=draw.randrange(1, 20)), []
            ids[-1] = 4
            trained += [False] * len(ids)
            for _ in range(draw.randrange(1, 4)):
                output = [5, 6, 7, 8, 9, 10, 2]
                after = [*draw.choices(range(11, VOCAB), k=draw.randrange(15)), 4]
                ids, trained = ids + output + after, trained + [True] * 7 + [False] * len(after)
            yield Made(ids, trained)


def made(folder, *, n_layers=4, n_encoder_layers=2, window=6, **more):
    """A model whose global projections are noise, so that there is something to learn."""
    return write_tiny(
        folder / "model",
        n_layers=n_layers,
        n_encoder_layers=n_encoder_layers,
        window=window,
        **more,
    )
