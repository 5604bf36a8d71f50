"""The commands that write for long, made small; what each comes to; and an undisturbed run of each to compare with."""

import ctypes
import hashlib
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .children import Before, Commands, Ended, run

PASSING = {"seconds", "tokens_per_second", "hardware", "commit", "out", "data", "interrupted", "runtime", "folder"}
SIZES = ["--model.width=16", "--model.blocks=1", "--model.heads=2", "--model.context=16", "--model.dropout=0.1"]
STEPS = ["--training.batch=2", "--training.warm_up=2", "--training.learning_rate=3e-3", "--training.evaluate_windows=3"]
SAVES = ["--runtime.device=cpu", "--runtime.save_every=2", "--runtime.log_every=1"]


@dataclass
class Given:
    """What all cases share: made once, in `folder`, and never changed."""

    folder: Path
    address: str = ""
    outcomes: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: dict[str, list[str]] = field(default_factory=dict)

    @property
    def corpus(self) -> Path:
        return self.folder / "prepare" / "out"


class Workload(NamedTuple):
    """Commands that write into a folder, and what is to be found there afterwards."""

    commands: Callable[[Given, Path], Commands]
    outcome: Callable[[Path], Any]


def stable(value: Any) -> Any:
    """Without what differs from run to run: times, places, and whose machine it was."""
    if isinstance(value, dict):
        return {key: stable(part) for key, part in value.items() if key not in PASSING}
    return [stable(part) for part in value] if isinstance(value, list) else value


MAX_BYTES = 1 << 28  # of a file that a workload may have written; damaged ones can be larger than any memory


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def read_lines(file: Path) -> list[Any]:
    """The records of a log; a line that is none, which blocks nothing, as text. A log that was removed has none."""
    records: list[Any] = []
    if not file.exists() or file.stat().st_size > MAX_BYTES:
        return records
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            records.append(line)
    return records


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    files = sorted(path for path in folder.glob(pattern) if path.is_file() and path.stat().st_size <= MAX_BYTES)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _left(out: Path) -> list[str]:
    """Temporary files and folders, which should not be there after a run that ended well."""
    return sorted(path.name for path in (*out.parent.glob(".*.part"), *out.rglob(".*.part")))


def _train(given: Given, out: Path) -> Commands:
    steps = ["--training.steps=6", "--training.evaluate_every=4", *SIZES, *STEPS, *SAVES]
    return [["train", str(given.corpus), "--out", str(out), *steps]]


def _trained(out: Path) -> Any:
    results, log = read_json(out / "results.json"), read_lines(out / "log.jsonl")
    samples, weights = digests(out, "samples.md"), digests(out, "step-00000006/model.safetensors")
    return {"left": _left(out), "results": stable(results), "log": stable(log), "samples": samples, "weights": weights}


def _sweep(given: Given, out: Path) -> Commands:
    search = ["--method", "grid", "--space.learning_rate", "[1e-3,1e-2]", "--training.steps=2"]
    return [["sweep", str(given.corpus), "--out", str(out), *search, *SIZES, *STEPS, *SAVES, "--runtime.samples=0"]]


def _regbench(given: Given, out: Path) -> Commands:
    sizes = ["--choices.blocks", "[1]", "--choices.width", "[8]", "--epochs", "2", "--held_out", "4"]
    return [["regbench", "--out", str(out), "--architectures=lstm", "--environments=8", *sizes, "--device=cpu"]]


def _arena(given: Given, out: Path) -> Commands:
    words = ["--suite", str(given.folder / "suite.yaml"), "--runtime.device=cpu", "--runtime.save_every=1"]
    return [["arena", "--out", str(out), *words]]


def _suite(stories: Path) -> Any:
    """Examples that are drawn and a text, one contestant each."""
    recall = {"part": "mqar", "vocabulary": 16, "length": 8, "pairs": 1, "examples": 16, "held_out": 4}
    text = {"part": "text", "train": [str(stories)], "valid_share": 0.3, "length": 16, "windows": 2}
    defaults = {"model": {"width": 8, "blocks": 1, "heads": 1}, "search": {"learning_rate": [3e-3]}}
    defaults["training"] = {"steps": 2, "batch": 4, "warm_up": 1, "evaluate_every": 1}
    tasks = {"recall": {"data": recall}, "text": {"data": text}}
    return {"contestants": ["transformer"], "seeds": 2, "defaults": defaults, "tasks": tasks}


def _studied(out: Path) -> Any:
    return {"left": _left(out), "results": stable(read_json(out / "results.json"))}


def _prepare(given: Given, out: Path, *more: str) -> Commands:
    words = ["--tokenizer", "bpe", "--vocabulary", "300", "--valid_share", "0.2", "--out", str(out), *more]
    return [["prepare", str(given.folder / "stories.jsonl"), *words]]


def _prepared(out: Path) -> Any:
    return {"left": _left(out), "files": digests(out, "[mtv]*")}  # no copies that somebody made


def _tell(given: Given, out: Path) -> Commands:
    asked = ["--server", given.address, "--count", "16", "--concurrency", "3", "--seed", "3"]
    cleaned = ["--out", str(out), "--valid_share", "0.2", "--shortest", "5"]
    return [["babistories", "stories", "--out", str(out), *asked], ["babistories", "clean", *cleaned]]


def _told(out: Path) -> Any:
    stories = [(line["index"], line["text"]) for line in read_lines(out / "stories.journal") if "index" in line]
    cleaned = [*read_lines(out / "train.jsonl"), *read_lines(out / "valid.jsonl")]
    return {"left": _left(out), "stories": sorted(stories), "cleaned": sorted(cleaned)}


WORKLOADS = {
    "prepare": Workload(_prepare, _prepared),
    "train": Workload(_train, _trained),
    "sweep": Workload(_sweep, _studied),
    "regbench": Workload(_regbench, _studied),
    "arena": Workload(_arena, _studied),
    "babistories": Workload(_tell, _told),
}
IN_PROCESSES = Workload(lambda given, out: _prepare(given, out, "--workers", "2"), _prepared)


def make(folder: Path, names: Iterable[str] = WORKLOADS) -> Given:
    """Run everything once undisturbed, and once more counting what it does to its files."""
    from memory_mosaics import results
    from memory_mosaics.experiments import regbench

    from .crashes import CrashPoints

    regbench.SAVE_SECONDS = 0  # after each epoch
    results.commit()
    given = Given(folder, address=_serve())
    checked([["stories", "--count", "40", "--out", str(folder / "stories.jsonl")]], folder)
    (folder / "suite.yaml").write_text(json.dumps(_suite(folder / "stories.jsonl")))
    for name in names:
        first, second, workload = folder / name, folder / f"{name}-traced", WORKLOADS[name]
        first.mkdir()
        second.mkdir()
        modules, trace = first / "modules.json", second / "events"
        checked(workload.commands(given, first / "out"), first, lambda file=modules: _note_modules(file))
        _import(read_json(modules))
        counting = CrashPoints(second, trace=trace).install
        given.seconds[name] = checked(workload.commands(given, second / "out"), second, counting).seconds
        given.events[name] = trace.read_text(encoding="utf-8").splitlines()
        given.outcomes[name] = workload.outcome(first / "out")
        if (other := workload.outcome(second / "out")) != given.outcomes[name]:
            raise RuntimeError(f"{name}: two undisturbed runs differ: {difference(given.outcomes[name], other)}")
    return given


def checked(commands: Commands, folder: Path, before: Before = None) -> Ended:
    """Run commands that nothing disturbs."""
    ended = run(commands, folder, before)
    if problem := ended.problem(allowed=(0,)):
        raise RuntimeError(f"undisturbed, mosaics {commands}: {problem}\n{ended.err}")
    return ended


def difference(mine: Any, other: Any, where: str = "") -> str:
    """Where two outcomes differ first."""
    parts: list[Any] = []
    if isinstance(mine, dict) and isinstance(other, dict):
        parts = [(key, mine.get(key), other.get(key)) for key in sorted({*mine, *other})]
    elif isinstance(mine, list | tuple) and isinstance(other, list | tuple) and len(mine) == len(other):
        parts = list(zip(range(len(mine)), mine, other, strict=True))
    for key, one, two in parts:
        if one != two:
            return difference(one, two, f"{where}.{key}")
    return f"{where or 'the outcome'} was {str(mine)[:150]!r}, is {str(other)[:150]!r}"


def _note_modules(file: Path) -> None:
    """At the end of the child, write what it has imported, so that the next need not import it again."""
    end = threading._shutdown  # type: ignore[attr-defined]
    threading._shutdown = lambda: (end(), file.write_text(json.dumps(sorted(sys.modules))))  # type: ignore


def _import(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules and not name.startswith("__"):
            try:
                importlib.import_module(name)
            except Exception:  # one that is not to be imported by its name
                sys.modules.pop(name, None)


def _serve() -> str:
    """A server in a process of its own, which ends with this one; its stories depend on the prompts alone."""
    from apps.babistories.conftest import Misbehaving

    server, parent = Misbehaving(), os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the parent dies
        if os.getppid() == parent:
            server.serve_forever()
        os._exit(0)
    server.socket.close()
    return server.address
