"""Damaged checkpoints, run folders, corpora and sources: refused in one line, or read with the right result."""

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import yaml

from .children import Commands, Ended, run
from .crashes import CODE, CrashPoints
from .workloads import SAVES, SIZES, STEPS, WORKLOADS, Given, checked, difference, digests, read_json, stable

EDITED = {".json", ".jsonl", ".yaml", ".journal", ".log", ".safetensors"}
VALUES: list[Any] = [0, -1, 1, 3, 10**9, 10**18, 2**63, 2**64, -(2**63), 1e308, 0.5, float("nan"), float("inf"), None]
VALUES += [
    True,
    "",
    "x" * 5000,
    "\x1b[2J\x07",
    "../../../etc/passwd",
    "\ud800",
    [],
    {},
    [[]],
    "DEEP",
    "1e999",
    ["a"] * 9,
]
TEXTS = [b"", b"{}", b"[]", b"null", b"0", b"NaN", b"[" * 100_000, b'{"a":' * 30_000, b"\xff\xfe\x00", b"\n" * 9]
TEXTS += [
    b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(b"%c: &%c [%s]\n" % (c + 1, c + 1, b"*%c," % c * 9) for c in b"abcdef")
]


def _output(place: Path, ended: Ended) -> Any:
    return ended.out.replace(str(place), "PLACE")


def _measured(place: Path, ended: Ended) -> Any:
    return stable(read_json(place / "evaluation" / "results.json"))


def _weights(place: Path, ended: Ended) -> Any:
    return digests(place / "run", "step-*/model.safetensors")


def _evaluate(run: Path, data: Path, place: Path) -> Commands:
    words = ["--length", "16", "--windows", "4", "--device", "cpu", "--out", str(place / "evaluation")]
    return [["evaluate", str(run), "--data", str(data), *words]]


def _generate(given: Given, place: Path) -> Commands:
    words = ["--prompt", "Once upon a time", "--length", "8", "--temperature", "0", "--device", "cpu"]
    return [["generate", str(place / "out"), *words]]


def _short(data: Path, place: Path, *more: str) -> Commands:
    words = ["--training.steps=2", *SIZES, *STEPS, *SAVES, "--runtime.samples=0"]
    return [["train", str(data), "--out", str(place / "run"), *words, *more]]


def _prepare(given: Given, place: Path) -> Commands:
    return [["prepare", str(place / "out"), "--tokenizer", "bytes", "--out", str(place / "corpus")]]


# What is damaged, a copy of which lies at PLACE/out; the commands that read it; and what they come to.
Reader = tuple[str, Callable[[Given, Path], Commands], Callable[[Path, Ended], Any]]
READERS: dict[str, Reader] = {
    "info": ("train/out/step-00000006", lambda _, place: [["info", str(place / "out")]], _output),
    "generate": ("train/out/step-00000006", _generate, _output),
    "evaluate": ("train/out/step-00000006", lambda given, at: _evaluate(at / "out", given.corpus, at), _measured),
    "inspect": (
        "train/out/step-00000006",
        lambda _, at: [["inspect", str(at / "out"), "One", "--device=cpu"]],
        _output,
    ),
    "generate-run": ("train/out", _generate, _output),
    "corpus-evaluate": (
        "prepare/out",
        lambda given, at: _evaluate(given.folder / "train" / "out", at / "out", at),
        _measured,
    ),
    "corpus-train": ("prepare/out", lambda _, at: _short(at / "out", at), _weights),
    "source": ("source", _prepare, lambda at, _: digests(at / "corpus", "*.bin")),
    "config": ("config", lambda given, at: _short(given.corpus, at, "--config", f"{at}/out/config.yaml"), _weights),
    "convert": (
        "authors",
        lambda _, at: [["convert", f"{at}/out/checkpoint.pt", str(at / "converted")]],
        lambda at, _: digests(at / "converted"),
    ),
    "draw": ("sweep/out", lambda _, place: [["draw", str(place / "out")]], _output),
}
for _name, _workload in WORKLOADS.items():
    _again = lambda given, place, name=_name: WORKLOADS[name].commands(given, place / "out")  # noqa: E731
    _outcome = lambda place, _, outcome=_workload.outcome: outcome(place / "out")  # noqa: E731
    READERS[f"again-{_name}"] = (f"{_name}/out", _again, _outcome)
    if _name != "prepare":  # which begins anew
        READERS[f"resume-{_name}"] = (f"{_name}/half/out", _again, _outcome)


def prepare(given: Given, names: Iterable[str] = READERS) -> None:
    """What is damaged: runs that crashed half-way too; and what each reader makes of it undamaged."""
    for name, events in given.events.items():
        half = given.folder / name / "half"
        half.mkdir()
        points = CrashPoints(half, at=len(events) * 3 // 5)
        assert run(WORKLOADS[name].commands(given, half / "out"), half, points.install).code == CODE
    config, source = given.folder / "config", given.folder / "source"
    config.mkdir()
    (config / "config.yaml").write_text("training:\n  warm_up: 2\n  betas: [0.9, 0.95]\nmodel:\n  blocks: 1\n")
    source.mkdir()
    shutil.copy(given.folder / "stories.jsonl", source)
    (source / "more.txt").write_text("One.\n<|endoftext|>\nTwo.\n<|endoftext|>\n" * 200)
    (given.folder / "authors").mkdir()
    checked([], given.folder, lambda: _save_authors(given.folder / "authors" / "checkpoint.pt"))
    for name in names:
        damaged, commands, outcome = READERS[name]
        place = given.folder / "readers" / name
        shutil.copytree(given.folder / damaged, place / "out", symlinks=True)
        given.outcomes[name] = outcome(place, checked(commands(given, place), place))


def _save_authors(file: Path) -> None:
    import torch

    from reference_checkpoints import checkpoint

    torch.save(checkpoint("nano"), file)


def cases(given: Given, random: Random) -> Iterator[str]:
    yield from (f"{name}/{number}" for number, name in enumerate(cycle(READERS)))


def run_case(given: Given, case: str, random: Random, folder: Path) -> tuple[str | None, str]:
    """The problem, if there is one, and what was damaged and how."""
    name, _, _ = case.partition("/")
    source, commands, read_outcome = READERS[name]
    shutil.copytree(given.folder / source, folder / "out", symlinks=True)
    damaged = damage(
        folder / "out", random, times=random.choice([1, 1, 1, 2]), never="sparse" if name == "source" else ""
    )
    ended = run(commands(given, folder), folder)
    note = "; ".join(f"{how} {', '.join(files)}" for how, files in damaged) + f" -> {ended.code} {ended.err[:200]}"
    if (problem := ended.problem()) or ended.code:
        return problem, note
    found, wanted = read_outcome(folder, ended), given.outcomes[name]
    changed = {file for _, files in damaged for file in files}
    if isinstance(found, dict):
        without = {RECORDS.get(Path(file).name) for file in changed}
        found, wanted = ({key: each[key] for key in each if key not in without} for each in (found, wanted))
    # Without its manifest a checkpoint, perhaps of others, has no checksums.
    unchecked = len(damaged) > 1 and any(re.search(r"(^|step-\d+/)manifest\.json$", file) for file in changed)
    valid = unchecked or any(MAY_DIFFER.fullmatch(f"{name} {file}") for file in changed)
    return None if found == wanted or valid else f"exit code 0, and {difference(wanted, found)}", note


# A change of these may give another valid file: a text of the user's, or a record that carries no checksum.
MAY_DIFFER = re.compile(
    r"""(config|source|convert)\s.*
    | .*\s(.*/)?(results\.json|outcome\.json|output\.txt|.*\.journal|journal\.log|anchors\.json)
    | again-prepare\s(manifest|tokenizer_config)\.json
    | (info|generate|evaluate|inspect|generate-run)\s(.*/)?config\.json
    | (generate|inspect|generate-run)\s(.*/)?tokenizer\.json""",
    re.VERBOSE,
)
RECORDS = {"log.jsonl": "log", "samples.md": "samples"}  # parts of an outcome that stand in such a file alone


def damage(folder: Path, random: Random, *, times: int, never: str = "") -> list[tuple[str, list[str]]]:
    """Damage files so often; how, and which."""
    done = []
    for _ in range(times):
        there = [(path, path.lstat()) for path in sorted(folder.rglob("*")) if not path.name.endswith("lock")]
        files = [path for path, about in there if stat.S_ISREG(about.st_mode) and about.st_size < 1 << 24]
        if files:
            file, other = random.choice(files), random.choice(files)
            how = random.choice([*WAYS, *["edit"] * (6 if file.suffix in EDITED else 0)])
            how = "truncate" if how == never else how
            changed = _damage(how, file, other, random)
            done.append((how, [str(path.relative_to(folder)) for path in changed]))
    return done


WAYS = [
    "flip",
    "flip",
    "truncate",
    "append",
    "overwrite",
    "remove",
    "empty",
    "swap",
    "replace",
    "duplicate",
    "sparse",
    "special",
]
SPECIAL = ("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "nowhere", "itself", "fifo", "folder")
TAILS = (b"\0", b"\n{", b'{"step": ', b"\xff", b"[1, 2]\n", b"x\n")


def _damage(how: str, file: Path, other: Path, random: Random) -> list[Path]:
    """Damage a file in one way; all files that are no longer what they were."""
    data, theirs = file.read_bytes(), other.read_bytes()
    if how == "flip":
        bits = int.from_bytes(data or b"\0", "little")
        for _ in range(random.choice([1, 1, 4, 64])):
            bits ^= 1 << random.randrange(8 * max(1, len(data)))
        file.write_bytes(bits.to_bytes(max(1, len(data)), "little"))
    elif how == "truncate":
        os.truncate(file, random.randint(0, max(0, len(data) - 1)))
    elif how == "append":
        file.write_bytes(data + random.choice([*TAILS, random.randbytes(100)]))
    elif how == "overwrite":
        file.write_bytes(random.choice([*TEXTS, random.randbytes(500)]))
    elif how == "remove":
        file.unlink()
    elif how == "empty":  # the whole folder
        files = [path for path in file.parent.rglob("*") if path.is_file()]
        shutil.rmtree(file.parent)
        return files
    elif how in ("swap", "replace"):
        file.write_bytes(theirs)
        if how == "swap":
            other.write_bytes(data)
            return [file, other]
    elif how == "duplicate":
        file.with_name(random.choice(["0-", "copy-of-", "~"]) + file.name).write_bytes(data)
    elif how == "sparse":
        os.truncate(file, 1 << random.choice([31, 36, 40]))
    elif how == "special":
        file.unlink()
        kind = random.choice(SPECIAL)
        make = {"fifo": os.mkfifo, "folder": os.mkdir}.get(kind)
        make(file) if make else file.symlink_to(file if kind == "itself" else kind)
    elif how == "edit":
        _edit(file, data, random)
    return [file]


def _edit(file: Path, data: bytes, random: Random) -> None:
    """Change one value of a file of JSON or YAML, of one line of many, or of a header of safetensors."""
    head, tail = b"", b""
    if file.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        data, tail = data[8 : 8 + size], data[8 + size :]
    elif file.suffix in (".jsonl", ".journal", ".log"):
        lines = data.splitlines(keepends=True) or [b""]
        at = random.randrange(len(lines))
        head, data, tail = b"".join(lines[:at]), lines[at], b"\n" + b"".join(lines[at + 1 :])
    try:
        value = yaml.safe_load(data) if file.suffix == ".yaml" else json.loads(data)
    except (ValueError, RecursionError, yaml.YAMLError):  # damaged already
        return
    changed = (
        json.dumps(_edited(value, random)).replace('"DEEP"', "[" * 5000 + "]" * 5000).encode()
    )  # YAML reads it too
    if file.suffix == ".safetensors":
        head = len(changed).to_bytes(8, "little")
    file.write_bytes(head + changed + tail)


def _edited(value: Any, random: Random) -> Any:
    if not isinstance(value, dict | list) or not value or random.random() < 0.1:
        return random.choice(VALUES)
    key, kind = random.choice(list(value) if isinstance(value, dict) else range(len(value))), random.random()
    if kind < 0.1:
        del value[key]
    elif kind < 0.2 and isinstance(value, dict):
        value[random.choice(["extra", "__class__", ""])] = random.choice(VALUES)
    elif kind < 0.2:
        value *= 2
    else:
        value[key] = _edited(value[key], random)
    return value
