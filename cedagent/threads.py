"""How the CPU threads of a forward wait for each other: asleep, not spinning.

Knows environment variables only. It must be asked before torch is loaded, because OpenMP reads its
settings once, when its library is loaded.
"""

from __future__ import annotations

import os
import sys


def wait_asleep() -> None:
    """Let OpenMP threads sleep at barriers, unless the user set a policy or torch is loaded.

    A forward has thousands of short parallel regions. Threads that spin between them take the
    cores from whatever else runs, also from the thread that they wait for: beside one busy process
    on two cores, a resume of 4,100 tokens took 5 to 12 s spinning and 0.5 to 1 s asleep.
    """
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
