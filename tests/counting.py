"""Work counted instead of timed: a busy machine makes no more of it."""

import sys
from collections.abc import Callable


def calls(act: Callable[[], object]) -> int:
    """How many functions, of Python and of C, are called while `act` runs in this thread."""
    count = 0

    def see(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
