"""The command `mosaics`. Each subcommand is a function here that calls one function of the library.

Flags come from the signatures and their help from the docstrings. A user's mistake ends in one line and exit code 2.
"""

import os
import sys
from collections.abc import Sequence
from inspect import signature
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, auto_cli

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.studies import induction, moons
from memory_mosaics.version import __version__


def info(model: str) -> None:
    """Say what a model is made of, and how many parameters each part has.

    Args:
        model: a checkpoint folder, or the name of a preset such as memory-mosaic-12
    """
    import json

    import torch

    from memory_mosaics.checkpoint import load
    from memory_mosaics.config import to_plain
    from memory_mosaics.language_model import LanguageModel, parameter_count
    from memory_mosaics.presets import PRESETS, preset

    if Path(model).exists():
        built = load(model)
    elif model in PRESETS:
        with torch.device("meta"):
            built = LanguageModel(preset(model))
    else:
        raise UserError(f"{model} is neither a folder nor a preset; the presets are {', '.join(PRESETS)}")
    print(json.dumps(to_plain(built.config), indent=2))
    for part, count in parameter_count(built).items():
        print(f"{part:16} {count:>12,}")


def convert(source: Path, out: Path) -> None:
    """Convert a checkpoint of the authors' public code into a folder that this library and Hugging Face open.

    Args:
        source: the .pt file: nanoMosaics, or the Library's plain or fast variant
        out: the folder to write; it must not exist yet
    """
    from memory_mosaics.convert import convert as convert_checkpoint

    print(f"written: {convert_checkpoint(source, out)}")


COMMANDS: dict[str, Any] = {"info": info, "convert": convert, "induction": induction.run, "moons": moons.run}


class Parser(ArgumentParser):
    """Says what is wrong in one line, without the usage that `--help` shows."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # type: ignore[override]
        print(f"{self.prog.split(' [')[0]}: {one_line(ValueError(message))} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def gather_lists(arguments: Sequence[str]) -> list[str]:
    """`--heads 1 3` as `--heads [1,3]`, which is how the parser wants a list."""
    flags = {
        f"--{name}"
        for command in COMMANDS.values()
        for name, parameter in signature(command).parameters.items()
        if "list[" in str(parameter.annotation)
    }
    gathered: list[str] = []
    rest = list(arguments)
    while rest:
        gathered.append(rest.pop(0))
        if gathered[-1] in flags:
            values = list(takewhile(lambda value: not value.startswith(("-", "[")), rest))
            if values:
                gathered.append(f"[{','.join(values)}]")
                del rest[: len(values)]
    return gathered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a user's mistake, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    options: dict[str, Any] = {"prog": "mosaics", "parser_class": Parser, "version": __version__}
    try:
        results = auto_cli(COMMANDS, args=gather_lists(arguments), **options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError) as error:
        print(f"mosaics: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mosaics: interrupted", file=sys.stderr)
        return 130
    return 130 if isinstance(results, dict) and results.get("interrupted") else 0


if __name__ == "__main__":
    raise SystemExit(main())
