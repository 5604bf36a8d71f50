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
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # threads do not survive a fork
sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import crashes, fuzz, kills, workloads

PARTS = {"crashes": (crashes, 0.4), "kills": (kills, 0.45), "fuzz": (fuzz, 1.0)}  # shares of the time that is left


def run_case(given: workloads.Given, case: str, seed: int, *, keep: bool = False) -> dict[str, Any]:
    """One case, in a folder of its own; what came of it."""
    part, _, name = case.partition("/")
    folder, start = Path(tempfile.mkdtemp(prefix="case-", dir=given.folder)), time.monotonic()
    try:
        problem, note = PARTS[part][0].run_case(given, name, Random(f"{seed}/{case}"), folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem, note = f"its result cannot be read: {type(error).__name__} {error}", ""
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return {"case": case, "problem": problem, "note": note, "seconds": round(time.monotonic() - start, 2)}


def work(given: workloads.Given, cases: Iterator[str], seed: int, until: float, file: Path) -> None:
    """Run cases until their time is over, and note each."""
    with file.open("a", encoding="utf-8", errors="replace") as stream:
        for case in cases:
            if time.monotonic() > until:
                break
            stream.write(json.dumps(run_case(given, case, seed)) + "\n")
            stream.flush()


def in_processes(given: workloads.Given, part: str, seed: int, until: float, jobs: int) -> list[dict[str, Any]]:
    """The cases of one part, spread over processes; what came of all."""
    files = [given.folder / f"{part}-{number}.jsonl" for number in range(jobs)]
    children = []
    for number, file in enumerate(files):
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            code = 1
            try:
                every = PARTS[part][0].cases(given, Random(f"{seed}/{part}"))
                work(given, (f"{part}/{case}" for case in islice(every, number, None, jobs)), seed, until, file)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    shown = 0.0
    try:
        while children:
            ended = {child: os.waitpid(child, os.WNOHANG) for child in children}
            children = [child for child, (pid, _) in ended.items() if pid == 0]
            if any(status for _, status in ended.values()):
                raise RuntimeError("the chaos test itself failed")
            if time.monotonic() > shown + 10 or not children:
                shown, found = time.monotonic(), _read(files)
                failed = sum(row["problem"] is not None for row in found)
                print(f"{part}: {len(found)} cases, {failed} failed, {max(0, until - shown):.0f} s left", flush=True)
            time.sleep(0.2)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
    return _read(files)


def _read(files: list[Path]) -> list[dict[str, Any]]:
    whole = [file.read_text(encoding="utf-8").rpartition("\n")[0] for file in files if file.exists()]
    return [json.loads(line) for text in whole for line in text.splitlines()]


def report(given: workloads.Given, found: list[dict[str, Any]], seed: int, seconds: float, out: Path) -> int:
    """Write report.json and report.md; the number of failures."""
    from memory_mosaics.results import surroundings

    kinds = Counter("/".join(row["case"].split("/")[:2]) for row in found)
    failures = [row for row in found if row["problem"] is not None]
    failed = Counter("/".join(row["case"].split("/")[:2]) for row in failures)
    points = sum(1 for _ in crashes.cases(given, Random(0)))
    crashed = sum(count for kind, count in kinds.items() if kind.startswith("crashes/"))
    for row in failures:
        row["reproduce"] = f"python tests/chaos/run.py --seed {seed} --case {row['case']}"
    whole = {"seed": seed, "seconds": round(seconds), "cases": len(found), "failed": len(failures)}
    whole |= {"crash_points": {"all": points, "tried": crashed}, "kinds": dict(sorted(kinds.items()))}
    lines = [f"# {len(found):,} cases in {seconds / 60:.1f} minutes, seed {seed}: {len(failures)} failed", ""]
    lines += [f"Crash points tried: {crashed} of {points}.", "", "| kind | cases | failed |", "|---|---|---|"]
    lines += [f"| {kind} | {count} | {failed[kind]} |" for kind, count in sorted(kinds.items())]
    lines += [f"\n{row['case']}: {row['problem']}\n    {row['note']}\n    {row['reproduce']}" for row in failures]
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(whole | surroundings() | {"failures": failures}, indent=2) + "\n")
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    print("\n".join(lines))
    return len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at once")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--case", nargs="+", default=[], help="only these, and keep their folders")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    options = parser.parse_args()
    start = time.monotonic()
    end = start + options.minutes * 60
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        print("undisturbed runs ...", flush=True)
        given = workloads.make(folder)
        fuzz.prepare(given)
        gc.freeze()
        if options.case:
            found = [run_case(given, case, options.seed, keep=True) for case in options.case]
        else:
            found = []
            for part in options.parts:
                now = time.monotonic()
                share = 1.0 if part == options.parts[-1] else PARTS[part][1]
                found += in_processes(given, part, options.seed, now + (end - now) * share, options.jobs)
        failed = report(given, found, options.seed, time.monotonic() - start, options.out)
    finally:
        if not options.case:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    raise SystemExit(main())
