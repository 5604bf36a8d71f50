"""The folder of a run: run.yaml, corpus.json, samples.md, and what is said of it at the end."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch brings it

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_bytes, read_json, read_text, remove_temporary, written_whole
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training.parallel import World
from memory_mosaics.training.recipe import Run, plain


@contextmanager
def claimed(run: Run, corpus: Corpus, world: World) -> Iterator[None]:
    """Within, the folder is this run's: run.yaml says which it is, and no other process trains in it.

    The run that is there already must be the same one: another machine may go on with it, another recipe may not.
    """
    lock = FileLock(run.out / ".lock", timeout=0)
    try:
        world.all(lambda: _claim(run, corpus, lock))
        (seen,) = world.sum(float((run.out / "run.yaml").exists()))
        if seen < world.size:
            raise UserError(f"{run.out} must be one folder that all processes see; {seen:.0f} of {world.size} do")
        yield
    finally:
        lock.release()


def _claim(run: Run, corpus: Corpus, lock: FileLock) -> None:
    import yaml

    try:
        run.out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        for left in run.out.glob(".*step-*.part"):  # with the lock, whoever wrote it is gone, on any machine
            remove_temporary(left)
        check_same(run, corpus)
    except Timeout:
        raise UserError(
            f"{run.out} is being trained in by another process; wait for it, or name another folder"
        ) from None
    except (OSError, AttributeError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"cannot use {run.out}: {one_line(error)}") from error


def check_same(run: Run, corpus: Corpus) -> None:
    """Refuse a folder that holds another run; write down this one."""
    import yaml

    _same(run.out, "run.yaml", plain(run), yaml.safe_load, lambda mine: yaml.safe_dump(mine, sort_keys=False))
    read = {name: split["sha256"] for name, split in corpus.manifest["splits"].items()}
    _same(run.out, "corpus.json", {"corpus": read}, json.loads, json.dumps)


def _same(folder: Path, name: str, mine: dict[str, Any], read: Callable[..., Any], text: Callable[..., str]) -> None:
    """Compare with what the file says, then write it anew: what may differ, such as the machine, may have changed."""
    import yaml

    file = folder / name
    try:
        theirs = read(read_text(file))
        if not isinstance(theirs, dict):
            raise ValueError(f"it holds {type(theirs).__name__}, not names and values")
    except FileNotFoundError:
        theirs = mine
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; name another folder, or remove that one") from error
    for part in mine.keys() & {"corpus", "model", "training"}:
        if other := difference(part, theirs.get(part), mine[part]):
            raise UserError(f"{folder} holds a run with {other}; name another folder, or remove that one")
    with written_whole(file) as aside:
        aside.write_text(text(mine), encoding="utf-8")


def difference(name: str, theirs: Any, mine: Any) -> str | None:
    """The first thing in which two runs differ, in words."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        found = (difference(f"{name}.{key}", theirs.get(key), value) for key, value in mine.items())
        return next((other for other in found if other), None)
    return None if theirs == mine else f"{name} {theirs}, not {mine}"


def closing(results: dict[str, Any]) -> str:
    """What the run came to, and where everything is."""
    step, steps, out = results["step"], results["training"]["steps"], results["out"]
    losses = [
        f"{split} loss {results[f'{split}_loss']:.4f}" for split in ("train", "valid") if f"{split}_loss" in results
    ]
    said = [f"{results['model']['name']}, {results['parameters']:,} parameters: step {step:,} of {steps:,}", *losses]
    where = f"Checkpoint: {out}/step-{step:08}. Beside it: log.jsonl, samples.md, results.json, run.yaml."
    if results["kept_step"] not in (0, step):
        where = f"Best: {out}/step-{results['kept_step']:08}, valid loss {results['kept']:.4f}. {where}"
    go_on = " Stopped; the same command goes on from there." if results["interrupted"] else ""
    return f"{', '.join(said)}.{go_on}\n{where}"


def read_results(out: Path, step: int) -> dict[str, Any] | None:
    """What results.json says of a run that ended at a step; None where it says something else or is damaged."""
    try:
        results = read_json(out / "results.json")
        closing(results)
        return results if results["step"] == step else None
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        print(f"{out / 'results.json'} is damaged and written again: {one_line(error)}", file=sys.stderr)
        return None


def trim_samples(file: Path, step: int) -> None:
    """Forget what was written after a step, as a run that goes on from there will write it again."""
    if file.exists():
        parts = re.split(rb"^(?=## step \d{1,18}$)", read_bytes(file), flags=re.M)  # whatever else it holds stays
        kept = [
            part
            for part in parts
            if not (head := re.match(rb"## step (\d{1,18})$", part, re.M)) or int(head[1]) <= step
        ]
        with written_whole(file) as aside:
            aside.write_bytes(b"".join(kept))


def write_samples(file: Path, step: int, stories: list[tuple[str, str]]) -> None:
    """Append what the model writes at this step: each opening in bold, then how it goes on."""
    if stories:
        told = "".join(f"\n**{_flat(opening)}**{_flat(text)}\n" for opening, text in stories)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"## step {step}\n{told}\n")


def _flat(text: str) -> str:
    return text.replace("\n", "  \n")
