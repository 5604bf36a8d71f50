"""Checkpoints: a Hugging Face folder with config.json, model.safetensors and generation_config.json.

`save` and `load` need neither transformers nor any code from the folder; with `memory_mosaics.huggingface` imported,
`AutoModelForCausalLM.from_pretrained` opens the same folder. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics import pretrained
from memory_mosaics.config import PARTS, from_plain, part_name, to_plain
from memory_mosaics.errors import CheckpointError, UserError, did_you_mean, one_line, within_memory
from memory_mosaics.files import (
    atomic_folder,
    check_manifest,
    check_regular,
    read_json,
    remove_temporary,
    temporary_path,
)
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig, weight_shapes
from memory_mosaics.parameters import fp32_parameter_names
from memory_mosaics.runtime import check_memory
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.text.tokenizer import Tokenizer

MODEL_TYPE = "memory_mosaic"
ARCHITECTURE = "MosaicForCausalLM"
LANGUAGE_MODEL = "language_model"  # the key of its configuration in config.json
PREFIX = f"{LANGUAGE_MODEL}."  # of its weights
WRAPPERS = r"(^|\.)(?:_orig_mod\.|module\.)+"  # added to names by torch.compile and DDP
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
HUB_FILE = "load_memory_mosaic.py"  # beside config.json: what from_pretrained(..., trust_remote_code=True) runs
HUB_CODE = """try:  # the code of this model is a package
    from memory_mosaics.huggingface import MosaicConfig, MosaicForCausalLM, MosaicForQuestionAnswering
    from memory_mosaics.huggingface import MosaicForSequenceClassification, MosaicForTokenClassification, MosaicModel
except ImportError as error:
    raise ImportError("this model needs memory-mosaics: pip install 'memory-mosaics[hf]'") from error
"""
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")  # on the last hidden states
AUTO_MAP = {f"Auto{name}": f"load_memory_mosaic.Mosaic{name}" for name in ("Config", "Model")}
AUTO_MAP |= {f"AutoModel{name}": f"load_memory_mosaic.Mosaic{name}" for name in ("ForCausalLM", *HEADS)}
STEP = re.compile(r"step-\d{8}")  # the name of a checkpoint of a training run


def save(model: nn.Module, folder: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None) -> Path:
    """Write a checkpoint folder atomically. A folder that is not empty is refused.

    The model may be compiled, as a whole or in parts. With a `tokenizer`, generation stops at its end-of-text token.
    """
    from safetensors import SafetensorError

    folder = Path(folder)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError("it exists already; name a new folder, or remove that one first")
        with atomic_folder(folder) as tmp:
            write_files(model, tmp, tokenizer=tokenizer)
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"cannot write {folder}: {one_line(error)}") from error
    return folder


def write_files(
    model: nn.Module, folder: Path, *, weights: dict[str, Tensor] | None = None, tokenizer: Tokenizer | None = None
) -> None:
    """Write the files of a checkpoint into a folder, unless they could not be read back.

    `weights` replace those of a sharded model.
    """
    from safetensors.torch import save_file

    weights = model.state_dict() if weights is None else weights
    weights = {re.sub(WRAPPERS, r"\1", name): tensor.detach() for name, tensor in weights.items()}
    kind: Any = type(model.config)
    plain, key = json.loads(json.dumps(to_plain(model.config))), part_name(kind)
    with torch.device("meta"):
        readable = from_plain(kind, plain).build().state_dict()
    check_weights(weights, {name: tuple(weight.shape) for name, weight in readable.items()}, "the model to save")
    file = folder / "model.safetensors"
    save_file({f"{key}.{name}": tensor.contiguous() for name, tensor in weights.items()}, file, {"format": "pt"})
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    architecture = ARCHITECTURE if key == LANGUAGE_MODEL else type(model).__name__
    special = dict.fromkeys(SPECIAL_TOKENS, tokenizer.end_of_text) if tokenizer else {}
    config = {"model_type": MODEL_TYPE, "architectures": [architecture], "dtype": dtype, key: plain}
    if key == LANGUAGE_MODEL:
        config |= {"auto_map": AUTO_MAP} | special
        (folder / HUB_FILE).write_text(HUB_CODE, encoding="utf-8")
    generation = {"use_cache": True} | special
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(folder)
    shutil.copymode(folder / "config.json", file)  # safetensors lets only the owner read


def load(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> LanguageModel:
    """Load a checkpoint folder, the newest checkpoint of a training run, or a model of the package by its name.

    With `dtype` the matrices are converted; scales and decays stay at least in float32. Without it, models of the
    package, which are stored in bfloat16, are loaded in float32.
    """
    from safetensors.torch import load_file

    folder = newest(Path(folder))
    if dtype is None and folder.parent == pretrained.FOLDER:
        dtype = torch.float32
    config = read_config(folder)
    shapes = weight_shapes(config)
    files, size = check_weight_files(folder, shapes)  # before anything is built or read
    check_memory(str(folder), size, device, "choose another device")
    weights: dict[str, Tensor] = {}
    for file in files:
        with _safetensors_errors(file), within_memory(f"{file} does not fit; choose another device"):
            found = load_file(file, device=str(device))
        weights |= {name.removeprefix(PREFIX): tensor for name, tensor in found.items()}
    check_weights(weights, shapes, folder)
    with torch.device("meta"):
        model = LanguageModel(config)
    if dtype is not None:
        keep = fp32_parameter_names(model)
        for name, tensor in weights.items():
            weights[name] = tensor.to(torch.promote_types(dtype, torch.float32) if name in keep else dtype)
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(True).eval()


def steps(run: Path) -> list[Path]:
    """Return the checkpoint folders of a training run, oldest first."""
    return sorted(path for path in run.glob("step-*") if STEP.fullmatch(path.name))


def remove(folder: Path) -> None:
    """Remove a checkpoint atomically."""
    tmp = temporary_path(folder)
    folder.rename(tmp)
    remove_temporary(tmp)


def newest(folder: Path) -> Path:
    """Return the folder itself, the newest checkpoint of a training run, or the folder of a model of the package."""
    folder = pretrained.find(folder)
    return folder if (folder / "config.json").exists() else [folder, *steps(folder)][-1]


def read_config(folder: Path) -> LanguageModelConfig:
    """Read the model's configuration from config.json."""
    file = folder / "config.json"
    check_manifest(folder, ["config.json"])
    try:
        plain = read_json(file)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {one_line(error)}") from error
    kind = plain.get("model_type") if isinstance(plain, dict) else None
    if kind != MODEL_TYPE:
        raise CheckpointError(f"{file} describes a {kind or 'nameless'} model, not a {MODEL_TYPE}")
    try:
        if LANGUAGE_MODEL not in plain and (others := PARTS.keys() & plain.keys()):
            raise ValueError(f"it is a network of the kind {min(others)}, not a language model")
        config = from_plain(LanguageModelConfig, plain.get(LANGUAGE_MODEL, {}))
        weight_shapes(config)  # raises an error if the parts do not fit together
        return config
    except (ValueError, RuntimeError) as error:  # torch raises the latter for a model too large for any machine
        raise CheckpointError(f"{file}: {one_line(error)}") from error


def check_weights(weights: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], where: Any) -> None:
    """Refuse weights that are not exactly those of the model, naming the first that differs."""
    for name, shape in shapes.items():
        if name not in weights:
            raise CheckpointError(f"{where} lacks the weight {name} {shape}")
        if tuple(weights[name].shape) != shape:
            raise CheckpointError(f"{where}: {name} is {tuple(weights[name].shape)}, the configuration wants {shape}")
        if weights[name].dtype not in FLOATS:
            raise CheckpointError(f"{where}: {name} holds {weights[name].dtype}, not floating-point numbers")
    for name in weights:
        if name not in shapes:
            raise CheckpointError(f"{where} holds a weight that the model does not have: {name}")


def weight_files(folder: Path) -> list[Path]:
    """Return the path of model.safetensors, or those in its index: large models come in several files."""
    file, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if file.exists() or not index.exists():
        return [file]
    try:
        return sorted({folder / Path(name).name for name in read_json(index)["weight_map"].values()})
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{index} is damaged or not an index of weights: {one_line(error)}") from error


def check_weight_files(
    folder: Path, shapes: dict[str, tuple[int, ...]], wanted: str = "LanguageModel"
) -> tuple[list[Path], int]:
    """Return the files of the weights and their total size; refuse changed files and headers of other weights.

    `wanted` is the class of the model that they are for.
    """
    from safetensors import safe_open

    files, found, size = weight_files(folder), {}, 0
    check_manifest(folder, [file.name for file in files])
    for file in files:
        with _safetensors_errors(file):
            size += check_regular(file)
            with safe_open(file, framework="pt") as header:
                shapes_in_file = {name: header.get_slice(name).get_shape() for name in header.keys()}  # noqa: SIM118
        for name, shape in shapes_in_file.items():
            if not name.startswith(PREFIX):
                architectures = read_json(folder / "config.json").get("architectures") or ()
                if head := next((head for head in HEADS if f"Mosaic{head}" in architectures), None):
                    remedy = f"open it with AutoModel{head}"
                    raise CheckpointError(f"{folder} holds a Mosaic{head}, not a {wanted}; {remedy}")
                raise CheckpointError(f"{folder} holds a weight that the model does not have: {name}")
            found[name.removeprefix(PREFIX)] = torch.empty(shape, device="meta")
    check_weights(found, shapes, folder)
    return files, size


@contextmanager
def _safetensors_errors(file: Path) -> Iterator[None]:
    """Turn errors of reading safetensors into one line."""
    from safetensors import SafetensorError

    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} is not a whole checkpoint: it has no {file.name}") from None
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {one_line(error)}") from error


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer; its `name` tells it from other models that are loaded with it."""

    name: str
    folder: Path
    model: LanguageModel
    tokenizer: Tokenizer

    @classmethod
    def open(cls, run: Path, *, name: str | None = None, device: str | torch.device = "cpu") -> "LoadedModel":
        """Load the newest checkpoint of a training run, a checkpoint folder, or a model of the package by its name."""
        folder = newest(run)
        if not folder.exists():
            names = pretrained.NAMES if len(run.parts) == 1 else ()
            remedy = did_you_mean(str(run), names, otherwise="mosaics train makes one")
            raise UserError(f"there is no run {run}; {remedy}")
        model = load(folder, device=device)
        for weight, tensor in model.named_parameters():
            if not tensor.isfinite().all():
                raise UserError(f"{folder} is damaged: {weight} contains NaN or Inf")
        if not (folder / "tokenizer.json").exists():
            remedy = "put that of its training data there, as mosaics convert --tokenizer does"
            raise UserError(f"{folder} has no tokenizer.json: {remedy}")
        tokenizer = Tokenizer.load(folder)
        if tokenizer.vocabulary > model.config.vocabulary:
            sizes = f"{tokenizer.vocabulary:,} tokens, and the model {model.config.vocabulary:,}"
            raise UserError(f"{folder}: its tokenizer has {sizes}; they do not belong together")
        return cls(name or Path(os.path.abspath(run)).name, folder, model, tokenizer)

    def fingerprint(self) -> str:
        """A checksum of the weights, the configuration and the tokenizer, as they are now."""
        digest = hashlib.sha256(json.dumps(to_plain(self.model.config), sort_keys=True).encode())
        digest.update(self.tokenizer.fingerprint.encode())
        for name, weight in self.model.state_dict().items():
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def check_tokenizer_of(self, corpus: Corpus) -> None:
        """Refuse a corpus that was prepared with another tokenizer."""
        theirs = corpus.manifest["tokenizer"]
        if theirs["fingerprint"] != self.tokenizer.fingerprint:
            names = f"{theirs['name']}, and {self.folder} reads those of {self.tokenizer.name}"
            raise UserError(f"{corpus.folder} holds tokens of {names}; prepare it with --tokenizer {self.folder}")


def unique_names(runs: Sequence[str | Path]) -> dict[str, Path]:
    """Map a unique name, made of the last parts of its path, to each run."""
    if not runs:
        raise UserError("name at least one run")
    paths = [Path(run).resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"{run} is named twice")
    depth = next(d for d in range(1, 99) if len({path.parts[-d:] for path in paths}) == len(paths))
    return {"/".join(path.parts[-depth:]): Path(run) for run, path in zip(runs, paths, strict=True)}


def iter_models(runs: Mapping[str, Path], *, device: str | torch.device = "cpu") -> Iterator[LoadedModel]:
    """Load one run at a time: at most two are in memory, the last one and the next."""
    for name, run in runs.items():
        yield LoadedModel.open(run, name=name, device=device)
