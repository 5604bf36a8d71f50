"""Errors for people: one line that names the thing, both values and the remedy. The command exits with code 2."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

# What PyTorch says of sizes that a machine, or an integer of 64 bits, has no room for.
NO_MEMORY = re.compile(r"out of memory|(allocate|enough) memory|calculation overflowed|multiplication overflow")


class UserError(ValueError):
    """What was asked for cannot be done, and the message says why. Never a defect of the program."""


class CheckpointError(UserError):
    """A checkpoint that cannot be read or written."""


def check_range(least: int, most: int, **values: int | float | None) -> None:
    """Refuse numbers outside a range, naming the option, the bound and the value; None is an option not given."""
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            bound = f"most {most:,}" if value > most else f"least {least}"
            raise UserError(f"{name} must be at {bound}, not {value}")


def one_line(error: BaseException, limit: int = 500) -> str:
    """The message of any error, on one line, without characters that a terminal obeys."""
    message = printable(" ".join(str(error).split())) or type(error).__name__
    return message if len(message) <= limit else message[: limit - 3] + "..."


def printable(text: str, keep: str = "") -> str:
    r"""A text of others as it may be shown on a terminal: control characters as \x1b, except those in `keep`."""
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


@contextmanager
def within_memory(advice: str) -> Iterator[None]:
    """Where the device or the machine has no more memory, say so, and what to do. PyTorch has no one class for both."""
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError) as error:
        if isinstance(error, OverflowError) or "without overflow" in str(error):
            raise UserError(f"a number is too large: {one_line(error)}") from error
        if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
            raise
        raise UserError(f"out of memory: {advice}") from error
