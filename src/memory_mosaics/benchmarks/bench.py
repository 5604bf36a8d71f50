"""The command `mosaics bench`: tables, results.json and figures of speed and memory.

results.json has one section per benchmark, each with the machine, versions, commit and ceilings of its own run: a
benchmark that runs again replaces its own section only. The rows of an interrupted benchmark are kept, unless there is
a complete section already.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from memory_mosaics.benchmarks import kernels, outside, profile, throughput
from memory_mosaics.benchmarks.timing import TABLES, Timer, measure_ceilings
from memory_mosaics.errors import UserError
from memory_mosaics.experiments.report import print_summary
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.results import create_output_folder, environment_info, read_results, round_digits, write_results
from memory_mosaics.runtime import RuntimeConfig, find_device, start_runtime


class Benchmark(NamedTuple):
    """How to measure, the keys of its rows that its table leaves out, and how rows become lines of the table."""

    measure: Callable[[Timer, dict[str, Any], throughput.Workload], Iterator[dict[str, Any]]]
    hidden: tuple[str, ...] = ()
    table_rows: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: rows


BENCHMARKS = {
    "train": Benchmark(throughput.measure_training),
    "decode": Benchmark(throughput.measure_decoding),
    "kernels": Benchmark(kernels.measure),
    "memory": Benchmark(
        throughput.measure_lengths, hidden=("size", "parameters", "steps_per_second", "tflops", "product_share")
    ),
    "profile": Benchmark(profile.measure, table_rows=profile.table_rows),
    "compare": Benchmark(outside.measure),
}


def run(
    benchmarks: list[str] | None = None,
    out: Path = Path("runs/bench"),
    *,
    cpu: bool = False,
    compare: Path | None = None,
) -> dict[str, Any]:
    """Measure speed and memory against what the machine allows: `mosaics bench train decode kernels memory profile`.

    On CUDA at the size of GPT-2 small, else at sizes for a laptop: a few minutes on two cores. Ctrl-C keeps what is
    finished.

    Args:
        benchmarks: any of train, decode, kernels, memory, profile, compare; by default all but compare, or with
            --compare that alone
        out: folder for results.json, with one section per benchmark, and the figures
        cpu: use the CPU, at the sizes for a laptop, even if CUDA is available
        compare: a Python file that defines GPT and GPTConfig as nanoGPT's model.py does, whose training step is timed
            beside ours, on the same batches and with the same optimizer and precision. It is imported, as by --import:
            its code runs
    """
    names = benchmarks or (["compare"] if compare else [name for name in BENCHMARKS if name != "compare"])
    for name in names:
        if name not in BENCHMARKS:
            raise UserError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if compare is not None and "compare" not in names:
        raise UserError(f"--compare {compare} is not used by {', '.join(names)}; add compare to them")
    if compare is None and "compare" in names:
        raise UserError("nothing to compare with; give --compare FILE, such as nanoGPT's model.py")
    module = compare and outside.load(compare)
    results, interrupted = read_results(out, "bench"), False
    device = "cuda" if find_device("auto") == "cuda" and not cpu else "cpu"
    with start_runtime(RuntimeConfig(device=device)) as world:
        if world.distributed:
            raise UserError("the benchmarks measure one process; start them without torchrun")
        create_output_folder(out)
        timer, work = Timer(world.device), replace(throughput.Workload.for_device(device), compare=module)
        about = environment_info(world.device) | {"device": device}
        try:
            about["ceilings"] = measure_ceilings(timer)
            for name in names:
                start, command = time.perf_counter(), f"mosaics bench {name}{' --cpu' if cpu else ''}"
                command += f" --compare {compare}" if name == "compare" else ""
                rows: list[dict[str, Any]] = []
                try:
                    for row in BENCHMARKS[name].measure(timer, about["ceilings"], work):
                        rows.append(row)
                except KeyboardInterrupt:
                    interrupted = True
                complete = name in results and not results[name].get("interrupted")
                if interrupted and (complete or not rows):
                    break
                section = {"command": command, **about, "seconds": round(time.perf_counter() - start, 1)}
                section |= {"interrupted": True} if interrupted else {}
                section["rows"] = _rounded(throughput.add_relative_speed([row for row in rows if "kernel" not in row]))
                kernels = _rounded([row for row in rows if "kernel" in row])
                results[name] = section | ({"kernels": kernels} if kernels else {})
                ordered = {key: results[key] for key in BENCHMARKS if key in results}
                write_results(out / "results.json", {"study": "bench"} | ordered)
                print(f"\n{table(name, results[name])}")
                if interrupted:
                    break
        except KeyboardInterrupt:
            interrupted = True
    results |= {"interrupted": interrupted}
    if any(name in results for name in BENCHMARKS):
        print_summary("", results, out)
    else:
        print("Stopped. No results.")
    return results


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: round_digits(value) if isinstance(value, float) else value for key, value in row.items()} for row in rows
    ]


def table(name: str, section: dict[str, Any]) -> str:
    """Return a section as text: the ceilings, then one line per row. Columns without a value are left out."""
    columns, benchmark = [], BENCHMARKS[name]
    rows = benchmark.table_rows(section["rows"])
    for key, (header, form) in TABLES["columns"].items():
        values = [row.get(key) for row in rows]
        if key not in benchmark.hidden and any(value is not None for value in values):
            cells = [
                ARCHITECTURES[key].label if header is None else header,
                *("-" if value is None else form.format(value) for value in values),
            ]
            align = str.ljust if any(isinstance(value, str) for value in values) else str.rjust
            columns.append([align(cell, max(map(len, cells))) for cell in cells])
    limit = section["ceilings"]
    about = f"{name}: {section['hardware']}; product {limit['product_tflops']:g} TFLOP/s ({limit['product']}), "
    lines = ("  ".join(line).rstrip() for line in zip(*columns, strict=True))
    return "\n".join([f"{about}copy {limit['copy_gbs']:g} GB/s", *lines])
