"""The folder of a run: run.yaml, corpus.json, samples.md, and what is said of it at the end."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch brings it

from memory_mosaics import checkpoint
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import (
    atomic_write,
    check_yaml,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    remove_temporary,
)
from memory_mosaics.runtime import Runtime
from memory_mosaics.training.config import AnyRun
from memory_mosaics.training.fine_tuning import described

# Temporary files and folders of a run, also by the names that earlier versions gave them.
OURS = re.compile(r"\.+(step-\d+|run\.yaml|corpus\.json|samples\.md|log\.jsonl|results\.json)\.")


@contextmanager
def locked_run_dir(
    run: AnyRun, fingerprint: dict[str, Any], runtime: Runtime, *, lengthen: bool = False
) -> Iterator[Callable[[], None]]:
    """Within, the folder is this run's: run.yaml says which it is, and no other process trains in it.

    The run that is there already must be the same one: another machine may go on with it, another recipe may not, but
    to `lengthen` it by more steps. What it gives is to be called before something is written: it refuses a folder that
    was removed meanwhile.
    """
    lock = FileLock(run.out / ".lock", timeout=0)
    try:
        runtime.run_on_rank0(lambda: _claim(run, fingerprint, lock, lengthen=lengthen))
        (seen,) = runtime.sum(float((run.out / "run.yaml").exists()))
        if seen < runtime.size:
            raise UserError(f"{run.out} must be one folder that all processes see; {seen:.0f} of {runtime.size} do")
        with (run.out / ".lock").open("rb") as held:
            yield lambda: runtime.run_on_rank0(lambda: _check_there(run.out, held.fileno()))
    finally:
        lock.release()


def _check_there(out: Path, descriptor: int) -> None:
    try:
        there = os.path.samestat(os.fstat(descriptor), (out / ".lock").stat())
    except OSError:
        there = False
    if not there:
        raise UserError(f"{out} was removed or renamed while it was trained in; the same command begins again")


def _claim(run: AnyRun, fingerprint: dict[str, Any], lock: FileLock, *, lengthen: bool) -> None:
    import yaml

    try:
        run.out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        for left in run.out.glob(".*.part"):  # with the lock, whoever wrote it is gone, on any machine
            if OURS.match(left.name):
                remove_temporary(left)
        check_same(run, fingerprint, lengthen=lengthen)
    except Timeout:
        raise UserError(
            f"{run.out} is being trained in by another process; wait for it, or name another folder"
        ) from None
    except (OSError, AttributeError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"cannot use {run.out}: {one_line(error)}") from error


def check_same(run: AnyRun, fingerprint: dict[str, Any], *, lengthen: bool = False) -> None:
    """Refuse a folder that holds another run; write down this one. To `lengthen` a run, it may have more steps.

    What may differ, such as the machine, may have changed: all is written anew, once nothing is refused.
    """
    import yaml

    mine, record = run.plain(), dict(fingerprint)
    theirs, known = read_run(run.out), _recorded(run.out / "corpus.json", parse_json)
    for name, found in (("run.yaml", theirs), ("corpus.json", known)):
        if found is None and (saved := checkpoint.steps(run.out)):
            raise UserError(
                f"{run.out} has the checkpoint {saved[-1].name} and no {name}, which says what run it is of; restore "
                f"{name}, or name another folder, perhaps with --from {saved[-1]}"
            )
    if lengthen and theirs is not None:
        theirs = _lengthened(run, theirs)
    if begun := _beginning(run, theirs, known):
        record["from"] = begun
    parts = [(part, theirs, mine) for part in ("task", "model", "training") if part in mine]
    for part, left, right in (*parts, *((part, known, record) for part in fingerprint)):
        if left is not None and (other := difference(part, left.get(part), right[part])):
            raise UserError(f"{run.out} holds a run with {other}; name another folder, or remove that one")
    for name, text in (("run.yaml", yaml.safe_dump(mine, sort_keys=False)), ("corpus.json", json.dumps(record))):
        with atomic_write(run.out / name) as tmp:
            tmp.write_text(text, encoding="utf-8")


def read_run(out: Path) -> dict[str, Any] | None:
    """What run.yaml says of a run; None where there is none."""
    return _recorded(out / "run.yaml", _from_yaml)


def _recorded(file: Path, parse: Callable[[str], Any]) -> dict[str, Any] | None:
    """What a file of a run says; None where there is no file yet."""
    import yaml

    try:
        found = parse(read_text(file))
        if not isinstance(found, dict):
            raise ValueError(f"it holds {type(found).__name__}, not names and values")
        return found
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; name another folder, or remove that one") from error


def _from_yaml(text: str) -> Any:
    import yaml

    check_yaml(text)
    return yaml.safe_load(text)


def _lengthened(run: AnyRun, theirs: dict[str, Any]) -> dict[str, Any]:
    """The run that is there, with the steps of this one if these are more."""
    training, steps = theirs.get("training"), run.training.steps
    if not isinstance(training, dict) or not isinstance(training.get("steps"), int) or training["steps"] >= steps:
        return theirs
    progress: Any = {}
    for newest in checkpoint.steps(run.out)[-1:]:
        with suppress(FileNotFoundError, UserError):  # a damaged one is refused where it is restored
            progress = read_json(newest / "progress.json")
    if run.training.patience and isinstance(progress, dict) and progress.get("worse", 0) >= run.training.patience:
        raise UserError(
            f"{run.out} stopped at step {progress.get('step')} after {progress['worse']} measurements without a better "
            f"validation loss, and more steps change nothing; begin another run with --from {run.out}"
        )
    return theirs | {"training": training | {"steps": steps}}


def _beginning(run: AnyRun, theirs: dict[str, Any] | None, known: dict[str, Any] | None) -> dict[str, Any] | None:
    """Which weights the run began with, if another's; refuses others than before.

    A run that has checkpoints of its own does not ask for those weights again: they may be gone, or trained on.
    """
    before, given = (known or {}).get("from"), run.init_from
    if known is None:
        return described(given) if given else None
    same_path = given and (theirs or {}).get("init_from") and Path(theirs["init_from"]).resolve() == given.resolve()  # type: ignore[index]
    if before and same_path and checkpoint.steps(run.out):
        return before
    mine = described(given) if given else None
    if (before or {}).get("weights") != (mine or {}).get("weights"):
        names = [f"with the weights of {one.get('checkpoint')}" if one else "from scratch" for one in (before, mine)]
        raise UserError(f"{run.out} holds a run that began {names[0]}, not {names[1]}; name another folder")
    return before


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
    name = results.get("name") or results["model"]["name"] or f"fine-tuned from {results['init_from']}"
    said = [f"{name}, {results['parameters']:,} parameters: step {step:,} of {steps:,}", *losses]
    samples = "samples.md, " if Path(out, "samples.md").exists() else ""
    where = f"Checkpoint: {out}/step-{step:08}. Beside it: log.jsonl, {samples}results.json, run.yaml."
    if results["kept_step"] not in (0, step):
        where = f"Best: {out}/step-{results['kept_step']:08}, valid loss {results['kept']:.4f}. {where}"
    go_on = " Stopped; the same command goes on from there." if results["interrupted"] else ""
    return f"{', '.join(said)}.{go_on}\n{where}"


def read_results(out: Path, step: int) -> dict[str, Any] | None:
    """What results.json says of a run that ended at a step; None where it says something else or is damaged."""
    file = out / "results.json"
    if file.exists() and not file.is_file():  # nor can it be written again
        raise UserError(f"{file} is there, and no file; remove it")
    try:
        results = read_json(file)
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
        with atomic_write(file) as tmp:
            tmp.write_bytes(b"".join(kept))


def write_samples(file: Path, step: int, stories: list[tuple[str, str]]) -> None:
    """Append what the model writes at this step: each opening in bold, then how it goes on."""
    if stories:
        told = "".join(f"\n**{_flat(opening)}**{_flat(text)}\n" for opening, text in stories)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"## step {step}\n{told}\n")


def _flat(text: str) -> str:
    return text.replace("\n", "  \n")
