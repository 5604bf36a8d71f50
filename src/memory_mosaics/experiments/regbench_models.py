"""The architectures of RegBench by name, as Akyürek et al. 2024 and the Memory Mosaics paper trained them.

    memory-mosaic     contextual and persistent memories, without biases, with the authors' initial values
    all others        a mixer in the one backbone: layer norms and maps with biases, GPT-2's feed-forward network, tied
                      embeddings with dropout 0.1, all matrices initialised with standard deviation 0.02; attention and
                      linear attention have learned positions, and dropout 0.1 on their weights too
    ...-as-published  what the published code does where it does not do what its paper says: of any stack of LSTMs or
                      Mambas one layer is used, without norm, residual or feed-forward network, and RWKV's decay grows

A name with a dot is a mixer of your own: `my_package.MyMixerConfig`, put into the same backbone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from memory_mosaics import models
from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.own_mixers import check_causal, own_mixer
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.mixers.attention import LearnedPositionsConfig, MLPConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.rwkv import RWKVConfig
from memory_mosaics.mixers.state_space import MambaConfig
from memory_mosaics.norms import NoNormConfig, ScaledNormConfig
from memory_mosaics.tasks.regbench import VOCABULARY

CONTEXT = 1000  # no sequence is longer than 949 tokens
POSITIONS = 4098  # learned, of which so many are used
DROPOUT = 0.1


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How a model of some size is built, and what it is trained with unless told otherwise."""

    label: str
    config: Callable[..., LanguageModelConfig]  # of blocks, heads and width
    blocks: int = 4
    heads: int | None = None  # None: it has none
    width: int = 128
    weight_decay: float = 0.1
    learning_rate: float = 2.5e-4
    clip: float | None = None  # largest norm of the gradient
    stacks: bool = True  # of any depth; otherwise it is one mixer, whatever is asked for
    compiles: bool = True  # what the compiler makes of it is faster


def mosaic(*, width: int, **sizes: int) -> LanguageModelConfig:
    """A Memory Mosaic with the authors' initial values, which memorises less than one with those of this library.

    Dropout on weights and on what is added is 0.2, where they have 0.05; docs/LOG.md has what either is worth.
    """
    sizes |= {"width": width, "slots": 7 * width // 2}
    config = models.memory_mosaic(**sizes, vocabulary=len(VOCABULARY), context=CONTEXT, dropout=0.2)
    return replace(config, init="authors", output_norm=ScaledNormConfig())


def backbone(
    *,
    blocks: int,
    heads: int,
    width: int,
    mixer: Callable[[int], MixerConfig],
    positions: MixerConfig | None = None,
    smaller: bool = True,
) -> LanguageModelConfig:
    """A mixer, given by the number of heads, in the published backbone.

    `smaller`: its last map starts divided by sqrt(2 blocks).
    """
    return LanguageModelConfig(
        vocabulary=len(VOCABULARY),
        width=width,
        blocks=blocks,
        context=CONTEXT,
        bias=True,
        dropout=DROPOUT,
        residual_dropout=0.0,
        embedding_dropout=DROPOUT,
        positions=positions,
        sequence_mixer=mixer(heads),
        channel_mixer=MLPConfig(),
        init="gpt2" if smaller else "gpt2-channel",
    )


def alone(*, width: int, mixer: MixerConfig, **_: int) -> LanguageModelConfig:
    """Embedding, one mixer, the embedding again, with the initial values of PyTorch or of the mixer's own library."""
    return LanguageModelConfig(
        vocabulary=len(VOCABULARY),
        width=width,
        blocks=1,
        context=CONTEXT,
        sequence_mixer=mixer,
        block="bare",
        output_norm=NoNormConfig(),
        init="as-built",
    )


def _published(name: str, *, label: str = "{}", **defaults: Any) -> Architecture:
    """An architecture of the table of models in the published backbone."""
    kind = models.ARCHITECTURES[name]
    part = defaults.pop("mixer", None) or partial(models.mixer_config, kind.mixer)
    options = {option: defaults.pop(option) for option in ("positions", "smaller") if option in defaults}
    config = defaults.pop("config", partial(backbone, mixer=part, **options))
    heads: dict[str, Any] = {"heads": 2} if models.has_heads(kind.mixer) else {}
    return Architecture(label=label.format(kind.label), config=config, compiles=kind.compiles, **heads | defaults)


_AS_PUBLISHED = "{}, as published"
_table = LearnedPositionsConfig(context=POSITIONS)

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": _published("memory-mosaic", config=mosaic, heads=8, learning_rate=5e-4, clip=1.0),
    "transformer": _published("transformer", positions=_table, blocks=8, learning_rate=1e-4),
    "mamba": _published("mamba", mixer=lambda heads: MambaConfig(bias=False)),
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
        "rwkv", label=_AS_PUBLISHED, mixer=lambda heads: RWKVConfig(as_published=True), smaller=False
    ),
}
ELEVEN = tuple(name for name in ARCHITECTURES if not name.endswith("-as-published"))


def architecture(name: str) -> Architecture:
    """One of those above, or a mixer of your own by its dotted path."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if "." in name:
        own = own_mixer(name)
        heads = 2 if own.has_heads else None
        return Architecture(label=own.label, config=partial(backbone, mixer=own.config), heads=heads)
    hint = models.did_you_mean(name, ARCHITECTURES)
    raise UserError(f"no architecture {name!r}; {hint} (your own has a dotted path: my_package.MyMixerConfig)")


@cache
def check_architecture(name: str, *, blocks: int, heads: int | None, width: int) -> None:
    """Refuse parts that do not fit together before anything is trained, and a mixer of your own that is not one."""
    kind = architecture(name)
    config = partial(kind.config, heads=1 if heads is None else heads, width=width)
    if name not in ARCHITECTURES:
        return check_causal(name, partial(config, blocks=1))
    try:
        weight_shapes(config(blocks=blocks))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error
