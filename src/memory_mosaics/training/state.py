"""What a run goes on from: checkpoint folders that are whole or not there.

    RUN/step-00000800/                 config.json, model.safetensors, tokenizer.json, ...: a Hugging Face folder
    RUN/step-00000800/training/        the optimiser's moments as safetensors, by torch.distributed.checkpoint
    RUN/step-00000800/progress.json    the step and the best validation loss so far
    RUN/step-00000800/manifest.json    all files with their sizes and checksums: what is not in it is not read

A folder is written aside and renamed when every byte is on the disk, so that a run may be killed at any moment. It
holds no pickle, and any number of processes can read it, whatever number wrote it.
"""

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics import checkpoint
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import (
    MANIFEST,
    RESTORE,
    ManifestError,
    check_manifest,
    check_size,
    describe_files,
    flush,
    read_json,
    read_manifest,
    remove_temporary,
    temporary_path,
)
from memory_mosaics.runtime import Runtime
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.training.optimizer import set_steps


def save(
    run: Path,
    model: nn.Module,
    tensors: dict[str, Tensor],
    progress: dict[str, Any],
    *,
    runtime: Runtime,
    tokenizer: Tokenizer | None,
) -> Path:
    """Write the checkpoint of this moment, the `tensors` beside the weights; every process takes part."""
    import torch.distributed.checkpoint as dcp

    folder = run / f"step-{progress['step']:08}"
    tmp = Path(runtime.broadcast(str(temporary_path(folder)) if runtime.is_rank0 else None))
    weights = full_weights(model, keep=runtime.is_rank0)
    try:
        with _one_line(f"cannot save {folder}"):
            runtime.run_on_rank0(lambda: _write_model(tmp, model, weights, progress, tokenizer))
            writer = dcp.HuggingFaceStorageWriter(str(tmp / "training"), save_distributed=True)
            dcp.save(tensors, storage_writer=writer)
            names = runtime.broadcast(
                sorted(path.relative_to(tmp).as_posix() for path in tmp.rglob("*") if path.is_file())
            )
            described = runtime.gather(lambda: describe_files(tmp, names[runtime.rank :: runtime.size]))
            runtime.run_on_rank0(
                lambda: _finish(tmp, folder, {name: about for part in described for name, about in part.items()})
            )
    finally:
        if runtime.is_rank0:
            remove_temporary(tmp)  # a full disk should not stay full of it
    return folder


def _write_model(
    tmp: Path, model: nn.Module, weights: dict[str, Tensor], progress: dict[str, Any], tokenizer: Tokenizer | None
) -> None:
    checkpoint.save(model, tmp, weights=weights, tokenizer=tokenizer)
    (tmp / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    (tmp / "training").mkdir()


def _finish(tmp: Path, folder: Path, described: dict[str, dict[str, Any]]) -> None:
    files = dict(sorted(described.items()))
    (tmp / MANIFEST).write_text(json.dumps({"format": 1, "files": files}, indent=2) + "\n", encoding="utf-8")
    for path in (*tmp.rglob("*"), tmp):
        flush(path)
    tmp.rename(folder)
    flush(folder.parent)


def not_finite(model: nn.Module, tensors: dict[str, Tensor], runtime: Runtime) -> str | None:
    """The first weight or other tensor that contains NaN or Inf on any process."""
    tensors = model.state_dict() | tensors
    pieces = (getattr(tensor, "to_local", lambda: tensor)() for tensor in tensors.values())  # noqa: B023
    bad = torch.stack([~piece.isfinite().all() for piece in pieces]).double().cpu()
    return next((name for name, count in zip(tensors, runtime.sum(*bad), strict=True) if count), None)


def restore(
    folder: Path, model: nn.Module, tensors: dict[str, Tensor], optimizer: torch.optim.AdamW, runtime: Runtime
) -> dict[str, Any]:
    """Fill the model, and the `tensors` of the optimiser and the like, from a checkpoint; returns its progress."""
    import torch.distributed.checkpoint as dcp

    with resuming(folder):
        _check_whole(folder, runtime)
        progress = read_json(folder / "progress.json")
        if not isinstance(progress, dict) or f"step-{progress.get('step'):08}" != folder.name:
            raise ValueError("progress.json is damaged: it is not of that step")
        key = checkpoint.key_of(model)
        weights = {f"{key}.{name}": weight for name, weight in model.state_dict().items()}
        for place, wanted in ((folder, weights), (folder / "training", tensors)):
            reader = dcp.HuggingFaceStorageReader(str(place))
            _check_covered(reader.read_metadata().state_dict_metadata, wanted)
            dcp.load(wanted, storage_reader=reader)
        set_steps(optimizer, progress["step"])
        if name := not_finite(model, tensors, runtime):
            raise ValueError(f"{name} contains NaN or Inf")
        if runtime.is_rank0 and read_manifest(folder) is None:
            print(f"{folder} has no {MANIFEST}: its files were not checked against checksums", file=sys.stderr)
    return progress


def _check_whole(folder: Path, runtime: Runtime) -> None:
    """Refuse a checkpoint with a file missing, changed, or added: all tensor files that are there would be read."""
    if read_manifest(folder) is None:
        for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")):
            if name != "model.safetensors" and not name.startswith("training/"):
                raise ManifestError(folder, f"{name} is not of this checkpoint", "remove that file")
        return

    def change() -> ManifestError | None:
        try:
            check_manifest(folder, share=slice(runtime.rank, None, runtime.size))
        except ManifestError as error:
            return error

    for error in filter(None, runtime.gather(change)):
        raise error


def _check_covered(stored: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse pieces that leave out, overlap, or add anything."""
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
    """Remove all checkpoints but the newest `keep` and the one of the `best` step, once the newest is whole."""
    newest = checkpoint.steps(run)[-1]
    manifest = read_manifest(newest) or {}
    for name in manifest:
        check_size(newest, manifest, name)
    for folder in checkpoint.steps(run)[:-keep]:
        if folder.name != f"step-{best:08}":
            checkpoint.remove(folder)


def full_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """All weights on the CPU, also of a model that is dealt out. All processes take part, for those that `keep`."""
    full = {}
    for name, weight in model.state_dict().items():  # one at a time: together they may not fit a device
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # type: ignore[operator]
        if keep:
            full[name] = whole.detach().cpu()
    return full


def resuming(folder: Path) -> AbstractContextManager[None]:
    """Within, whatever is wrong with a checkpoint of the run is one line that says how the run can go on."""
    before = [path for path in checkpoint.steps(folder.parent) if path.name < folder.name]
    remedy = f"to go on from the one before, {before[-1].name}" if before else "to begin again"
    return _one_line(f"cannot go on from {folder}", f"remove that folder {remedy}")


@contextmanager
def _one_line(what: str, remedy: str = "") -> Iterator[None]:
    """Whatever goes wrong with the files within is one line; torch would log tracebacks and warn of one process."""
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
