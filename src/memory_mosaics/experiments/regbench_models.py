"""The architectures of RegBench by name, as Akyürek et al. 2024 and the Memory Mosaics paper trained them.

    memory-mosaic     contextual and persistent memories, without biases, with the authors' initial values
    all others        a mixer in the one backbone: layer norms and maps with biases, GPT-2's feed-forward network, tied
                      embeddings with dropout 0.1, all matrices initialised with standard deviation 0.02; attention and
                      linear attention have learned positions, and dropout 0.1 on their weights too
    ...-as-published  what the published code does where it does not do what its paper says: of any stack of LSTMs or
                      Mambas one layer is used, without norm, residual or feed-forward network, and RWKV's decay grows

A name with a dot is a mixer of your own: `my_package.MyMixerConfig`, put into the same backbone.
"""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import models
from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.mixers.attention import LearnedPositionsConfig, MLPConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.rwkv import RWKVConfig
from memory_mosaics.mixers.state_space import MambaConfig
from memory_mosaics.tasks.regbench import VOCABULARY

CONTEXT = 1000  # no sequence is longer than 949 tokens
POSITIONS = 4098  # learned, of which so many are used
DROPOUT = 0.1


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a model. Some mixers have no heads: for them the number says nothing."""

    blocks: int
    heads: int
    width: int


Build = Callable[[Size], LanguageModelConfig]
Mixer = Callable[[Size], MixerConfig]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How a model of some size is built, and what it is trained with unless told otherwise."""

    label: str
    config: Build
    blocks: int = 4
    heads: int | None = None  # None: it has none
    width: int = 128
    weight_decay: float = 0.1
    learning_rate: float = 2.5e-4
    clip: float | None = None  # largest norm of the gradient
    stacks: bool = True  # of any depth; otherwise it is one mixer, whatever is asked for
    compiles: bool = True  # what the compiler makes of it is faster


def mosaic(size: Size) -> LanguageModelConfig:
    """A Memory Mosaic with the authors' initial values, which memorises less than one with those of this library.

    Dropout on weights and on what is added is 0.2, where they have 0.05; docs/LOG.md has what either is worth.
    """
    sizes = {"blocks": size.blocks, "heads": size.heads, "width": size.width, "slots": 7 * size.width // 2}
    config = models.memory_mosaic(**sizes, vocabulary=len(VOCABULARY), context=CONTEXT, dropout=0.2)
    return replace(config, init="authors", output_norm="scaled")


def backbone(
    size: Size, *, mixer: Mixer, positions: MixerConfig | None = None, smaller: bool = True
) -> LanguageModelConfig:
    """A mixer in the published backbone. `smaller`: its last map starts divided by sqrt(2 blocks)."""
    return LanguageModelConfig(
        vocabulary=len(VOCABULARY),
        width=size.width,
        blocks=size.blocks,
        context=CONTEXT,
        bias=True,
        dropout=DROPOUT,
        residual_dropout=0.0,
        embedding_dropout=DROPOUT,
        positions=positions,
        sequence_mixer=mixer(size),
        channel_mixer=MLPConfig(),
        init="gpt2" if smaller else "gpt2-channel",
    )


def alone(size: Size, *, mixer: MixerConfig) -> LanguageModelConfig:
    """Embedding, one mixer, the embedding again, with the initial values of PyTorch or of the mixer's own library."""
    return LanguageModelConfig(
        vocabulary=len(VOCABULARY),
        width=size.width,
        blocks=1,
        context=CONTEXT,
        sequence_mixer=mixer,
        block="bare",
        output_norm="none",
        init="as-built",
    )


def _published(name: str, *, label: str = "{}", **defaults: Any) -> Architecture:
    """An architecture of the table of models in the published backbone."""
    kind = models.ARCHITECTURES[name]
    part = defaults.pop("mixer", None) or (lambda size: models.mixer_config(kind.mixer, size.heads))
    options = {option: defaults.pop(option) for option in ("positions", "smaller") if option in defaults}
    config = defaults.pop("config", partial(backbone, mixer=part, **options))
    heads: dict[str, Any] = {"heads": 2} if kind.has_heads else {}
    return Architecture(label=label.format(kind.label), config=config, compiles=kind.compiles, **heads | defaults)


_AS_PUBLISHED = "{}, as published"
_table = LearnedPositionsConfig(context=POSITIONS)

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": _published("memory-mosaic", config=mosaic, heads=8, learning_rate=5e-4, clip=1.0),
    "transformer": _published("transformer", positions=_table, blocks=8, learning_rate=1e-4),
    "mamba": _published("mamba", mixer=lambda size: MambaConfig(bias=False)),
    "s4d": _published("s4d", smaller=False, blocks=2, learning_rate=1e-4),
    "rwkv": _published("rwkv", smaller=False),
    "linear-transformer": _published("linear-transformer", positions=_table),
    "h3": _published("h3", smaller=False, blocks=2),
    "gla": _published("gla"),
    "hyena": _published("hyena", weight_decay=0.01, learning_rate=1e-4),
    "lstm": _published("lstm", blocks=2),
    "retnet": _published("retnet"),
    **{
        f"{name}-as-published": _published(
            name, label=_AS_PUBLISHED, config=partial(alone, mixer=mixer), blocks=1, width=width, stacks=False
        )
        for name, mixer, width in (("mamba", MambaConfig(), 512), ("lstm", LSTMConfig(), 256))
    },
    "rwkv-as-published": _published(
        "rwkv", label=_AS_PUBLISHED, mixer=lambda size: RWKVConfig(as_published=True), smaller=False
    ),
}
ELEVEN = tuple(name for name in ARCHITECTURES if not name.endswith("-as-published"))


def architecture(name: str) -> Architecture:
    """One of those above, or a mixer of your own by its dotted path."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if "." in name:
        return _own(name)
    hint = models.did_you_mean(name, ARCHITECTURES)
    raise UserError(f"no architecture {name!r}; {hint} (your own has a dotted path: my_package.MyMixerConfig)")


def _own(path: str) -> Architecture:
    found = _import_config(path)
    headed = is_dataclass(found) and "heads" in {field.name for field in fields(found)}

    def mixer(size: Size) -> MixerConfig:
        given = {"heads": size.heads} if headed else {}
        return found(**given) if isinstance(found, type) else replace(found, **given)  # type: ignore[type-var]

    label = path.rpartition(".")[2].removesuffix("Config")
    return Architecture(label=label, config=partial(backbone, mixer=mixer), heads=2 if headed else None)


def check_architecture(name: str, size: Size) -> None:
    """Refuse parts that do not fit together before anything is trained, and a mixer of your own that is not one."""
    kind = architecture(name)
    if name not in ARCHITECTURES:
        return _check_causal(name, partial(kind.config, replace(size, blocks=1)))
    try:
        weight_shapes(kind.config(size))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error


def _import_config(path: str) -> Any:
    """Return the configuration with this dotted path, or the class of it."""
    module, _, name = path.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for a script in this folder
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # it may do anything
        raise UserError(f"architecture {path} cannot be imported: {one_line(error)}") from error
    if not (isinstance(found, MixerConfig) or (isinstance(found, type) and issubclass(found, MixerConfig))):
        raise UserError(f"architecture {path} is no MixerConfig, but {found!r}; docs/adding_a_mixer.md says how")
    return found


def fingerprint(path: str) -> str:
    """Return a hash of the file that a mixer of your own is written in: another one is another mixer."""
    found = _import_config(path)
    module = sys.modules[(found if isinstance(found, type) else type(found)).__module__]
    return sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]


@torch.no_grad()
def _check_causal(name: str, config: Callable[[], LanguageModelConfig], *, time: int = 24, seen: int = 15) -> None:
    """Refuse a model that fails, whose logits have another shape, or whose answers depend on what follows."""
    tokens = torch.randint(1, len(VOCABULARY), (3, time), generator=torch.Generator().manual_seed(0))
    others = torch.cat([tokens[:, :seen], tokens[:, seen:].flip(1)], dim=1)
    try:
        model = config().build().eval()
        logits, changed = (model(text)[0] for text in (tokens, others))
    except Exception as error:  # it may do anything
        raise UserError(f"{name}: {one_line(error)}; docs/adding_a_mixer.md says what a mixer is") from error
    if logits.shape != (3, time, len(VOCABULARY)):
        raise UserError(f"{name} gives answers of shape {tuple(logits.shape)}; docs/adding_a_mixer.md says of which")
    if logits.isfinite().all() and not torch.allclose(logits[:, :seen], changed[:, :seen], rtol=1e-3, atol=1e-4):
        raise UserError(f"{name} looks ahead: its answer to a token changes with the tokens that follow")
