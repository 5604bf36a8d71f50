"""Errors for people: one line that names the thing, both values and the remedy. The command exits with code 2."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

# Messages of PyTorch for sizes that exceed the memory or a 64-bit integer.
NO_MEMORY = re.compile(r"out of memory|(allocate|enough) memory|calculation overflowed|multiplication overflow")

ERRNO = re.compile(r"\[Errno \d+\] ")


class UserError(ValueError):
    """A mistake in the input: the message names it and the remedy. Never a defect of the program."""


class CheckpointError(UserError):
    """A checkpoint that cannot be read or written."""


def check_range(least: float, most: float, **values: int | float | None) -> None:
    """Raise `UserError` for numbers outside a range. None is an option that is not given."""
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            bound = f"most {most:,}" if value > most else f"least {least}"
            raise UserError(f"{name} must be at {bound}, not {value}")


def one_line(error: BaseException, limit: int = 500) -> str:
    """The message of an error on one line, without terminal control characters and the numbers of the system's."""
    message = printable(" ".join(ERRNO.sub("", str(error)).split())) or type(error).__name__
    return message if len(message) <= limit else message[: limit - 3] + "..."


def join_or(names: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def printable(text: str) -> str:
    r"""Escape control characters of a text that is shown on a terminal, such as \x1b."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


@contextmanager
def within_memory(advice: str) -> Iterator[None]:
    """Turn out-of-memory errors, for which PyTorch has several classes, into a `UserError` with advice."""
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError) as error:
        if isinstance(error, OverflowError) or "without overflow" in str(error):
            raise UserError(f"a number is too large: {one_line(error)}") from error
        if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
            raise
        raise UserError(f"out of memory: {advice}") from error


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str | None = None) -> str:
    """Suggest the nearest of the known names; where none is near, all of them, or the text `otherwise`."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(known)}"
