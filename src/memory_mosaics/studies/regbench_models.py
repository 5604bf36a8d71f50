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
from math import e, inf

import torch
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig
from memory_mosaics.data.regbench import VOCABULARY
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig
from memory_mosaics.memory import PersistentMemory
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
from memory_mosaics.scales import Scale
from memory_mosaics.storage import State
from memory_mosaics.studies.regbench_own import imported, tried

CONTEXT = 1000  # no sequence is longer than 949 tokens
POSITIONS = 4098  # learned, of which so many are used
DROPOUT, STD = 0.1, 0.02


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a model. Some mixers have no heads: for them the number says nothing."""

    blocks: int
    heads: int
    width: int


Build = Callable[[Size], LanguageModel]
Mixer = Callable[[Size], MixerConfig]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How a model of some size is built, and what it is trained with unless told otherwise."""

    label: str
    build: Build
    blocks: int = 4
    heads: int | None = None  # None: it has none
    width: int = 128
    weight_decay: float = 0.1
    learning_rate: float = 2.5e-4
    clip: float = inf  # largest norm of the gradient
    stacks: bool = True  # of any depth; otherwise it is one mixer, whatever is asked for
    compiles: bool = True  # what the compiler makes of it is faster


class Divided(nn.Module):
    """The last norm of a model whose logits begin small: features divided by sqrt(width)."""

    def __init__(self, norm: nn.LayerNorm):
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) / x.shape[-1] ** 0.5


def mosaic(size: Size) -> LanguageModel:
    """A Memory Mosaic that begins as the authors', which learns less by heart than one with the values of this library.

    Slots have unit norm, matrices 1/sqrt(inputs), logits are divided by sqrt(width). Dropout on weights and on what is
    added is 0.2, where they have 0.05; docs/LOG.md has what either is worth.
    """
    sizes = {"blocks": size.blocks, "heads": size.heads, "width": size.width, "slots": 7 * size.width // 2}
    config = memory_mosaic(**sizes, vocabulary=len(VOCABULARY), context=CONTEXT, dropout=0.2)
    model = LanguageModel(config)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            last = name.endswith("combine.map")
            nn.init.normal_(module.weight, std=module.in_features**-0.5 / (size.blocks**0.5 if last else 1))
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=size.width**-0.5)
        elif isinstance(module, PersistentMemory):
            for slots in (module.keys, module.values):
                nn.init.normal_(slots, std=slots.shape[-1] ** -0.5)
        elif isinstance(module, Scale):
            module.set(torch.full_like(module.theta, e**2 if name.endswith("sharpness") else e**-0.5))
    model.register_module("norm", Divided(model.norm))
    return model


def backbone(
    size: Size, *, mixer: Mixer, positions: MixerConfig | None = None, bias: bool = True, smaller: bool = True
) -> LanguageModel:
    """A mixer in the published backbone. `smaller`: its last map begins divided by sqrt(2 blocks)."""
    config = LanguageModelConfig(
        vocabulary=len(VOCABULARY),
        width=size.width,
        blocks=size.blocks,
        context=CONTEXT,
        bias=True,
        positions=DroppedInputsConfig(share=DROPOUT, positions=positions),
        sequence_mixer=OwnConfig(mixer=mixer(size), dropout=DROPOUT, bias=bias),
        channel_mixer=MLPConfig(),
    )
    model = LanguageModel(config)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            last = name.endswith(".combine") and (smaller or "channel_mixer" in name)
            nn.init.normal_(module.weight, std=STD / (2 * size.blocks) ** 0.5 if last else STD)
    return model


class Alone(nn.Module):
    """A block that is its mixer: no norm, no residual, nothing after it."""

    def __init__(self, mixer: nn.Module):
        super().__init__()
        self.sequence_mixer = mixer

    def forward(
        self, x: Tensor, state: tuple[State, State] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[State, State]]:
        y, own = self.sequence_mixer(x, state[0] if state else None, mask)
        return y, (own, ())


def alone(size: Size, *, mixer: MixerConfig) -> LanguageModel:
    """Embedding, one mixer, the embedding again. All begin as PyTorch or the mixer's own library has it."""
    config = LanguageModelConfig(
        vocabulary=len(VOCABULARY), width=size.width, blocks=1, context=CONTEXT, sequence_mixer=mixer
    )
    model = LanguageModel(config)
    model.embedding.reset_parameters()
    model.blocks = nn.ModuleList([Alone(mixer.build(size.width))])
    model.register_module("norm", nn.Identity())
    return model


def _headed(config: Callable[..., MixerConfig]) -> Mixer:
    return lambda size: config(heads=size.heads)


_table = LearnedPositionsConfig(context=POSITIONS)

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": Architecture(label="Memory Mosaic", build=mosaic, heads=8, learning_rate=5e-4, clip=1.0),
    "transformer": Architecture(
        label="transformer, learned positions",
        build=partial(backbone, mixer=_headed(AttentionConfig), positions=_table),
        blocks=8,
        heads=2,
        learning_rate=1e-4,
    ),
    "mamba": Architecture(label="Mamba", build=partial(backbone, mixer=lambda size: MambaConfig(), bias=False)),
    # Complex numbers and Fourier transforms are nothing for the compiler.
    "s4d": Architecture(
        label="S4D",
        build=partial(backbone, mixer=lambda size: S4DConfig(), smaller=False),
        blocks=2,
        learning_rate=1e-4,
        compiles=False,
    ),
    "rwkv": Architecture(label="RWKV", build=partial(backbone, mixer=lambda size: RWKVConfig(), smaller=False)),
    "linear-transformer": Architecture(
        label="linear transformer",
        build=partial(backbone, mixer=_headed(LinearTransformerConfig), positions=_table),
        heads=2,
    ),
    "h3": Architecture(
        label="H3",
        build=partial(backbone, mixer=lambda size: H3Config(), smaller=False),
        blocks=2,
        compiles=False,
    ),
    "gla": Architecture(label="GLA", build=partial(backbone, mixer=_headed(GLAConfig)), heads=2),
    "hyena": Architecture(
        label="Hyena",
        build=partial(backbone, mixer=lambda size: HyenaConfig()),
        weight_decay=0.01,
        learning_rate=1e-4,
        compiles=False,
    ),
    # The compiler sees an LSTM as one op, and computes it again to go back.
    "lstm": Architecture(
        label="LSTM", build=partial(backbone, mixer=lambda size: LSTMConfig()), blocks=2, compiles=False
    ),
    "retnet": Architecture(label="RetNet", build=partial(backbone, mixer=_headed(RetNetConfig)), heads=2),
    "mamba-as-published": Architecture(
        label="Mamba, as published", build=partial(alone, mixer=MambaConfig()), blocks=1, width=512, stacks=False
    ),
    "lstm-as-published": Architecture(
        label="LSTM, as published",
        build=partial(alone, mixer=LSTMConfig()),
        blocks=1,
        width=256,
        stacks=False,
        compiles=False,
    ),
    "rwkv-as-published": Architecture(
        label="RWKV, as published",
        build=partial(backbone, mixer=lambda size: RWKVConfig(as_published=True), smaller=False),
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
    return Architecture(label=label, build=partial(backbone, mixer=mixer), heads=2 if headed else None)


def check(name: str, size: Size) -> None:
    """Refuse parts that do not fit together, before anything is trained; and a mixer of your own that is none."""
    kind = architecture(name)
    if name not in ARCHITECTURES:
        return tried(name, partial(kind.build, replace(size, blocks=1)))
    try:
        with torch.device("meta"):
            kind.build(size)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error
