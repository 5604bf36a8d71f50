"""The outcomes of many runs in one text file, to be committed, or carried to a machine that has nothing else.

    {"setup": {...}}              what all runs have in common, as in setup.json
    {"status": "finished", ...}   a line per run that has ended, as in its outcome.json

Checkpoints and logs stay where they are: a run that has ended needs neither.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.runner import Outcome, check_setup
from memory_mosaics.files import parse_json, read_json, read_text, write_text
from memory_mosaics.results import write_results


def export_outcomes(out: Path, file: Path, name_of: Callable[[Outcome], str]) -> None:
    """Add the outcomes of all runs of a folder that have ended to a file, and those of the file to the folder.

    Several commands, each with a folder of its own, may write the same file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        import_outcomes(file, out, name_of)
        found = [read_json(one) for one in sorted(out.glob("trials/*/outcome.json"))]
        if not found:
            return
        lines = [{"setup": read_json(out / "setup.json")}, *found]
        write_text(file, "".join(json.dumps(line) + "\n" for line in lines))


def import_outcomes(file: Path, out: Path, name_of: Callable[[Outcome], str]) -> None:
    """Write the outcomes of a file, if there is one, into the folders of runs that have not ended.

    `name_of` returns the name of a run from its outcome, and raises an error for a damaged one.
    """
    try:
        lines = read_text(file).splitlines()
    except FileNotFoundError:
        return
    found: dict[str, Outcome] = {}
    setup: dict[str, Any] = {}
    for number, line in enumerate(lines or [""], start=1):
        try:
            if number == 1:
                setup = dict(parse_json(line)["setup"])
            else:
                name = name_of(outcome := parse_json(line))
                if Path(name).name != name or name in found:
                    raise ValueError(f"{name!r} is the name of an earlier run, or of none")
                found[name] = outcome
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            remedy = "to train all runs again" if number == 1 else "or that line to train the run again"
            raise UserError(
                f"line {number} of {file} is damaged: {one_line(error)}; remove the file {remedy}"
            ) from error
        if number == 1:
            check_setup(out, setup, source=file)
    for name, outcome in found.items():
        mine = out / "trials" / name / "outcome.json"
        if not mine.exists():
            mine.parent.mkdir(parents=True, exist_ok=True)
            write_results(mine, outcome)
        elif read_json(mine) != outcome:
            raise UserError(f"{file} has another outcome of {name} than {mine}; remove one of them")
