"""One torch thread for tiny models: a second one costs more than it brings, and slow tests keep it.

New processes that tests start run with the default number of threads, unless a test says otherwise.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from cedagent.threads import spin_briefly

# Before any test module loads torch.
spin_briefly()
# Tests say themselves how wide their terminals are; workers of a parallel run are told a width.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


@pytest.fixture(autouse=True, scope="module")
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None or request.node.get_closest_marker("slow") is not None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
