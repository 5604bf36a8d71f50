"""The command `mosaics bench`: tables, results.json and figures of speed and memory.

results.json has one section a benchmark, each with the machine, versions, commit and ceilings of its own run: a
benchmark that runs again replaces its section and leaves the others. Of one that is interrupted the rows that it came
to are kept, unless there is a whole section already.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory_mosaics import results as files
from memory_mosaics import runtime
from memory_mosaics.benchmarks import decode, kernels, memory, profile, train
from memory_mosaics.benchmarks.clock import Clock, ceilings
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments import figures
from memory_mosaics.files import read_json
from memory_mosaics.runtime import RuntimeConfig

BENCHMARKS: dict[str, Any] = {
    "train": train,
    "decode": decode,
    "kernels": kernels,
    "memory": memory,
    "profile": profile,
}


def run(benchmarks: list[str] | None = None, out: Path = Path("runs/bench"), *, cpu: bool = False) -> dict[str, Any]:
    """Measure speed and memory against what the machine allows: `mosaics bench train decode kernels memory profile`.

    GPT-2 small on CUDA; sizes for a laptop, a few minutes on two cores, elsewhere. Ctrl-C keeps what is finished.

    Args:
        benchmarks: any of train, decode, kernels, memory, profile, also as the first words; all if none are named
        out: folder for results.json, where each benchmark has a section of its own, and the figures
        cpu: on the CPU, at the sizes for a laptop, even where there is CUDA
    """
    names = benchmarks or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            raise UserError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    results, interrupted = earlier(out), False
    device = "cuda" if runtime.find_device("auto") == "cuda" and not cpu else "cpu"
    with runtime.start(RuntimeConfig(device=device)) as world:
        if world.distributed:
            raise UserError("the benchmarks measure one process; start them without torchrun")
        files.prepare(out)
        clock = Clock(world.device)
        about = files.environment_info(world.device) | {"device": device}
        try:
            about["ceilings"] = ceilings(clock)
            for name in names:
                began, command = time.perf_counter(), f"mosaics bench {name}{' --cpu' if cpu else ''}"
                found, interrupted = _collected(BENCHMARKS[name].measure(clock, about["ceilings"]))
                whole = name in results and not results[name].get("interrupted")
                if interrupted and (whole or not found):
                    break  # part of it does not replace all of it
                section = {"command": command, **about, "seconds": round(time.perf_counter() - began, 1)}
                results[name] = section | ({"interrupted": True} if interrupted else {}) | found
                files.write(out / "results.json", _in_order(results))
                print(f"{table(name, results[name])}\n")
                if interrupted:
                    break
        except KeyboardInterrupt:
            interrupted = True
    _say(results, out, interrupted)
    return results | {"interrupted": interrupted}


def _collected(found: dict[str, Any] | Iterator[dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """What a benchmark measured, and whether Ctrl-C ended it: then it is the rows that it came to, if any."""
    if isinstance(found, dict):
        return found, False
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        for row in found:
            rows.append(row)
    except KeyboardInterrupt:
        interrupted = True
    return {"rows": train.beside_twin(rows)} if rows else {}, interrupted


def earlier(out: Path) -> dict[str, Any]:
    """What results.json holds already: sections of benchmarks, or nothing."""
    file = out / "results.json"
    try:
        results = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return {"study": "bench"}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot add to {file}: {one_line(error)}; remove it, or name another --out") from error
    study = results.get("study") if isinstance(results, dict) else None
    if study != "bench":
        raise UserError(f"{file} is of a study {study!r}, not of mosaics bench; name another --out")
    return results


def _in_order(results: dict[str, Any]) -> dict[str, Any]:
    return {"study": "bench"} | {name: results[name] for name in BENCHMARKS if name in results}


def _say(results: dict[str, Any], out: Path, interrupted: bool) -> None:
    stopped = "Stopped; what was finished is kept. " if interrupted else ""
    if not any(name in results for name in BENCHMARKS):
        print(f"{stopped}No results.")
        return
    drawn = "No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    if figures.available():
        drawn = f"Figures: {', '.join(file.name for file in figures.draw(results, out)) or 'none'}."
    print(f"{stopped}Results: {out / 'results.json'}. {drawn}")


def table(name: str, section: dict[str, Any]) -> str:
    """A section as text: the ceilings, then one line a row. A column in which nothing was measured is left out."""
    columns, benchmark = [], BENCHMARKS[name]
    rows = benchmark.lines(section["rows"]) if hasattr(benchmark, "lines") else section["rows"]
    for head, (key, form) in benchmark.COLUMNS.items():
        values = [row.get(key) for row in rows]
        if any(value is not None for value in values):
            cells = [head, *("-" if value is None else form.format(value) for value in values)]
            align = str.ljust if any(isinstance(value, str) for value in values) else str.rjust
            columns.append([align(cell, max(map(len, cells))) for cell in cells])
    limit = section["ceilings"]
    about = f"{name}: {section['hardware']}; product {limit['product_tflops']:g} TFLOP/s ({limit['product']}), "
    lines = ("  ".join(line).rstrip() for line in zip(*columns, strict=True))
    return "\n".join([f"{about}copy {limit['copy_gbs']:g} GB/s", *lines])
