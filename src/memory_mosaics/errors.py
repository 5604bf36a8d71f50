"""Errors for people: one line that names the thing, both values and the remedy. The command exits with code 2."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """What was asked for cannot be done, and the message says why. Never a defect of the program."""


def one_line(error: BaseException, limit: int = 500) -> str:
    """The message of any error, on one line."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= limit else message[: limit - 3] + "..."


@contextmanager
def within_memory(advice: str) -> Iterator[None]:
    """Where the device or the machine has no more memory, say so, and what to do. PyTorch has no one class for both."""
    try:
        yield
    except RuntimeError as error:
        if not re.search(r"out of memory|allocate memory", str(error)):
            raise
        raise UserError(f"out of memory: {advice}") from error
