"""Chaos: commands that are killed, that crash at every file-system event, and that read damaged files.

`make chaos MINUTES=30 SEED=0` divides the minutes over the three parts, writes runs/chaos/report.json and report.md,
and ends with exit code 1 if a case failed. Each case follows from the seed and its name: `--case NAME` runs it alone.
"""

import argparse
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # threads do not survive a fork
sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import crashes, fuzz, kills
from chaos.workloads import Given, make

PARTS = {"crashes": (crashes, 0.4), "kills": (kills, 0.45), "fuzz": (fuzz, 1.0)}  # shares of the time that is left
Row = dict[str, Any]


def run_case(given: Given, case: str, seed: int, *, keep: bool = False) -> Row:
    """One case, in a folder of its own; what came of it."""
    part, _, name = case.partition("/")
    folder, start, note = Path(tempfile.mkdtemp(prefix="case-", dir=given.folder)), time.monotonic(), ""
    try:
        problem, note = PARTS[part][0].run_case(given, name, Random(f"{seed}/{case}"), folder)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        problem = f"its result cannot be read: {type(error).__name__} {error}"
    finally:
        print(f"kept: {folder}") if keep else shutil.rmtree(folder, ignore_errors=True)
    again = f"python tests/chaos/run.py --seed {seed} --case {case}"
    seconds = round(time.monotonic() - start, 2)
    return {"case": case, "problem": problem, "note": note, "seconds": seconds, "reproduce": again}


def work(given: Given, part: str, seed: int, until: float, file: Path, number: int, jobs: int) -> None:
    """The process of such a number: run its cases until their time is over, and note each."""
    every = PARTS[part][0].cases(given, Random(f"{seed}/{part}"))
    with file.open("a", encoding="utf-8", buffering=1) as stream:
        for case in islice(every, number, None, jobs):
            if time.monotonic() > until:
                break
            stream.write(json.dumps(run_case(given, f"{part}/{case}", seed)) + "\n")


def in_processes(given: Given, part: str, seed: int, until: float, jobs: int) -> list[Row]:
    """The cases of one part, spread over processes; what came of all."""
    files = [given.folder / f"{part}-{number}.jsonl" for number in range(jobs)]
    children, shown, found, broken = [], 0.0, [], 0
    for number, file in enumerate(files):
        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            try:
                work(given, part, seed, until, file, number, jobs)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
    try:
        while children:
            ended = {child: os.waitpid(child, os.WNOHANG) for child in children}
            children = [child for child, (pid, _) in ended.items() if pid == 0]
            broken += sum(status != 0 for _, status in ended.values())
            if time.monotonic() > shown + 10 or not children:
                texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
                found = [json.loads(line) for text in texts for line in text.rpartition("\n")[0].splitlines()]
                failed, shown = sum(row["problem"] is not None for row in found), time.monotonic()
                print(f"{part}: {len(found)} cases, {failed} failed, {max(0, until - shown):.0f} s left", flush=True)
            time.sleep(0.2)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
    row = {"case": f"{part}/worker", "problem": "a worker of the chaos test failed", "note": "", "reproduce": ""}
    return found + [row] * broken


def report(given: Given, found: list[Row], seed: int, seconds: float, out: Path) -> int:
    """Write report.json and report.md; the number of failures."""
    from memory_mosaics.results import environment_info

    failures = [row for row in found if row["problem"] is not None]
    kinds, failed = (Counter("/".join(row["case"].split("/")[:2]) for row in rows) for rows in (found, failures))
    points, tried = sum(1 for _ in crashes.cases(given, Random(0))), sum(row["case"][:7] == "crashes" for row in found)
    whole = {"seed": seed, "seconds": round(seconds), "cases": len(found), "failed": len(failures)}
    whole |= {
        "crash_points": {"all": points, "tried": tried},
        "kinds": dict(sorted(kinds.items())),
        **environment_info(),
    }
    lines = [f"# {len(found):,} cases in {seconds / 60:.1f} minutes, seed {seed}: {len(failures)} failed", ""]
    lines += [f"Crash points tried: {tried} of {points}.", "", "| kind | cases | failed |", "|---|---|---|"]
    lines += [f"| {kind} | {count} | {failed[kind]} |" for kind, count in sorted(kinds.items())]
    lines += [f"\n{row['case']}: {row['problem']}\n    {row['note']}\n    {row['reproduce']}" for row in failures]
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(whole | {"failures": failures}, indent=2) + "\n", encoding="utf-8")
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    print("\n".join(lines))
    return len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at once")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--case", nargs="+", default=[], help="only these, and keep their folders")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    start, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="chaos-"))
    end = start + options.minutes * 60
    try:
        print("undisturbed runs ...", flush=True)
        given = make(folder)
        fuzz.prepare(given)
        gc.freeze()
        found = [run_case(given, case, options.seed, keep=True) for case in options.case]
        for part in () if options.case else options.parts:
            now, share = time.monotonic(), 1.0 if part == options.parts[-1] else PARTS[part][1]
            found += in_processes(given, part, options.seed, now + (end - now) * share, options.jobs)
        return 1 if report(given, found, options.seed, time.monotonic() - start, options.out) else 0
    finally:
        if not options.case:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    raise SystemExit(main())
