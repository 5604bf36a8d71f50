"""Convert checkpoints of the authors' code (facebookresearch/MemoryMosaics), with the same logits.

That code has three layouts of one architecture, recognised by the names of the weights: nanoMosaics, and the plain and
the fast form of its Library. A file is a `torch.save` dictionary with the weights under "model" and the sizes under
"model_args", the only options that their code builds a model from (nanoMosaics stores those of its trainer under
"config" too). Only tensors and plain values are ever unpickled, and what does not fit is refused: an option is used,
or known not to change the logits of a trained model, or named in an error.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Sequence
from importlib.resources import files
from math import log
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from memory_mosaics.checkpoint import CheckpointError, save
from memory_mosaics.config import ExtractorConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.extractors import ConvolutionConfig, TapsConfig
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig
from memory_mosaics.memory import ContextualMemoryConfig, PersistentMemoryConfig
from memory_mosaics.scales import Scale
from memory_mosaics.text.tokenizer import find_tokenizer

REFERENCE = yaml.safe_load(files("memory_mosaics").joinpath("reference_layouts.yaml").read_text("utf-8"))
MAX_VALUE_SHIFT = 64  # every step is a tap, for the Library's convolutions a matrix


def convert(source: Path, out: Path, *, tokenizer: str | None = None) -> Path:
    """Convert the authors' checkpoint `source` to a checkpoint folder, with the same logits.

    `tokenizer` (gpt2, bytes, or a folder) is saved with it, since their files contain none.
    """
    chosen = None if tokenizer is None else find_tokenizer(tokenizer)
    model = read_reference(source)
    if chosen is not None and chosen.vocabulary > model.config.vocabulary:
        sizes = f"{chosen.vocabulary:,} tokens, and the model {model.config.vocabulary:,}"
        raise UserError(f"tokenizer {tokenizer} has {sizes}; name the one that {source} was trained with")
    return save(model, out, tokenizer=chosen)


def read_reference(source: Path) -> LanguageModel:
    """Load a checkpoint of the authors' code as a LanguageModel in float32."""
    contents = _unpickle(source)
    try:
        reference = _Reference(contents)
        with torch.device("meta"):
            model = LanguageModel(reference.config())
        model.load_state_dict(reference.convert_weights(model), assign=True)
    except (ValueError, OverflowError) as error:
        raise CheckpointError(f"{source} cannot be converted: {one_line(error)}") from error
    return model.requires_grad_(True).eval()


def _unpickle(source: Path) -> Any:
    """Load what torch.save wrote, if it is tensors and plain values only."""
    if not source.is_file():
        reason = "is not a file" if source.exists() else "does not exist"
        raise CheckpointError(f"{source} {reason}; name a checkpoint file of the authors' code")
    try:
        zipped = zipfile.is_zipfile(source)
        if zipped:  # torch.load does not verify checksums
            with zipfile.ZipFile(source) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of {damaged} is wrong")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols
            return torch.load(source, weights_only=True, map_location="cpu", mmap=zipped)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"holds code or objects ({found[1]})" if found else "is damaged or a pickle that may hold code"
        raise CheckpointError(f"{source} {what}; nothing in it was run") from error
    except Exception as error:  # arbitrary bytes may raise any exception
        reason = one_line(error).split(". ")[0]  # without torch's advice, some of it dangerous
        raise CheckpointError(f"{source} is damaged or not a torch.save file: {reason}") from error


class _Reference:
    """A checkpoint of the authors. Whatever is wrong with it is a ValueError that names it."""

    def __init__(self, contents: Any):
        for entry in ("model", "model_args"):
            if not isinstance(contents, dict) or not isinstance(contents.get(entry), dict):
                raise ValueError(f"it has no dictionary {entry!r}, as checkpoints of the authors' code have")
        self.args: dict[Any, Any] = contents["model_args"]
        self.unused_args = set(self.args).difference(" ".join(REFERENCE["ignored_args"].values()).split())
        self.weights = _strip_prefixes(contents["model"])
        layout = _find_layout(self.weights)
        self.nano, self.fast = layout == "nano", layout == "fast"
        self.names: dict[str, str] = REFERENCE["layouts"][layout]["weights"]
        self.weights = _parameters(self.weights, tuple(REFERENCE["layouts"][layout].get("buffers", ())))
        self.convolution = "blocks.0.attn.v_featurizer.conv.weight" in self.weights
        if self.convolution:  # the Library's other value extractor, with a matrix per tap
            self.names = self.names | {"value.map": "v_featurizer.conv"}
        self.mixed_keys = "blocks.0.attn.k_featurizer.linear.weight" in self.weights
        if self.mixed_keys:  # c W x_t + (1 - c) W x_t: the Library's value extractor used for keys, without a shift
            self.names = self.names | {"key.map": "k_featurizer.linear"}

    def their_name(self, name: str) -> str:
        """Return their name of one of our weights."""
        return re.sub(rf"\b({'|'.join(self.names)})\b", lambda part: self.names[part[1]], name)

    def config(self) -> LanguageModelConfig:
        """Return the configuration: sizes from the weights, which model_args must not contradict, and the context."""
        vocabulary, width = self._shape(self.their_name("embedding.weight"), 2)
        number = re.compile(rf"{self.names['blocks']}\.(\d+)\.")
        blocks = {found[1] for found in map(number.match, self.weights) if found}
        sharpness = self._shape(self.their_name("blocks.0.sequence_mixer.sharpness.theta"), 4 if self.nano else 1)
        if (heads := sharpness[1 if self.nano else 0]) == 0:
            raise ValueError("it has 0 heads")
        heads = self._check_arg("n_head", heads)
        if (context := self._number("block_size")) != int(context):
            raise ValueError(f"model_args say block_size={context!r}, which is not a whole number")
        config = LanguageModelConfig(
            vocabulary=self._check_arg("vocab_size", vocabulary),
            width=self._check_arg("n_embd", width),
            blocks=self._check_arg("n_layer", len(blocks)),
            sequence_mixer=ContextualMemoryConfig(heads=heads, value=TapsConfig() if self.nano else self._values()),
            channel_mixer=self._persistent(heads),
            context=int(context),
            dropout=float(self._number("dropout" if self.nano else "hd_dropout", 0.0)),
            bias=self._check_arg("bias", any(name.endswith(".bias") for name in self.weights)),
            tied=self._possible_ties()[0] if self.nano else self._check_arg("weight_tying", *self._possible_ties()),
            norm_placement="pre" if self.nano or self._option("pre_ln", True, (True, False)) else "post",
        )
        if not self.nano:
            self._option("v_leaky", False, (False,))  # leaky values: written by early trainers, in no model
        for name in filter(self.unused_args.__contains__, self.args):
            shown = name if isinstance(name, str) and name.isidentifier() else repr(name)
            raise ValueError(f"model_args say {shown}={self.args[name]!r}, an option whose meaning is not known here")
        return config

    def _values(self) -> ExtractorConfig:
        """Return the Library's values: c W x_t + (1 - c) W x_{t+shift}, or a convolution that ends at x_{t+shift}."""
        shift = self._option("v_shift", 1, range(1, MAX_VALUE_SHIFT + 1))
        self._keys()
        if not self.convolution:
            self._check_arg("v_fe_type", "lowrlinearconv")
            self._check_arg("v_kernel_size", 2)
            return TapsConfig(peek=shift)
        self._check_arg("v_fe_type", "linearconv")
        weight = self.their_name("blocks.0.sequence_mixer.value.map.weight")
        kernel = self._check_arg("v_kernel_size", self._shape(weight, 3)[2])
        self.kernel, self.taps = kernel, max(kernel, shift + 1)  # theirs and ours: missing taps are zero
        if kernel <= shift and weight.replace(".weight", ".bias") not in self.weights:
            raise ValueError(f"v_kernel_size={kernel} is not above v_shift={shift}: their logits are NaN (0 / 0)")
        return ConvolutionConfig(back=max(kernel - 1 - shift, 0), peek=shift)

    def _keys(self) -> None:
        """Check that the Library's options of keys agree with the weights; its fast form ignores them."""
        if self.fast:
            self.unused_args -= {"k_fe_type", "k_kernel_size"}
        elif self.mixed_keys:
            self._check_arg("k_fe_type", "lowrlinearconv")
            self._check_arg("k_kernel_size", 2)
        else:
            self._check_arg("k_fe_type", "linearconv")
            weight = self._shape(self.their_name("blocks.0.sequence_mixer.key.map.weight"), 3)
            if self._check_arg("k_kernel_size", weight[2]) != 1:
                raise ValueError(f"k_kernel_size={weight[2]}: keys that read several tokens have no counterpart here")

    def _persistent(self, heads: int) -> PersistentMemoryConfig | None:
        keys = self.their_name("blocks.0.channel_mixer.keys")
        if not self.nano and self._check_arg("attn_only", not any(".pmem." in name for name in self.weights)):
            self.unused_args -= {"pmem_size", "pmem_count"}
            return None
        if self.nano:
            memories, _, _, slots, _ = self._shape(keys, 5)
        else:
            _, _, slots, _ = self._shape(f"{keys}0", 4)
            memories = sum(name.startswith(keys) for name in self.weights)
        if 0 in (memories, slots):
            raise ValueError(f"it has {memories} memories of {slots} slots")
        slots, memories = self._check_arg("pmem_size", slots), self._check_arg("pmem_count", memories)
        return PersistentMemoryConfig(heads=heads, slots=slots, memories=memories)

    def convert_weights(self, model: LanguageModel) -> dict[str, Tensor]:
        """Return the weights of `model`, converted from theirs with shapes checked. None may be left over."""
        ours = {name: self._convert_weight(name, tuple(empty.shape)) for name, empty in model.state_dict().items()}
        if model.head is None:
            self.weights.pop(self.their_name("head.weight"), None)  # the embedding again
        if self.weights:
            raise ValueError(f"it holds a weight that its layout does not have: {next(iter(self.weights))}")
        # Copies: the loaded tensors are views of the file, and safetensors requires unshared memory.
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in ours.items()}

    def _convert_weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        theirs, ending = self.their_name(name), name.split("_mixer.")[-1]
        if ending.endswith(".bias") and theirs not in self.weights:
            return torch.zeros(shape)  # which maps have a bias depends on their version
        if ending in ("sharpness.theta", "combine.scale.theta", "key.decay.rate", "value.taps"):
            numbers = self._pop(theirs, (1, shape[0], 1, 1) if self.nano else shape[:1]).flatten()
            return self._per_head(name, numbers, shape)
        if ending in ("keys", "values"):
            memories, slots, heads, width = shape
            if self.nano:
                return self._pop(theirs, (memories, 1, heads, slots, width))[:, 0].transpose(1, 2)
            each = [self._pop(f"{theirs}{i}", (1, heads, slots, width)) for i in range(memories)]
            return torch.cat(each).transpose(1, 2)
        if ending == "value.map.weight" and self.convolution:
            taps = self._pop(theirs, (shape[1], shape[1], self.kernel)).unbind(dim=2)
            return F.pad(torch.cat(taps), (0, 0, shape[1] * (self.taps - self.kernel), 0))  # theirs are the last taps
        if ending == "value.map.bias" and self.convolution:  # one for the sum, given to the last tap
            width = shape[0] // self.taps
            return F.pad(self._pop(theirs, (width,)), (shape[0] - width, 0))
        if ending == "key.map.weight" and self.mixed_keys:
            self.weights.pop(theirs.replace("linear.weight", "coef"), None)
        elif ending == "key.map.weight" and not self.nano and not self.fast:
            return self._pop(theirs, (*shape, 1))[..., 0]
        if ending in ("norm.weight", "norm.bias") and not self.nano:  # the Library divides its logits by sqrt(width)
            return self._pop(theirs, shape) / shape[0] ** 0.5
        return self._pop(theirs, shape)

    def _per_head(self, name: str, numbers: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Convert one x per head, of exp(10 x), exp(20 x) or exp(-|10 x|) in both codes, which differ in caps."""
        if name.endswith("sharpness.theta"):
            nano_cap = log(65535) * (2 if "sequence_mixer" in name else 1)
            return numbers.clamp(max=(nano_cap if self.nano else 10) / 20)  # caps of log(beta)
        if name.endswith("scale.theta") and (10 * numbers > Scale.LARGEST).any():
            raise ValueError(f"{self.their_name(name)} is above {Scale.LARGEST / 10:.4g}, the largest that can be kept")
        if name.endswith("value.taps"):  # the first and the last
            return torch.cat([numbers[:, None], torch.zeros(shape[0], shape[1] - 2), 1 - numbers[:, None]], dim=1)
        return numbers

    def _pop(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self._shape(name, len(shape))
        if found != shape:
            raise ValueError(f"{name} is {found}, where the other weights want {shape}")
        return self.weights.pop(name)

    def _shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        if name not in self.weights:
            raise ValueError(f"it lacks the weight {name}")
        shape = tuple(self.weights[name].shape)
        if len(shape) != dimensions:
            raise ValueError(f"{name} is {shape}, not of {dimensions} dimensions")
        return shape

    def _possible_ties(self) -> tuple[bool, ...]:
        """Return whether embedding and output can be tied, the likely case first: equal ones may still be two."""
        head = self.weights.get(self.their_name("head.weight"))
        if head is None:
            return (True,)
        return (True, False) if torch.equal(head, self.weights[self.their_name("embedding.weight")]) else (False,)

    def _arg(self, name: str, default: Any = None) -> Any:
        """Return an option of model_args, which counts as used, or the default if it is not there or None."""
        self.unused_args.discard(name)
        value = self.args.get(name)
        return default if value is None else value

    def _check_arg(self, name: str, *possible: Any) -> Any:
        """Return the value found in the weights, which model_args may not contradict; of several, model_args decide."""
        value = self._arg(name, possible[0])
        if not isinstance(value, int | float | str) or value not in possible:
            raise ValueError(f"model_args say {name}={value!r}, the weights {' or '.join(map(repr, possible))}")
        return possible[possible.index(value)]

    def _option(self, name: str, default: Any, possible: Sequence[Any]) -> Any:
        """Return an option that the weights do not show, by default that of their code."""
        value = self._arg(name) if name in self.args else default
        if isinstance(value, int | float | str) and value in possible:
            return possible[possible.index(value)]
        between = " to " if isinstance(possible, range) else " or "
        values = f"is {possible[0]}" if len(possible) == 1 else f"are {possible[0]}{between}{possible[-1]}"
        raise ValueError(f"model_args say {name}={value!r}; convertible {values}")

    def _number(self, name: str, default: float | None = None) -> int | float:
        value = self._arg(name, default)
        if isinstance(value, int | float):
            return value
        raise ValueError(f"model_args must hold a number as {name}, not {value!r}")


def _strip_prefixes(model: dict[Any, Any]) -> dict[str, Tensor]:
    """Return the weights by name, without the prefixes of torch.compile and DDP."""
    weights: dict[str, Tensor] = {}
    for long, tensor in model.items():
        name = re.sub(r"^((_orig_mod|module)\.)+", "", str(long))
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
            raise ValueError(f"the weight {name} is not a dense tensor")
        if name in weights:
            raise ValueError(f"it holds the weight {name} twice")
        weights[name] = tensor.detach()
    return weights


def _find_layout(weights: dict[str, Tensor]) -> str:
    for layout, about in REFERENCE["layouts"].items():
        if any(about["name"] in name for name in weights):
            return layout
    if any(name.startswith("transformer.") for name in weights):
        raise ValueError("it is a nanoGPT transformer, not a Memory Mosaic")
    raise ValueError(f"unknown layout, with weights such as {', '.join(list(weights)[:3]) or 'none at all'}")


def _parameters(weights: dict[str, Tensor], buffers: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the parameters in float32, without buffers and aliases."""
    parameters = {name: tensor for name, tensor in weights.items() if not name.endswith(buffers)}
    for name, tensor in parameters.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} holds {tensor.dtype}, not real numbers")
        if not tensor.isfinite().all():
            raise ValueError(f"{name} contains NaN or Inf; convert an earlier checkpoint of that training")
        parameters[name] = tensor.float()
    alias = REFERENCE["alias"]
    for name in [name for name in parameters if name.endswith(alias[0])]:
        other = name.replace(*alias)
        if other in parameters and not torch.equal(parameters.pop(name), parameters[other]):
            raise ValueError(f"{name} is not the same as {other}")
    return parameters
