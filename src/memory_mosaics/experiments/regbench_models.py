"""The architectures of RegBench by name, as Akyürek et al. 2024 and the Memory Mosaics paper trained them.

    memory-mosaic     contextual and persistent memories, without biases, with the authors' initial values
    all others        a mixer in the one backbone: layer norms and maps with biases, GPT-2's feed-forward network, tied
                      embeddings with dropout 0.1, all matrices initialised with standard deviation 0.02; attention and
                      linear attention have learned positions, and dropout 0.1 on their weights too
    ...-as-published  what the published code does where it does not do what its paper says: of any stack of LSTMs or
                      Mambas one layer is used, without norm, residual or feed-forward network, and RWKV's decay grows

A name with a dot is a mixer of your own: `my_package.MyMixerConfig`, put into the same backbone and trained as the
Memory Mosaic is, with its dropout, learning rate and clipping.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from memory_mosaics import models
from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.own_mixers import OwnMixer, check_own_mixer, find_architecture
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.mixers.attention import LearnedPositionsConfig, MLPConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.rwkv import RWKVConfig
from memory_mosaics.mixers.state_space import MambaConfig
from memory_mosaics.norms import NoNormConfig, ScaledNormConfig
from memory_mosaics.tasks.regbench import VOCABULARY

TOKENS: dict[str, Any] = {"vocabulary": len(VOCABULARY), "context": 1000}  # no sequence is longer than 949 tokens
POSITIONS = 4098  # learned ones, more than are used, as published
DROPOUT = 0.1
MOSAIC_DROPOUT = 0.2


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
    stacks: bool = True  # of any depth; false: one mixer, whatever depth is asked for
    compiles: bool = True  # torch.compile makes it faster


def mosaic(*, width: int, **sizes: Any) -> LanguageModelConfig:
    """A Memory Mosaic with the authors' initial values, which memorises less than one with those of this library.

    Dropout on weights and on what is added is 0.2, where they have 0.05; docs/LOG.md has what either is worth.
    """
    config = models.memory_mosaic(**sizes, **TOKENS, width=width, slots=7 * width // 2, dropout=MOSAIC_DROPOUT)
    return replace(config, init="authors", output_norm=ScaledNormConfig())


def backbone(
    *,
    blocks: int,
    heads: int | None,
    width: int,
    mixer: Callable[[Any], MixerConfig],
    positions: MixerConfig | None = None,
    scale_output: bool = True,
) -> LanguageModelConfig:
    """A mixer, given by the number of heads if it has heads, in the published backbone.

    `scale_output`: the initial values of its last map are divided by sqrt(2 blocks).
    """
    return LanguageModelConfig(
        **TOKENS,
        width=width,
        blocks=blocks,
        bias=True,
        dropout=DROPOUT,
        residual_dropout=0.0,
        embedding_dropout=DROPOUT,
        positions=positions,
        sequence_mixer=mixer(heads),
        channel_mixer=MLPConfig(),
        init="gpt2" if scale_output else "gpt2-channel",
    )


def bare_mixer(*, width: int, mixer: MixerConfig, **_: Any) -> LanguageModelConfig:
    """Embedding, one mixer, the embedding again, with the initial values of PyTorch or of the mixer's own library."""
    return LanguageModelConfig(
        **TOKENS,
        width=width,
        blocks=1,
        sequence_mixer=mixer,
        block="bare",
        output_norm=NoNormConfig(),
        init="as-built",
    )


def _published(
    name: str,
    *,
    mixer: Callable[[Any], MixerConfig] | None = None,
    positions: MixerConfig | None = None,
    scale_output: bool = True,
    **changes: Any,
) -> Architecture:
    """An architecture of the table of models in the published backbone."""
    kind = models.ARCHITECTURES[name]
    mixer = mixer or partial(models.mixer_config, kind.mixer)
    given = Architecture(
        label=kind.label,
        config=partial(backbone, mixer=mixer, positions=positions, scale_output=scale_output),
        heads=2 if models.has_heads(kind.mixer) else None,
        compiles=kind.compiles,
    )
    return replace(given, **changes)


_learned = LearnedPositionsConfig(context=POSITIONS)
ONE_MIXER: dict[str, Any] = {"blocks": 1, "stacks": False}

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": _published("memory-mosaic", config=mosaic, heads=8, learning_rate=5e-4, clip=1.0),
    "transformer": _published("transformer", positions=_learned, blocks=8, learning_rate=1e-4),
    "mamba": _published("mamba", mixer=lambda heads: MambaConfig(bias=False)),
    "s4d": _published("s4d", scale_output=False, blocks=2, learning_rate=1e-4),
    "rwkv": _published("rwkv", scale_output=False),
    "linear-transformer": _published("linear-transformer", positions=_learned),
    "h3": _published("h3", scale_output=False, blocks=2),
    "gla": _published("gla"),
    "hyena": _published("hyena", weight_decay=0.01, learning_rate=1e-4),
    "lstm": _published("lstm", blocks=2),
    "retnet": _published("retnet"),
    "mamba-as-published": _published(
        "mamba", label="Mamba, as published", config=partial(bare_mixer, mixer=MambaConfig()), width=512, **ONE_MIXER
    ),
    "lstm-as-published": _published(
        "lstm", label="LSTM, as published", config=partial(bare_mixer, mixer=LSTMConfig()), width=256, **ONE_MIXER
    ),
    "rwkv-as-published": _published(
        "rwkv", label="RWKV, as published", mixer=lambda heads: RWKVConfig(as_published=True), scale_output=False
    ),
}
ELEVEN = tuple(name for name in ARCHITECTURES if not name.endswith("-as-published"))


def architecture(name: str) -> Architecture:
    """One of those above, or a mixer of your own by its dotted path."""

    def own_architecture(own: OwnMixer) -> Architecture:
        def config(**sizes: Any) -> LanguageModelConfig:
            dropout = {"dropout": MOSAIC_DROPOUT, "residual_dropout": None, "embedding_dropout": 0.0}
            return replace(backbone(mixer=own.config, **sizes), **dropout)

        ours = ARCHITECTURES["memory-mosaic"]
        return replace(ours, label=own.label, config=config, heads=ours.heads if own.has_heads else None)

    return find_architecture(name, ARCHITECTURES, own_architecture)


@cache
def check_architecture(name: str, *, blocks: int, heads: int | None, width: int) -> None:
    """Refuse parts that do not fit together before anything is trained, and a mixer of your own that is not one."""
    config = partial(architecture(name).config, heads=heads, width=width)
    if name not in ARCHITECTURES:
        return check_own_mixer(name, partial(config, blocks=1))
    try:
        weight_shapes(config(blocks=blocks))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error
