"""How the CPU threads of a forward wait for each other: a short spin, then asleep.

Knows environment variables only. It must be asked before torch is loaded, because OpenMP reads its
settings once, when its library is loaded.
"""

from __future__ import annotations

import os
import sys

_SPINS = "1000"
"""Turns of libgomp's waiting loop, a few microseconds: the gap between two operations."""


def spin_briefly() -> None:
    """Bound how long OpenMP threads spin, unless the user set a policy or torch is loaded.

    A forward has thousands of short parallel regions. Threads that spin for long take the cores
    from whatever else runs, also from the thread that they wait for; threads that sleep at once are
    slow to wake. Two cores, default model: a resume of 4,100 tokens beside other busy processes
    takes 5 to 12 s with libgomp's own spin and 0.5 to 1.4 s with this one. The default shape, the
    machine nearly idle: 230 to 240 tokens/s with 100 times these spins, 214 to 224 with these, 96
    to 105 asleep (OMP_WAIT_POLICY=PASSIVE).
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
