"""Words that are in no list: coined from syllables, or common ones that only training draws.

What is copied must be read, not remembered, and a list of a hundred words can be remembered. Knows
sounds, no tools. Invariant: a coined word is lower case, of three to eleven letters.
"""

from __future__ import annotations

from random import Random
from typing import Final

from cedagent.upcycle.data.words import word_list

_ONSETS: Final = (
    "b", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n",
    "p", "pl", "qu", "r", "s", "sh", "sk", "st", "t", "th", "tr", "v", "w", "y", "z",
)  # fmt: skip
_VOWELS: Final = ("a", "a", "e", "e", "i", "i", "o", "o", "u", "ai", "ea", "oo", "ou")
_CODAS: Final = (
    "", "", "", "l", "m", "n", "n", "nd", "r", "r", "rn", "s", "sk", "st", "t", "ck", "x"
)  # fmt: skip
_SHARE_COMMON: Final = 0.5


def coin(rng: Random) -> str:
    """Return a word that means nothing."""
    while True:
        syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3))]
        word = "".join(syllables) + rng.choice(_CODAS)
        if 3 <= len(word) <= 11:
            return word


def uncommon_word(rng: Random) -> str:
    """Return a coined word, or a common one that held-out cases do not draw."""
    return rng.choice(word_list("common")) if rng.random() < _SHARE_COMMON else coin(rng)
