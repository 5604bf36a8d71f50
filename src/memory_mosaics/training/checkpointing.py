"""The folder of a run: its lock, the record of which run it is, and its checkpoints.

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
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout  # a dependency of torch
from torch import Tensor, nn

from memory_mosaics import checkpoint, files
from memory_mosaics.config import part_name
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import MANIFEST, ManifestError, first_difference, read_json, remove_temporary, write_text
from memory_mosaics.runtime import Runtime
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.training.config import AnyRun

TEMPORARY = re.compile(r"\.(step-\d+|run\.yaml|corpus\.json|samples\.md|log\.jsonl|results\.json)\.")


class RunFolder:
    """The folder of a run, as all of its processes use it."""

    def __init__(self, run: AnyRun, runtime: Runtime):
        self.run, self.path, self.runtime = run, run.out, runtime

    @contextmanager
    def locked(self, fingerprint: dict[str, Any], *, lengthen: bool = False) -> Iterator[None]:
        """Lock the folder and record which run it is of.

        A run that is in the folder already must be the same one; only its `RuntimeConfig` may differ, and its steps if
        it is to be `lengthen`ed.
        """
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            self.runtime.run_on_rank0(lambda: self._lock(lock, fingerprint, lengthen=lengthen))
            (seen,) = self.runtime.sum(float((self.path / "run.yaml").exists()))
            if seen < self.runtime.size:
                processes = f"{seen:.0f} of {self.runtime.size} do"
                raise UserError(f"{self.path} must be one folder that all processes see; {processes}")
            yield
        finally:
            lock.release()

    def _lock(self, lock: FileLock, fingerprint: dict[str, Any], *, lengthen: bool) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            for path in self.path.glob(".*.part"):  # while this process has the lock, nobody writes them
                if TEMPORARY.match(path.name):
                    remove_temporary(path)
            _record_run(self.run, fingerprint, lengthen=lengthen)
            self._locked = (self.path / ".lock").stat()
        except Timeout:
            message = f"{self.path} is being trained in by another process; wait for it, or name another folder"
            raise UserError(message) from None
        except (OSError, AttributeError, TypeError, yaml.YAMLError) as error:
            raise UserError(f"cannot use {self.path}: {one_line(error)}") from error

    def check_exists(self) -> None:
        """Refuse to write to a folder that was removed or renamed since it was locked."""

        def check() -> None:
            with suppress(OSError):
                if os.path.samestat(self._locked, (self.path / ".lock").stat()):
                    return
            what = "removed or renamed while it was trained in"
            raise UserError(f"{self.path} was {what}; the same command starts again")

        self.runtime.run_on_rank0(check)

    def newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint of the run, the same one on every process."""
        paths = self.runtime.broadcast([str(path) for path in checkpoint.steps(self.path)])
        return Path(paths[-1]) if paths else None

    def save(
        self, model: nn.Module, tensors: dict[str, Tensor], progress: dict[str, Any], tokenizer: Tokenizer | None
    ) -> None:
        """Write a checkpoint: the model, other `tensors` to resume from, and the progress. Every process takes part."""
        import torch.distributed.checkpoint as dcp  # takes seconds

        runtime, folder = self.runtime, self.path / f"step-{progress['step']:08}"
        tmp = Path(runtime.broadcast(str(files.temporary_path(folder)) if runtime.is_rank0 else None))
        weights = full_weights(model, keep=runtime.is_rank0)

        def write_model() -> None:
            (tmp / "training").mkdir(parents=True)
            checkpoint.write_files(model, tmp, weights=weights, tokenizer=tokenizer)
            (tmp / "progress.json").write_text(json.dumps(progress), encoding="utf-8")

        def publish() -> None:
            listed = {name: about for part in described for name, about in part.items()}
            manifest = json.dumps({"format": 1, "files": dict(sorted(listed.items()))}, indent=2)
            (tmp / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
            files.publish_folder(tmp, folder)

        try:
            with _one_line(f"cannot save {folder}"):
                runtime.run_on_rank0(write_model)
                writer = dcp.HuggingFaceStorageWriter(str(tmp / "training"), save_distributed=True)
                dcp.save(tensors, storage_writer=writer)
                names = sorted(path.relative_to(tmp).as_posix() for path in tmp.rglob("*") if path.is_file())
                share = runtime.broadcast(names)[runtime.rank :: runtime.size]
                described = runtime.gather(lambda: files.describe_files(tmp, share))
                runtime.run_on_rank0(publish)
        finally:
            if runtime.is_rank0:
                remove_temporary(tmp)  # free a full disk

    def restore(self, folder: Path, model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Load the model and the other `tensors` from a checkpoint in place; return its progress."""
        import torch.distributed.checkpoint as dcp

        with resuming(folder):
            self._check_files(folder)
            progress = read_json(folder / "progress.json")
            if not isinstance(progress, dict) or f"step-{progress.get('step'):08}" != folder.name:
                raise ValueError("progress.json is damaged: it is not of that step")
            key = part_name(type(model.config))
            weights = {f"{key}.{name}": weight for name, weight in model.state_dict().items()}
            for path, wanted in ((folder, weights), (folder / "training", tensors)):
                dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(str(path)))
            if name := self.find_not_finite(model, tensors):
                raise ValueError(f"{name} contains NaN or Inf")
        return progress

    def _check_files(self, folder: Path) -> None:
        """Refuse a checkpoint with a file missing, changed or added: every safetensors file in it would be read."""
        if (manifest := files.read_manifest(folder)) is None:
            raise ValueError(f"it has no {MANIFEST}, with the checksums of its files")
        present = {path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")}
        share = sorted(present.union(manifest))[self.runtime.rank :: self.runtime.size]
        self.runtime.gather(lambda: files.check_manifest(folder, share))

    def find_not_finite(self, model: nn.Module, tensors: dict[str, Tensor]) -> str | None:
        """Return the name of the first weight or other tensor that contains NaN or Inf on any process."""
        tensors = model.state_dict() | tensors
        pieces = (getattr(tensor, "to_local", lambda: tensor)() for tensor in tensors.values())  # noqa: B023
        bad = torch.stack([~piece.isfinite().all() for piece in pieces]).cpu().double()
        return next((name for name, count in zip(tensors, self.runtime.sum(*bad), strict=True) if count), None)

    def prune(self, *, best: int) -> None:
        """Once a checkpoint is saved, remove all but the newest ones and that of the `best` step."""
        for folder in checkpoint.steps(self.path)[: -self.run.runtime.keep]:
            if folder.name != f"step-{best:08}":
                checkpoint.remove(folder)


def _record_run(run: AnyRun, fingerprint: dict[str, Any], *, lengthen: bool) -> None:
    """Refuse a folder that holds another run, then record this one. A run to `lengthen` may have more steps."""
    mine, record = run.plain(), dict(fingerprint)
    theirs, known = read_run(run.out), _read_record(run.out / "corpus.json")
    for name, found in (("run.yaml", theirs), ("corpus.json", known)):
        if found is None and (saved := checkpoint.steps(run.out)):
            raise UserError(
                f"{run.out} has the checkpoint {saved[-1].name} and no {name}, which says what run it is of; restore "
                f"{name}, or name another folder, perhaps with --from {saved[-1]}"
            )
    if theirs is not None:
        theirs = {"documents": False} | (
            _lengthened(run, theirs) if lengthen else theirs
        )  # older runs have no such line
    if source := _initial_weights(run, theirs, known):
        record["from"] = source
    parts = [(part, theirs, mine) for part in ("task", "documents", "model", "training") if part in mine]
    for part, before, now in (*parts, *((part, known, record) for part in fingerprint)):
        if before is not None and (difference := first_difference(before.get(part), now[part], part)):
            setting, old, new = difference
            raise UserError(
                f"{run.out} holds a run with {setting} {old}, not {new}; name another folder, or remove that one"
            )
    write_text(run.out / "run.yaml", yaml.safe_dump(mine, sort_keys=False))
    write_text(run.out / "corpus.json", json.dumps(record))


def read_run(out: Path) -> dict[str, Any] | None:
    """Return the configuration in run.yaml; None without the file."""
    return _read_record(out / "run.yaml")


def _read_record(file: Path) -> dict[str, Any] | None:
    try:
        found = files.read_yaml(file) if file.suffix == ".yaml" else read_json(file)
        if not isinstance(found, dict):
            raise UserError(f"{file} is damaged: it holds {type(found).__name__}, not names and values")
        return found
    except FileNotFoundError:
        return None
    except UserError as error:
        raise UserError(f"{error}; name another folder, or remove that one") from error


def _lengthened(run: AnyRun, theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded run with the steps of this one, if they are more."""
    training, how = theirs.get("training"), run.training
    if not isinstance(training, dict) or training.get("steps", how.steps) >= how.steps:
        return theirs
    progress: Any = {}
    for newest in checkpoint.steps(run.out)[-1:]:
        with suppress(FileNotFoundError, UserError):  # a damaged one is refused where it is restored
            progress = read_json(newest / "progress.json")
    why = f", where it was as good as {how.stop_at}" if progress.get("reached") else None
    if how.patience and (worse := progress.get("worse", 0)) >= how.patience:
        why = f" after {worse} evaluations without a better validation loss"
    if why is not None:
        remedy = f"and more steps change nothing; start another run with --from {run.out}"
        raise UserError(f"{run.out} stopped at step {progress.get('step')}{why}, {remedy}")
    return theirs | {"training": training | {"steps": how.steps}}


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
        mine = {"checkpoint": str(folder), "weights": files.describe_files(folder, names)}
    if known is None:
        return mine
    if (recorded or {}).get("weights") != (mine or {}).get("weights"):
        names = [f"with the weights of {one.get('checkpoint')}" if one else "from scratch" for one in (recorded, mine)]
        raise UserError(f"{run.out} holds a run that started {names[0]}, not {names[1]}; name another folder")
    return recorded


def full_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Gather all weights of a possibly sharded model on the CPU of the processes that `keep` them."""
    full = {}
    for name, weight in model.state_dict().items():  # one at a time: together they may not fit on a device
        gathered = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # type: ignore[operator]
        if keep:
            full[name] = gathered.detach().cpu()
    return full


def resuming(folder: Path) -> AbstractContextManager[None]:
    """Turn any error about a checkpoint of the run into one line that says how to resume."""
    before = [path for path in checkpoint.steps(folder.parent) if path.name < folder.name]
    remedy = f"to resume from the one before, {before[-1].name}" if before else "to start again"
    return _one_line(f"cannot resume from {folder}", f"remove that folder {remedy}")


@contextmanager
def _one_line(what: str, remedy: str = "") -> Iterator[None]:
    """Turn any error about files into one line. torch would log tracebacks and warn about one process."""
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
        other = f"restore it, or {remedy}" if error.remedy == files.RESTORE and remedy else error.remedy
        raise UserError(f"{what}: {one_line(ValueError(error.what))}; {other}") from error
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{what}: {one_line(error)}{ending}") from error
    finally:
        logging.disable(level)
