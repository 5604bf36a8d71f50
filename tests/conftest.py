"""Fixtures and helpers for all tests."""

import gc
import signal
from collections.abc import Generator

import hypothesis
import pytest
import torch

# A shell starts what runs in the background with Ctrl-C ignored, and so would be every command that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing of hypothesis looks at the clock. The same examples in every run, and what fails can be repeated.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW
)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: 800,000 objects, half a second of each full collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: one that begins last would leave the other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """For tests that look at no figure: figures take longer than the training of models as small as theirs."""
    monkeypatch.setattr("memory_mosaics.experiments.figures.draw_if_possible", lambda *_: "No figures.")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
