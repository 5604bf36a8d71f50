"""Times training and decoding of one source tree, to be run for two commits on one machine: rebuild.json holds both.

    PYTHONPATH=TREE/src python benchmarks/rebuild.py OUT.json memory-mosaic memory-mosaic@0.1 memory-mosaic:32

MODEL trains, MODEL@P trains with that dropout, MODEL:ROWS decodes that many rows; all at GPT-2 small's size. The two
trees have other names for the same functions.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

try:
    from memory_mosaics.benchmarks.throughput import TRAINING, Workload, _measure_size, _time_decoding
    from memory_mosaics.benchmarks.timing import Timer, measure_ceilings
except ImportError:  # the tree before the rebuild
    from memory_mosaics.benchmarks import clock, decode, train

    Timer = TRAINING = None


def main(out: Path, names: list[str]) -> None:
    device, rows = torch.device("cuda"), []
    began = time.perf_counter()
    if Timer is None:
        timer, size = clock.Clock(device), train.GPT2_SMALL
        ceilings = clock.ceilings(timer)
    else:
        timer, size = Timer(device), Workload.for_device("cuda").size
        ceilings = measure_ceilings(timer)
    for name in names:
        model, _, dropout = name.partition("@")
        model, _, batch = model.partition(":")
        try:
            rows.append(measure(timer, ceilings, replace(size, dropout=float(dropout or 0)), model, int(batch or 0)))
        except Exception as error:  # one that does not run at all must not cost the others their time
            rows.append({"model": model, "failed": f"{type(error).__name__}: {error}"[:300]})
        rows[-1]["elapsed"] = round(time.perf_counter() - began, 1)
        print(json.dumps(rows[-1]), flush=True)
        out.write_text(json.dumps({"ceilings": ceilings, "rows": rows}, indent=1))


def measure(timer: Any, ceilings: dict[str, Any], size: Any, model: str, batch: int) -> dict[str, Any]:
    if not batch and Timer is None:
        return next(train.measure_size(timer, ceilings, size, [model]))
    if not batch:
        return next(_measure_size(timer, ceilings, size, [model], repeats=15))
    row = {"model": model, "batch": batch}
    if Timer is None:
        timer.start_over()
        return row | decode._measured(timer, replace(decode.TASKS["cuda"], size=size), batch, model, 3)
    timer.reset()
    return row | _time_decoding(timer, replace(Workload.for_device("cuda"), sizes=[(size, ())]), batch, model)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
