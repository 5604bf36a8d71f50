"""results.json of every experiment, the environment that it records, and progress bars."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_json, remove_temporary, temporary_path, write_text
from memory_mosaics.version import __version__


def create_output_folder(out: Path) -> None:
    """Create the output folder and check that it is writable, before hours are spent."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = temporary_path(out / "probe")
        probe.touch()
        remove_temporary(probe)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {one_line(error)}; name another folder with --out") from error


def read_results(out: Path, study: str) -> dict[str, Any]:
    """Return what results.json of a folder has already, if anything; refuse that of another experiment."""
    file = out / "results.json"
    try:
        results = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return {"study": study}
    except (OSError, ValueError) as error:
        raise UserError(f"{one_line(error)}; remove it, or name another --out") from error
    found = results.get("study") if isinstance(results, dict) else None
    if found != study:
        raise UserError(f"{file} is of an experiment {found!r}, not {study!r}; name another --out")
    return results


def environment_info(device: torch.device | None = None) -> dict[str, Any]:
    """Return versions, commit and hardware."""
    versions = {
        "memory-mosaics": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    hardware = f"CPU ({platform.machine()}), {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if device is not None and device.type == "cuda":
        versions |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
        versions |= {"triton": version("triton")} if find_spec("triton") else {}
        hardware = f"{torch.cuda.get_device_name(device)}; {hardware}"
    return {"versions": versions, "commit": commit(), "hardware": hardware}


@lru_cache
def commit() -> str | None:
    """Return the commit of this code, marked if files have changed since; None outside its repository.

    MEMORY_MOSAICS_COMMIT, where it is set, names the commit of a copy, whose repository may be another or an older one.
    """
    if named := os.environ.get("MEMORY_MOSAICS_COMMIT"):
        return named
    file = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # else it is a repository that the package is installed in
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def round_digits(numbers: Any, digits: int = 4) -> Any:
    """Round a number, or all of a list, an array or a dictionary, to `digits` significant digits, as plain JSON."""
    if isinstance(numbers, dict):
        return {name: round_digits(number, digits) for name, number in numbers.items()}
    if isinstance(numbers, np.ndarray | list):
        return [round_digits(number, digits) for number in numbers]
    return None if numbers is None else float(f"{numbers:.{digits}g}")


NORMAL_95 = 1.959964  # half the width of a 95 % confidence interval of a normal distribution, in standard errors
# The same of Student's t distribution with 1, 2, 3 ... degrees of freedom.
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def mean_and_interval(values: Sequence[float], *, digits: int | None = None) -> tuple[float, float | None]:
    """Return the mean over independent runs and half the width of its 95 % confidence interval, None for one run.

    With `digits` the mean is rounded to as many significant digits, and the interval to three.
    """
    mean, within = float(np.mean(values)), None
    if len(values) > 1:
        within = _student_95(len(values) - 1) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return (mean, within) if digits is None else (round_digits(mean, digits), round_digits(within, 3))


def _student_95(degrees: int) -> float:
    """From the table, beyond it by three terms of the Cornish-Fisher expansion (error below 0.001)."""
    if degrees <= len(STUDENT_95):
        return STUDENT_95[degrees - 1]
    z, n = NORMAL_95, degrees
    first, second = (z + z**3) / (4 * n), (3 * z + 16 * z**3 + 5 * z**5) / (96 * n**2)
    return z + first + second + (-15 * z + 17 * z**3 + 19 * z**5 + 3 * z**7) / (384 * n**3)


def write_results(file: Path, results: dict[str, Any]) -> None:
    """Write a JSON file atomically, one point of a curve per line."""
    try:
        text = _text(results) + "\n"
    except ValueError as error:
        raise UserError(f"cannot write {file}: a number in it is NaN or Inf") from error
    write_text(file, text)


def _text(plain: Any, indent: str = "") -> str:
    """Indented JSON in which a list of numbers is one line."""
    inner = indent + "  "
    if isinstance(plain, dict) and plain:
        items = [f"{inner}{json.dumps(key)}: {_text(value, inner)}" for key, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, dict | list) for value in plain):
        items = [inner + _text(value, inner) for value in plain]
    else:
        return json.dumps(plain, allow_nan=False)
    open_, close = "{}" if isinstance(plain, dict) else "[]"
    return f"{open_}\n" + ",\n".join(items) + f"\n{indent}{close}"


MINUTE = 60.0


@contextmanager
def progress_bar(name: str, total: int, unit: str) -> Iterator[Any]:
    """Yield a tqdm bar on stderr; in a log file, one line per minute and none for less than a minute."""
    with open_bar(name, total, unit=unit) as bar:
        yield bar


def open_bar(name: str, total: int, **options: Any) -> Any:
    """Open a bar as `progress_bar` does, with options of tqdm."""
    from tqdm import tqdm

    seldom: dict[str, Any] = {"mininterval": MINUTE, "maxinterval": MINUTE, "delay": MINUTE}
    how = {"dynamic_ncols": True} if sys.stderr.isatty() else seldom | {"file": _Lines(), "ncols": 100}
    return tqdm(total=total, desc=name, **how, **options)


class _Lines:
    """stderr with every redrawn bar on a line of its own."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n"):
            sys.stderr.write(line + "\n")

    def flush(self) -> None:
        sys.stderr.flush()
