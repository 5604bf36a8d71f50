"""Checkpoints: a Hugging Face folder with config.json, model.safetensors and generation_config.json.

`save` and `load` need neither transformers nor any code from the folder; with `memory_mosaics.huggingface` imported,
`AutoModelForCausalLM.from_pretrained` opens the same folder. Nothing is ever unpickled.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig

MODEL_TYPE = "memory_mosaic"
ARCHITECTURE = "MosaicForCausalLM"
PREFIX = "language_model."  # of the weights, and the name of our part of config.json
KEEP_IN_FLOAT32 = ("theta", "rate", "taps")  # scales, decays and mixing coefficients: few, and sensitive


class CheckpointError(UserError):
    """A checkpoint that cannot be read or written."""


def save(model: LanguageModel, folder: str | os.PathLike[str]) -> Path:
    """Write a checkpoint folder, whole or not at all. A folder that holds something already is left alone."""
    from safetensors.torch import save_file

    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists already; name a new folder, or remove that one first")
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        aside.mkdir(parents=True)
        weights = {PREFIX + name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
        config = {"model_type": MODEL_TYPE, "architectures": [ARCHITECTURE], "dtype": dtype}
        _write_json(aside / "config.json", config | {PREFIX[:-1]: to_plain(model.config)})
        _write_json(aside / "generation_config.json", {"use_cache": True})
        shutil.copymode(aside / "config.json", aside / "model.safetensors")  # safetensors lets only the owner read
        for file in (*aside.iterdir(), aside):
            _flush(file)
        if folder.exists():
            folder.rmdir()  # empty, as checked above
        aside.rename(folder)
        _flush(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write {folder}: {one_line(error)}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def load(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> LanguageModel:
    """Read a checkpoint folder. With `dtype` the matrices are converted; scales and decays stay in float32."""
    folder = Path(folder)
    config = read_config(folder)
    try:
        with torch.device("meta"):
            model = LanguageModel(config)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: {one_line(error)}") from error
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in _read_weights(folder, str(device)).items()}
    check_weights(weights, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, folder)
    if dtype is not None:
        weights = {
            name: tensor.to(torch.float32 if name.rsplit(".", 1)[-1] in KEEP_IN_FLOAT32 else dtype)
            for name, tensor in weights.items()
        }
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(True).eval()


def read_config(folder: Path) -> LanguageModelConfig:
    """The model's configuration from config.json."""
    file = folder / "config.json"
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {one_line(error)}") from error
    kind = plain.get("model_type") if isinstance(plain, dict) else None
    if kind != MODEL_TYPE:
        raise CheckpointError(f"{file} describes a {kind or 'nameless'} model, not a {MODEL_TYPE}")
    try:
        return from_plain(LanguageModelConfig, plain.get(PREFIX[:-1], {}))
    except ValueError as error:
        raise CheckpointError(f"{file}: {one_line(error)}") from error


def check_weights(weights: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], where: Any) -> None:
    """Refuse weights that are not exactly those of the model, naming the first that differs."""
    for name, shape in shapes.items():
        if name not in weights:
            raise CheckpointError(f"{where} lacks the weight {name} {shape}")
        if tuple(weights[name].shape) != shape:
            raise CheckpointError(f"{where}: {name} is {tuple(weights[name].shape)}, the configuration wants {shape}")
    for name in weights:
        if name not in shapes:
            raise CheckpointError(f"{where} holds a weight that the model does not have: {name}")


def _read_weights(folder: Path, device: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"  # large models come in several files
    file = index
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else []
        weights: dict[str, Tensor] = {}
        for name in names or ["model.safetensors"]:
            file = folder / Path(name).name
            weights |= load_file(file, device=device)
        return weights
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a whole checkpoint: it has no {file.name}") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {one_line(error)}") from error


def _write_json(file: Path, plain: Any) -> None:
    file.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
