"""The folder of a run: its lock, the record of what run it is, and its checkpoints.

    RUN/run.yaml, RUN/corpus.json      the configuration of the run, and a fingerprint of its data and initial weights
    RUN/step-00000800/                 config.json, model.safetensors, tokenizer.json, ...: a Hugging Face folder
    RUN/step-00000800/training/        the optimiser's moments as safetensors, by torch.distributed.checkpoint
    RUN/step-00000800/progress.json    the step and the best validation loss so far
    RUN/step-00000800/manifest.json    all files with their sizes and checksums; no other file is read

A checkpoint is written to a temporary folder and renamed when every byte is on the disk, so that a run may be killed at
any moment. It contains no pickle, and any number of processes can read it, whatever number wrote it.
"""

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout  # a dependency of torch
from torch import Tensor, nn

from memory_mosaics import checkpoint
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import (
    MANIFEST,
    RESTORE,
    ManifestError,
    check_manifest,
    check_same_run,
    check_size,
    check_yaml,
    describe_files,
    parse_json,
    publish_folder,
    read_json,
    read_manifest,
    read_text,
    remove_temporary,
    temporary_path,
    write_text,
)
from memory_mosaics.runtime import Runtime
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.training.config import AnyRun

TEMPORARY = re.compile(r"\.(step-\d+|run\.yaml|corpus\.json|samples\.md|log\.jsonl|results\.json)\.")


@contextmanager
def locked_run_dir(
    run: AnyRun, fingerprint: dict[str, Any], runtime: Runtime, *, lengthen: bool = False
) -> Iterator[Callable[[], None]]:
    """Lock the folder of a run and record which run it is. Yields a check that the folder still exists.

    A run that is in the folder already must be the same one; only its `RuntimeConfig` may differ, and its steps if it
    is to be `lengthen`ed.
    """
    lock = FileLock(run.out / ".lock", timeout=0)
    try:
        runtime.run_on_rank0(lambda: _lock(run, fingerprint, lock, lengthen=lengthen))
        (seen,) = runtime.sum(float((run.out / "run.yaml").exists()))
        if seen < runtime.size:
            raise UserError(f"{run.out} must be one folder that all processes see; {seen:.0f} of {runtime.size} do")
        with (run.out / ".lock").open("rb") as held:
            yield lambda: runtime.run_on_rank0(lambda: _check_exists(run.out, held.fileno()))
    finally:
        lock.release()


def _check_exists(out: Path, descriptor: int) -> None:
    try:
        same = os.path.samestat(os.fstat(descriptor), (out / ".lock").stat())
    except OSError:
        same = False
    if not same:
        raise UserError(f"{out} was removed or renamed while it was trained in; the same command starts again")


def _lock(run: AnyRun, fingerprint: dict[str, Any], lock: FileLock, *, lengthen: bool) -> None:
    try:
        run.out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        for path in run.out.glob(".*.part"):  # with the lock, its writer is gone, on any machine
            if TEMPORARY.match(path.name):
                remove_temporary(path)
        check_same(run, fingerprint, lengthen=lengthen)
    except Timeout:
        raise UserError(
            f"{run.out} is being trained in by another process; wait for it, or name another folder"
        ) from None
    except (OSError, AttributeError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"cannot use {run.out}: {one_line(error)}") from error


def check_same(run: AnyRun, fingerprint: dict[str, Any], *, lengthen: bool = False) -> None:
    """Refuse a folder that holds another run, then record this one. A run to `lengthen` may have more steps."""
    mine, record = run.plain(), dict(fingerprint)
    theirs, known = read_run(run.out), _read_record(run.out / "corpus.json", parse_json)
    for name, found in (("run.yaml", theirs), ("corpus.json", known)):
        if found is None and (saved := checkpoint.steps(run.out)):
            raise UserError(
                f"{run.out} has the checkpoint {saved[-1].name} and no {name}, which says what run it is of; restore "
                f"{name}, or name another folder, perhaps with --from {saved[-1]}"
            )
    if lengthen and theirs is not None:
        theirs = _lengthened(run, theirs)
    if source := _initial_weights(run, theirs, known):
        record["from"] = source
    for part in ("task", "model", "training"):
        if theirs is not None and part in mine:
            check_same_run(run.out, theirs.get(part), mine[part], part)
    for part in fingerprint:
        if known is not None:
            check_same_run(run.out, known.get(part), record[part], part)
    write_text(run.out / "run.yaml", yaml.safe_dump(mine, sort_keys=False))
    write_text(run.out / "corpus.json", json.dumps(record))


def read_run(out: Path) -> dict[str, Any] | None:
    """Return the configuration in run.yaml; None without the file."""
    return _read_record(out / "run.yaml", lambda text: yaml.safe_load(check_yaml(text)))


def _read_record(file: Path, parse: Callable[[str], Any]) -> dict[str, Any] | None:
    try:
        found = parse(read_text(file))
        if not isinstance(found, dict):
            raise ValueError(f"it holds {type(found).__name__}, not names and values")
        return found
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; name another folder, or remove that one") from error


def _lengthened(run: AnyRun, theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded run with the steps of this one, if they are more."""
    training, steps = theirs.get("training"), run.training.steps
    if not isinstance(training, dict) or not isinstance(training.get("steps"), int) or training["steps"] >= steps:
        return theirs
    progress: Any = {}
    for newest in checkpoint.steps(run.out)[-1:]:
        with suppress(FileNotFoundError, UserError):  # a damaged one is refused where it is restored
            progress = read_json(newest / "progress.json")
    if run.training.patience and isinstance(progress, dict) and progress.get("worse", 0) >= run.training.patience:
        raise UserError(
            f"{run.out} stopped at step {progress.get('step')} after {progress['worse']} evaluations without a better "
            f"validation loss, and more steps change nothing; start another run with --from {run.out}"
        )
    return theirs | {"training": training | {"steps": steps}}


def _initial_weights(run: AnyRun, theirs: dict[str, Any] | None, known: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the path and the checksums of the weights that are fine-tuned; refuse others than those recorded.

    A run that has checkpoints of its own no longer reads those weights: they may be gone, or trained further.
    """
    recorded = (known or {}).get("from")
    given = Path(run.init_from) if run.init_from else None
    path = (theirs or {}).get("init_from")
    if recorded and given and path and Path(path).resolve() == given.resolve() and checkpoint.steps(run.out):
        return recorded
    mine = None
    if given is not None:
        folder = checkpoint.newest(given)
        names = sorted(file.name for file in folder.glob("*.safetensors"))
        mine = {"checkpoint": str(folder), "weights": describe_files(folder, names)}
    if known is None:
        return mine
    if (recorded or {}).get("weights") != (mine or {}).get("weights"):
        names = [f"with the weights of {one.get('checkpoint')}" if one else "from scratch" for one in (recorded, mine)]
        raise UserError(f"{run.out} holds a run that started {names[0]}, not {names[1]}; name another folder")
    return recorded


def save(
    run: Path,
    model: nn.Module,
    tensors: dict[str, Tensor],
    progress: dict[str, Any],
    *,
    runtime: Runtime,
    tokenizer: Tokenizer | None,
) -> None:
    """Write a checkpoint: the model, other `tensors` to resume from, and the progress. Every process takes part."""
    import torch.distributed.checkpoint as dcp

    folder = run / f"step-{progress['step']:08}"
    tmp = Path(runtime.broadcast(str(temporary_path(folder)) if runtime.is_rank0 else None))
    weights = full_weights(model, keep=runtime.is_rank0)

    def write_model() -> None:
        (tmp / "training").mkdir(parents=True)
        checkpoint.write_files(model, tmp, weights=weights, tokenizer=tokenizer)
        (tmp / "progress.json").write_text(json.dumps(progress), encoding="utf-8")

    def publish() -> None:
        files = {name: about for part in described for name, about in part.items()}
        manifest = json.dumps({"format": 1, "files": dict(sorted(files.items()))}, indent=2)
        (tmp / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        publish_folder(tmp, folder)

    try:
        with _one_line(f"cannot save {folder}"):
            runtime.run_on_rank0(write_model)
            writer = dcp.HuggingFaceStorageWriter(str(tmp / "training"), save_distributed=True)
            dcp.save(tensors, storage_writer=writer)
            names = sorted(path.relative_to(tmp).as_posix() for path in tmp.rglob("*") if path.is_file())
            share = runtime.broadcast(names)[runtime.rank :: runtime.size]
            described = runtime.gather(lambda: describe_files(tmp, share))
            runtime.run_on_rank0(publish)
    finally:
        if runtime.is_rank0:
            remove_temporary(tmp)  # free a full disk


def find_not_finite(model: nn.Module, tensors: dict[str, Tensor], runtime: Runtime) -> str | None:
    """Return the name of the first weight or other tensor that contains NaN or Inf on any process."""
    tensors = model.state_dict() | tensors
    pieces = (getattr(tensor, "to_local", lambda: tensor)() for tensor in tensors.values())  # noqa: B023
    bad = torch.stack([~piece.isfinite().all() for piece in pieces]).double().cpu()
    return next((name for name, count in zip(tensors, runtime.sum(*bad), strict=True) if count), None)


def restore(folder: Path, model: nn.Module, tensors: dict[str, Tensor], runtime: Runtime) -> dict[str, Any]:
    """Load the model and the other `tensors` from a checkpoint in place; return its progress."""
    import torch.distributed.checkpoint as dcp

    with resuming(folder):
        _check_complete(folder, runtime)
        progress = read_json(folder / "progress.json")
        if not isinstance(progress, dict) or f"step-{progress.get('step'):08}" != folder.name:
            raise ValueError("progress.json is damaged: it is not of that step")
        key = checkpoint.key_of(model)
        weights = {f"{key}.{name}": weight for name, weight in model.state_dict().items()}
        for path, wanted in ((folder, weights), (folder / "training", tensors)):
            reader = dcp.HuggingFaceStorageReader(str(path))
            _check_covered(reader.read_metadata().state_dict_metadata, wanted)
            dcp.load(wanted, storage_reader=reader)
        if name := find_not_finite(model, tensors, runtime):
            raise ValueError(f"{name} contains NaN or Inf")
        if runtime.is_rank0 and read_manifest(folder) is None:
            print(f"{folder} has no {MANIFEST}: its files were not checked against checksums", file=sys.stderr)
    return progress


def _check_complete(folder: Path, runtime: Runtime) -> None:
    """Refuse a checkpoint with a file missing, changed or added: every safetensors file in it would be read."""
    if read_manifest(folder) is None:
        for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")):
            if name != "model.safetensors" and not name.startswith("training/"):
                raise ManifestError(folder, f"{name} is not of this checkpoint", "remove that file")
    runtime.gather(lambda: check_manifest(folder, share=slice(runtime.rank, None, runtime.size)))


def _check_covered(stored: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse shards that leave out, overlap or add anything."""
    for name, tensor in tensors.items():
        pieces = [piece for piece in stored[name].chunks if piece.sizes.numel()] if name in stored else []
        covered = sum(piece.sizes.numel() for piece in pieces)
        if covered != tensor.numel() or len({piece.offsets for piece in pieces}) < len(pieces):
            raise UserError(f"its pieces of {name} hold {covered:,} of {tensor.numel():,} numbers")
        if stored[name].size != tensor.shape:
            raise UserError(f"{name} is {tuple(stored[name].size)}, the model wants {tuple(tensor.shape)}")
    if extra := sorted(stored.keys() - tensors.keys()):
        raise UserError(f"it holds {extra[0]}, which the model does not have")


def prune(run: Path, *, keep: int, best: int) -> None:
    """Remove all checkpoints but the newest `keep` and that of the `best` step, once the newest is complete."""
    *_, newest = folders = checkpoint.steps(run)
    manifest = read_manifest(newest) or {}
    for name in manifest:
        check_size(newest, manifest, name)
    for folder in folders[:-keep]:
        if folder.name != f"step-{best:08}":
            checkpoint.remove(folder)


def full_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Gather all weights of a possibly sharded model on the CPU of the processes that `keep` them."""
    full = {}
    for name, weight in model.state_dict().items():  # one at a time: together they may not fit on a device
        gathered = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # type: ignore[operator]
        if keep:
            full[name] = gathered.detach().cpu()
    return full


def resuming(folder: Path) -> AbstractContextManager[None]:
    """Turn whatever is wrong with a checkpoint of the run into one line with the way to resume."""
    before = [path for path in checkpoint.steps(folder.parent) if path.name < folder.name]
    remedy = f"to resume from the one before, {before[-1].name}" if before else "to start again"
    return _one_line(f"cannot resume from {folder}", f"remove that folder {remedy}")


@contextmanager
def _one_line(what: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever goes wrong with files into one line; torch would log tracebacks and warn about one process."""
    from safetensors import SafetensorError
    from torch.distributed.checkpoint import CheckpointException

    ending = f"; {remedy}" if remedy else ""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:  # of any process
        failure, _ = next(iter(error.failures.values()))
        if isinstance(failure, KeyboardInterrupt):
            raise failure from error
        raise UserError(f"{what}: {one_line(failure)}{ending}") from error
    except ManifestError as error:
        other = f"restore it, or {remedy}" if error.remedy == RESTORE and remedy else error.remedy
        raise UserError(f"{what}: {one_line(ValueError(error.what))}; {other}") from error
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{what}: {one_line(error)}{ending}") from error
    finally:
        logging.disable(level)
