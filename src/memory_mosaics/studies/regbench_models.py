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
from difflib import get_close_matches
from functools import partial

from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.mixers.attention import AttentionConfig, LearnedPositionsConfig
from memory_mosaics.mixers.hyena import HyenaConfig
from memory_mosaics.mixers.linear_attention import GLAConfig, LinearTransformerConfig, RetNetConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.mamba import MambaConfig
from memory_mosaics.mixers.mlp import MLPConfig
from memory_mosaics.mixers.own import DroppedInputsConfig, OwnConfig
from memory_mosaics.mixers.rwkv import RWKVConfig
from memory_mosaics.mixers.state_space import H3Config, S4DConfig
from memory_mosaics.presets import memory_mosaic
from memory_mosaics.studies.regbench_own import imported, tried
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
    config = memory_mosaic(**sizes, vocabulary=len(VOCABULARY), context=CONTEXT, dropout=0.2)
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


def _headed(config: Callable[..., MixerConfig]) -> Mixer:
    return lambda size: config(heads=size.heads)


_table = LearnedPositionsConfig(context=POSITIONS)

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": Architecture(label="Memory Mosaic", config=mosaic, heads=8, learning_rate=5e-4, clip=1.0),
    "transformer": Architecture(
        label="transformer, learned positions",
        config=partial(backbone, mixer=_headed(AttentionConfig), positions=_table),
        blocks=8,
        heads=2,
        learning_rate=1e-4,
    ),
    "mamba": Architecture(label="Mamba", config=partial(backbone, mixer=lambda size: MambaConfig(), bias=False)),
    # Complex numbers and Fourier transforms are nothing for the compiler.
    "s4d": Architecture(
        label="S4D",
        config=partial(backbone, mixer=lambda size: S4DConfig(), smaller=False),
        blocks=2,
        learning_rate=1e-4,
        compiles=False,
    ),
    "rwkv": Architecture(label="RWKV", config=partial(backbone, mixer=lambda size: RWKVConfig(), smaller=False)),
    "linear-transformer": Architecture(
        label="linear transformer",
        config=partial(backbone, mixer=_headed(LinearTransformerConfig), positions=_table),
        heads=2,
    ),
    "h3": Architecture(
        label="H3",
        config=partial(backbone, mixer=lambda size: H3Config(), smaller=False),
        blocks=2,
        compiles=False,
    ),
    "gla": Architecture(label="GLA", config=partial(backbone, mixer=_headed(GLAConfig)), heads=2),
    "hyena": Architecture(
        label="Hyena",
        config=partial(backbone, mixer=lambda size: HyenaConfig()),
        weight_decay=0.01,
        learning_rate=1e-4,
        compiles=False,
    ),
    # The compiler sees an LSTM as one op, and computes it again to go back.
    "lstm": Architecture(
        label="LSTM", config=partial(backbone, mixer=lambda size: LSTMConfig()), blocks=2, compiles=False
    ),
    "retnet": Architecture(label="RetNet", config=partial(backbone, mixer=_headed(RetNetConfig)), heads=2),
    "mamba-as-published": Architecture(
        label="Mamba, as published", config=partial(alone, mixer=MambaConfig()), blocks=1, width=512, stacks=False
    ),
    "lstm-as-published": Architecture(
        label="LSTM, as published",
        config=partial(alone, mixer=LSTMConfig()),
        blocks=1,
        width=256,
        stacks=False,
        compiles=False,
    ),
    "rwkv-as-published": Architecture(
        label="RWKV, as published",
        config=partial(backbone, mixer=lambda size: RWKVConfig(as_published=True), smaller=False),
    ),
}
ELEVEN = tuple(name for name in ARCHITECTURES if not name.endswith("-as-published"))


def architecture(name: str) -> Architecture:
    """One of those above, or a mixer of your own by its dotted path."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if "." in name:
        return _own(name)
    near = get_close_matches(name, ARCHITECTURES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ARCHITECTURES)}"
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
