"""Waiting for events. The time limit here and in other tests only ends a hang; no test measures speed by the clock."""

import time
from collections.abc import Callable

HANG = 1800.0  # seconds: far more than any event takes, on a machine however busy


def until(condition: Callable[[], object], step: float = 0.01) -> None:
    """Return when the condition holds."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "the event does not come"
        time.sleep(step)
