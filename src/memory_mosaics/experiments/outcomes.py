"""What is known of the runs of an experiment that have ended, and what all of them have in common.

    OUT/setup.json               what all runs of the folder have in common; a command with another setup is refused
    OUT/trials/NAME/outcome.json what was measured in a run, written once, at its end

The outcomes of many runs are also one text file, to be committed, or carried to a machine that has nothing else:

    {"setup": {...}}              as in setup.json
    {"status": "finished", ...}   a line per run that has ended, as in its outcome.json

Checkpoints and logs stay where they are: a run that has ended needs neither.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from filelock import FileLock  # torch brings it

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import first_difference, parse_json, read_json, read_text, write_text
from memory_mosaics.results import environment_info, write_results

Settings = dict[str, Any]  # of a run: numbers and strings
Outcome = dict[str, Any]  # of a run: "status" is finished or fail, then its settings and what was measured

ENVIRONMENT = ("versions", "commit", "hardware")  # fields of an outcome


def read_outcome(
    folder: Path, fields: Sequence[str] = ("train_loss", "valid_loss"), labels: Sequence[str] = ()
) -> Outcome | None:
    """Return what was measured in a run; None if it has not ended. `labels` are fields that every outcome must have."""
    file = folder / "outcome.json"
    try:
        found = file.stat()
        return dict(_read_outcome(file, tuple(fields), tuple(labels), found.st_mtime_ns, found.st_size))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; remove it to train that run again") from error


@cache
def _read_outcome(file: Path, fields: tuple[str, ...], labels: tuple[str, ...], *version: int) -> Outcome:
    """Read a file once: hundreds of outcomes are asked for whenever a run ends."""
    check_outcome(outcome := read_json(file), fields, labels)
    return outcome


def check_outcome(outcome: Any, fields: Sequence[str], labels: Sequence[str] = ()) -> None:
    """Raise an error for an outcome without one of the fields, or with values that are not finite."""
    needed = {"fail": ("reason",), "finished": fields}[outcome["status"]]
    for name in (*needed, *labels):
        outcome[name]  # a KeyError if it is missing
    for name, value in outcome.items():
        number = name.endswith(("loss", "score")) or name in ("seconds", "parameters")
        if (number and value is not None and not isfinite(value)) or (name == "hardware" and type(value) is not str):
            raise ValueError(f"its {name} is {value}")


def check_setup(out: Path, setup: Settings, *, source: Path | None = None) -> None:
    """Refuse a folder whose runs have another setup; or, if this setup is that of a `source`, the source."""
    file = out / "setup.json"
    try:
        known = dict(read_json(file))
    except FileNotFoundError:
        known = {}
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; name another folder with --out") from error
    setup = json.loads(json.dumps(setup))
    for name, value in setup.items():
        if name in known and (other := first_difference(known[name], value, name)):
            where, theirs, mine = other
            if source:
                raise UserError(f"{source} holds runs with {where} {mine}, and {out} has {theirs}; take another folder")
            raise UserError(f"{out} holds runs with {where} {theirs}, not {mine}; name another folder with --out")
    write_results(file, known | setup)


def merge_environments(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the versions, the commit and the hardware of runs, joined by "; " where they differ.

    They are removed from the outcomes, except for versions and a commit that not all have.
    """
    environments = [{name: one[name] for name in ENVIRONMENT if name in one} for one in outcomes]
    merged = _merge(environments) or environment_info()
    for one in outcomes:
        one.pop("hardware", None)
        for name in ("versions", "commit"):
            if name in one and one[name] == merged[name]:
                del one[name]
    return merged


def _merge(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the values of each key, and those of nested dictionaries."""
    merged = {}
    for name in dict.fromkeys(name for one in found for name in one):
        values = [one[name] for one in found if name in one]
        texts = sorted({str(value) for value in values})
        several = "; ".join(texts) if len(texts) > 1 else values[0]
        merged[name] = _merge(values) if isinstance(values[0], dict) else several
    return merged


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
