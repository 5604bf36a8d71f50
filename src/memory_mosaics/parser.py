"""The parser of the command, whose errors are for people: `--environments must be whole numbers, not abc`."""

import re
import sys
from argparse import ArgumentError
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from jsonargparse import ArgumentParser

from memory_mosaics.errors import one_line

NOUNS = {int: "whole number", float: "number", str: "text", Path: "path"}
# What jsonargparse says: the last key is the innermost, the first value the wrong one, also of a list.
KEY = re.compile(r'.*Parser key "(?P<key>[^"]+)":?\s*(?P<why>.*)', re.DOTALL)
VALUE = re.compile(r"(?:Got value:|Given value:|load config) (.*)")


class Parser(ArgumentParser):
    """Says what is wrong in one line, without the usage that `--help` shows."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # type: ignore[override]
        command = self.prog.replace(" [options]", "")
        where = "--help" if command == "mosaics" else f"{command} --help"
        print(f"mosaics: {one_line(ValueError(self._in_words(message, ex)))} (see {where})", file=sys.stderr)
        raise SystemExit(2)

    def _in_words(self, message: str, ex: Exception | None) -> str:
        """Which flag must be what, and is not."""
        if isinstance(ex, ArgumentError) and str(ex.argument_name).startswith("--"):
            key, why, told = str(ex.argument_name).split("/")[0][2:], ex.message, ", and nothing follows it"
        elif found := KEY.match(message):
            key, why = found.groups()
            told = f", not {given[1]}" if (given := VALUE.search(why)) else ""
        else:
            return message
        action = next((each for each in self._actions if each.dest == key), None)
        kind = getattr(action, "_typehint", getattr(action, "basetype", None))
        if action and not action.option_strings:
            return f"{key} must be {wanted(kind)}, named before any flag{told}"
        return f"--{key} must be {wanted(kind)}{told}" if kind else f"--{key}: {why}"


def wanted(kind: Any, *, many: bool = False) -> str:
    """What a value of a type is, in words."""
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    if kind is bool or origin is Literal:
        return either(parts or ("true", "false"))
    if origin in (list, tuple):
        return f"{len(parts) if origin is tuple else ''} {wanted(parts[0], many=True)}".strip()
    if parts:
        return either(map(wanted, parts))
    noun = NOUNS.get(kind, "YAML file or JSON object")
    return f"{noun}s" if many else f"a {noun}"


def either(names: Iterable[str]) -> str:
    """`a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
