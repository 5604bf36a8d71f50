"""The parser of the command, whose errors are for people: `--environments must be whole numbers, not abc`."""

import re
import sys
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, Namespace, get_loader, set_loader

from memory_mosaics.config import MAX_SEED
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import check_yaml, read_text

NOUNS = {int: "whole number", float: "number", str: "text", Path: "path"}
# What jsonargparse says: the last key is the innermost, the first value the wrong one, also of a list.
KEY = re.compile(r'.*Parser key "(?P<key>[^"]+)":?\s*(?P<why>.*)', re.DOTALL)
VALUE = re.compile(r"(?:Got value:|Given value:|load config) (.*)")


MAX_CONFIG_BYTES = 1 << 20
LOAD_YAML = get_loader("yaml")


def load_yaml(text: str) -> Any:
    """A value as jsonargparse reads it, of bounded nesting: PyYAML recurses in C, to a segmentation fault."""
    try:
        check_yaml(text, MAX_CONFIG_BYTES)
        return LOAD_YAML(text)
    except (ValueError, RecursionError, OverflowError) as error:
        raise yaml.YAMLError(one_line(error)) from error


set_loader("yaml", load_yaml, (yaml.YAMLError,))


def check_arguments(arguments: Sequence[str], flags: Iterable[str]) -> None:
    """Refuse nested values, and configurations too large, not of text or not regular, before jsonargparse reads them.

    `flags` are those that take a file. Other values, such as prompts, need not be YAML.
    """
    for word in arguments:
        with suppress(yaml.YAMLError):
            check_yaml(word.partition("=")[2] if word.startswith("--") else word)
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, given, inline = flag.partition("=")
        file = Path(inline if given else value)
        try:
            there = flag in flags and not file.is_dir() and file.exists()
        except (OSError, ValueError):  # a text that cannot be a path
            continue
        if there:
            read_text(file, MAX_CONFIG_BYTES)


def check_numbers(flag: str, value: Any) -> None:
    """Refuse what is no number, and whole numbers that PyTorch and NumPy have no room for, wherever they are given."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_numbers(f"{flag}.{name}" if flag else str(name), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_numbers(flag, inner)
    elif isinstance(value, float) and not isfinite(value):
        raise UserError(f"--{flag} must be a finite number, not {value}")
    elif isinstance(value, int) and abs(value) > MAX_SEED:
        raise UserError(f"--{flag} must be between {-MAX_SEED} and {MAX_SEED}, not {str(value)[:40]}")


FLAGS = {"init_from": "from"}  # whose names Python reserves


class Parser(ArgumentParser):
    """Says what is wrong in one line, without the usage that `--help` shows."""

    def add_function_arguments(self, *arguments: Any, **options: Any) -> Any:
        added = super().add_function_arguments(*arguments, **options)
        for action in self._actions:
            if flag := FLAGS.get(action.dest):
                self._option_string_actions[f"--{flag}"] = self._option_string_actions.pop(f"--{action.dest}")
                action.option_strings, action.metavar = [f"--{flag}"], "CHECKPOINT"
        return added

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        found = super().parse_args(*arguments, **options)
        if "subcommand" not in found:  # whose parser has checked its own
            check_numbers("", found.as_dict())
            for name in self.groups or {}:
                if name in found and not isinstance(found[name], Namespace):
                    raise UserError(f"--{name} must be an object with its own values, not {found[name]}")
        return found

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
