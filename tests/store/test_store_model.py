"""The store against a dictionary: whatever one process or two do to it and to its files, no wrong
row and no hole, nothing lost without a reason, and within its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from store_machine import StoreMachine
from store_model import Hands


class Remote:
    """Hands in another process."""

    def __init__(self, peer: Any, *args: Any) -> None:
        self._peer = peer
        peer("from store_model import Hands")
        peer(f"hands = Hands(*{args!r})")

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._peer(f"hands.{name}(*{args!r})")


def run(hands: Callable[..., list[Any]], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(hands),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            phases=set(Phase) - {Phase.explain},
        ),
    )


MANY = pytest.param(20, 40, marks=pytest.mark.stress)


@pytest.mark.parametrize(("examples", "steps"), [(10, 20), MANY])
def test_one_process(examples: int, steps: int) -> None:
    run(lambda *args: [Hands(*args)], examples, steps)


@pytest.mark.parametrize(
    ("examples", "steps"), [pytest.param(10, 25, marks=pytest.mark.slow), MANY]
)
def test_two_processes(standing_peer: Any, examples: int, steps: int) -> None:
    run(lambda *args: [Hands(*args), Remote(standing_peer(), *args)], examples, steps)
