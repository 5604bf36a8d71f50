"""The architectures of RegBench by name, as Akyürek et al. 2024 and the Memory Mosaics paper trained them.

    memory-mosaic     contextual and persistent memories, without biases, with the authors' initial values
    all others        a mixer in the one backbone: layer norms and maps with biases, GPT-2's feed-forward network, tied
                      embeddings with dropout 0.1, all matrices beginning with deviation 0.02; the transformer and the
                      linear transformer have learned positions, and dropout 0.1 on their weights too
    ...-as-published  what the published code does where it does not do what its paper says: of any stack of LSTMs or
                      Mambas one layer is heard, without norm, residual or feed-forward network, and RWKV's decay grows

A name with a dot is a mixer of your own: `my_package.MyMixerConfig`, put into the same backbone.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

from memory_mosaics import models
from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.regbench_own import imported, tried
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.mixers.attention import LearnedPositionsConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.mamba import MambaConfig
from memory_mosaics.mixers.mlp import MLPConfig
from memory_mosaics.mixers.own import DroppedInputsConfig, OwnConfig
from memory_mosaics.mixers.rwkv import RWKVConfig
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
    size: Size, *, mixer: Mixer, positions: MixerConfig | None = None, bias: bool = True, smaller: bool = True
) -> LanguageModelConfig:
    """A mixer in the published backbone. `smaller`: its last map starts divided by sqrt(2 blocks)."""
    return LanguageModelConfig(
        vocabulary=len(VOCABULARY),
        width=size.width,
        blocks=size.blocks,
        context=CONTEXT,
        bias=True,
        positions=DroppedInputsConfig(share=DROPOUT, positions=positions),
        sequence_mixer=OwnConfig(mixer=mixer(size), dropout=DROPOUT, bias=bias),
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
    options = {option: defaults.pop(option) for option in ("positions", "bias", "smaller") if option in defaults}
    config = defaults.pop("config", partial(backbone, mixer=part, **options))
    heads: dict[str, Any] = {"heads": 2} if kind.has_heads else {}
    return Architecture(label=label.format(kind.label), config=config, compiles=kind.compiles, **heads | defaults)


_AS_PUBLISHED = "{}, as published"
_table = LearnedPositionsConfig(context=POSITIONS)

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": _published("memory-mosaic", config=mosaic, heads=8, learning_rate=5e-4, clip=1.0),
    "transformer": _published("transformer", positions=_table, blocks=8, learning_rate=1e-4),
    "mamba": _published("mamba", bias=False),
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
    found = imported(path)
    headed = is_dataclass(found) and "heads" in {field.name for field in fields(found)}

    def mixer(size: Size) -> MixerConfig:
        given = {"heads": size.heads} if headed else {}
        return found(**given) if isinstance(found, type) else replace(found, **given)  # type: ignore[type-var]

    label = path.rpartition(".")[2].removesuffix("Config")
    return Architecture(label=label, config=partial(backbone, mixer=mixer), heads=2 if headed else None)


def check(name: str, size: Size) -> None:
    """Refuse parts that do not fit together, before anything is trained; and a mixer of your own that is none."""
    kind = architecture(name)
    if name not in ARCHITECTURES:
        return tried(name, lambda: kind.config(replace(size, blocks=1)).build())
    try:
        weight_shapes(kind.config(size))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error
