"""The table of models: architectures by name, presets of them, and the recipes that train the presets.

`train`, `info`, `bench`, `curves`, RegBench, the figures and the tests read it. A new architecture is one line of
ARCHITECTURES, and then has presets like all others: NAME-tiny for a laptop, NAME-small, and NAME-12 at GPT-2's size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from math import e, prod
from typing import Any

from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, did_you_mean
from memory_mosaics.extractors import GatedAverageConfig, MixConfig, TapsConfig, head_width
from memory_mosaics.language_model import LanguageModelConfig, weight_count, weight_shapes
from memory_mosaics.memory import ContextualMemoryConfig, OutputGateConfig, PersistentMemoryConfig
from memory_mosaics.mixers.attention import (
    Alibi,
    AttentionConfig,
    LearnedPositionsConfig,
    MLPConfig,
    Rotary,
    SwiGLUConfig,
)
from memory_mosaics.mixers.delta_net import DeltaNetConfig, GatedDeltaNetConfig
from memory_mosaics.mixers.hyena import HyenaConfig
from memory_mosaics.mixers.linear_attention import GLAConfig, LinearTransformerConfig, RetNetConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.rwkv import RWKVConfig
from memory_mosaics.mixers.state_space import H3Config, MambaConfig, S4DConfig
from memory_mosaics.norms import RMSNormConfig
from memory_mosaics.scales import AdaptiveSharpnessConfig, ScaleConfig
from memory_mosaics.stores import Visibilities, Visibility, head_groups

GPT2_SIZES: dict[str, Any] = {"width": 768, "blocks": 12, "vocabulary": 50257}
POSITIONS: dict[str, Rotary | Alibi | None] = {"learned": None, "rotary": Rotary(), "alibi": Alibi(), "none": None}
DEPTHS = (1, 4, 8, 12, 18)  # of the paper's figure 7 and its appendix


def memory_mosaic(*, heads: int = 12, slots: int | None = None, **sizes: Any) -> LanguageModelConfig:
    """The Memory Mosaic of figure 6, right; by default with as many parameters as the `transformer` of its sizes.

    Here and below `sizes` are fields of LanguageModelConfig: width, blocks, vocabulary, context, dropout. Those that
    are not given are GPT-2's, but for a context of 512.
    """
    slots = matching_slots(transformer(heads=heads, **sizes)) if slots is None else slots
    channel_mixer = PersistentMemoryConfig(heads=heads, slots=slots)
    return LanguageModelConfig(
        **GPT2_SIZES | sizes, sequence_mixer=ContextualMemoryConfig(heads=heads), channel_mixer=channel_mixer
    )


def transformer(*, heads: int = 12, position: str = "learned", context: int = 512, **sizes: Any) -> LanguageModelConfig:
    """The transformer of figure 6, left: GPT-2 without bias. `position` is learned, rotary, alibi or none.

    Only learned positions have weights, and the default `memory_mosaic` has as many parameters as the transformer with
    them. `matching_slots(transformer(position="rotary", ...))` gives the slots that match one of the others.
    """
    if position not in POSITIONS:
        raise ValueError(f"no position code {position!r}; there are {', '.join(POSITIONS)}")
    config = baseline(partial(AttentionConfig, position=POSITIONS[position]), heads=heads, context=context, **sizes)
    return replace(config, positions=LearnedPositionsConfig(context=context)) if position == "learned" else config


def llama(*, key_value_heads: int | None = None, **sizes: Any) -> LanguageModelConfig:
    """A Llama-like transformer: attention with RoPE `with_swiglu`; `key_value_heads` below `heads` is grouped-query
    attention.
    """
    return with_swiglu(partial(AttentionConfig, key_value_heads=key_value_heads, position=Rotary()), **sizes)


def with_swiglu(
    mixer: Callable[..., MixerConfig], *, heads: int = 12, hidden: int | None = None, **sizes: Any
) -> LanguageModelConfig:
    """A sequence mixer in blocks with RMSNorm and SwiGLU; by default as large as the `transformer` of these sizes.

    The `hidden` width of SwiGLU is then a multiple of 64, or of 8, where the parameter counts differ by less than 1 %:
    GPUs are fastest so. Elsewhere it is the number that makes the counts most nearly equal. They then differ by 1.5
    width in every block at most, a share of 1 / (8 width) of a transformer.
    """

    def config(hidden: int) -> LanguageModelConfig:
        parts = {"sequence_mixer": mixer(heads=heads), "channel_mixer": SwiGLUConfig(hidden=hidden)}
        return LanguageModelConfig(**GPT2_SIZES | sizes, **parts, norm=RMSNormConfig())

    if hidden is not None:
        return config(hidden)
    return resize_channel_mixer(config(1), weight_count(transformer(**sizes, heads=1)))


def v2_memories(*, heads: int, width: int, context: int) -> ContextualMemoryConfig:
    """The contextual memories of v2: `heads` short-term and `heads` long-term memories as wide as those of attention.

    As printed from a context of 2,048 on: the short ones see the last 256 pairs, the long ones those of at least 64
    steps ago, in training of 64 to 256. Below 2,048 the window is an eighth of the context and the delays shrink with
    it, so that a small model has both kinds of memory too: a window of 256 would be all of a context of 256.
    """
    return ContextualMemoryConfig(
        heads=2 * heads,
        head_width=head_width(width, heads),
        key=GatedAverageConfig(),
        value=MixConfig(),
        sharpness=AdaptiveSharpnessConfig(speed=1.0),
        scale=ScaleConfig(initial=1.0, speed=1.0, largest=e**15),
        visibility=short_and_long(context),
    )


def short_window(context: int) -> int:
    """How many pairs short-term memories see: an eighth of the context, at most 256."""
    return max(1, min(256, context // 8))


def short_and_long(context: int) -> tuple[Visibility, Visibility]:
    """What the short-term and the long-term memories of v2 see."""
    window = short_window(context)
    delay = max(1, window // 4)
    return Visibility(window=window), Visibility(delay=delay, train_delay=(delay, window))


def has_v2_parts(memories: ContextualMemoryConfig) -> bool:
    """Whether these are short-term and long-term memories with the parts of v2, of any sizes, windows and delays."""
    match memories.visibility:
        case (Visibility(window=int()), Visibility(window=None)):
            printed = v2_memories(heads=1, width=1, context=4096)
            free = {name: getattr(memories, name) for name in ("heads", "head_width", "visibility", "dropout_of")}
            return replace(printed, **free) == memories
    return False


def memory_mosaic_v2(*, heads: int = 12, **sizes: Any) -> LanguageModelConfig:
    """Memory Mosaics v2 as printed (Zhang and Bottou 2025): short-term and long-term memories, SwiGLU and RMSNorm.

    By default as large as the `transformer` of these sizes. `heads` is the number of short-term memories, and that of
    long-term memories.
    """
    sizes = {"width": GPT2_SIZES["width"], "context": 512, "init": "v2"} | sizes
    memories = partial(v2_memories, width=sizes["width"], context=sizes["context"])
    return with_swiglu(memories, heads=heads, **sizes)


def as_large_as(
    twin: Callable[..., LanguageModelConfig], build: Callable[..., LanguageModelConfig], **sizes: Any
) -> LanguageModelConfig:
    """A model whose channel mixers are resized until it has as many parameters as its twin of the same sizes."""
    return resize_channel_mixer(build(**sizes), weight_count(twin(**sizes)))


RESIZED = {PersistentMemoryConfig: "slots", SwiGLUConfig: "hidden", MLPConfig: "expansion"}


def resize_channel_mixer(
    config: LanguageModelConfig, weights: int, count: Callable[[LanguageModelConfig], int] = weight_count
) -> LanguageModelConfig:
    """Resize the channel mixers so that `count` of the model is `weights`, as nearly as they can.

    Slots and hidden units are a multiple of 64, or of 8, where the counts then differ by less than 1 %. A model without
    a channel mixer, or with one of another kind, stays as it is.
    """
    mixer: Any = config.channel_mixer
    name = RESIZED.get(type(mixer))
    if name is None:
        return config

    def resized(size: int) -> LanguageModelConfig:
        value = size / config.width if name == "expansion" else size
        return replace(config, channel_mixer=replace(mixer, **{name: value}))

    smallest = count(resized(1))
    unit = count(resized(2)) - smallest
    exact, size = 1 + (weights - smallest) / unit, 1
    for multiple in (64, 8, 1):
        size = max(multiple, multiple * round(exact / multiple))
        if abs(exact - size) * unit < 0.01 * weights:
            break
    return resized(size)


def count_without_embeddings(config: LanguageModelConfig) -> int:
    """Return the number of parameters outside the tables of tokens and positions."""
    tables = ("embedding", "positions", "head")
    return sum(prod(shape) for name, shape in weight_shapes(config).items() if not name.startswith(tables))


def position_name(config: LanguageModelConfig) -> str:
    """How a model encodes positions: the `position` that `transformer` takes, or `learned+rotary` where it has two."""
    code = getattr(config.sequence_mixer, "position", None)
    names = [name for name, one in POSITIONS.items() if one is not None and isinstance(code, type(one))]
    return "+".join(([] if config.positions is None else ["learned"]) + names) or "none"


def matching_slots(twin: LanguageModelConfig) -> int:
    """Slots per head that make a `memory_mosaic` of the same sizes as large as `twin`, a transformer of any kind.

    These are the paper's 3.5 slots per unit of width where the parameter counts then differ by less than 1 %. Elsewhere
    it is the number that makes the counts most nearly equal: a table of positions weighs more in a small model. The
    counts then differ by half a slot of every block at most, a share of 1 / (12 width) of a transformer.
    """
    paper, heads = max(1, 7 * twin.width // 2), getattr(twin.sequence_mixer, "heads", 1)
    sizes = {name: getattr(twin, name) for name in (*GPT2_SIZES, "context", "bias", "tied")}
    missing = weight_count(twin) - weight_count(memory_mosaic(slots=paper, heads=heads, **sizes))
    if abs(missing) < 0.01 * weight_count(twin):
        return paper
    return max(1, paper + round(missing / (2 * twin.width * twin.blocks)))


def baseline(mixer: Callable[..., MixerConfig], *, heads: int = 12, **sizes: Any) -> LanguageModelConfig:
    """A sequence mixer where the transformer has its attention; it needs no positions. Some mixers have no heads."""
    return LanguageModelConfig(
        **GPT2_SIZES | sizes, sequence_mixer=mixer_config(mixer, heads), channel_mixer=MLPConfig()
    )


def mixer_config(mixer: Callable[..., MixerConfig], heads: int) -> MixerConfig:
    """The configuration of a mixer, with this number of heads if it has heads."""
    return mixer(heads=heads) if has_heads(mixer) else mixer()


def has_heads(mixer: Callable[..., MixerConfig]) -> bool:
    """Whether the configuration of a mixer has a number of heads."""
    kind = mixer.func if isinstance(mixer, partial) else mixer
    return is_dataclass(kind) and any(field.name == "heads" for field in fields(kind))


@dataclass(frozen=True)
class Architecture:
    """A kind of model: its label in tables and figures, and its configuration at any size."""

    label: str
    config: Callable[..., LanguageModelConfig]  # of width, blocks, heads, vocabulary, context, dropout
    mixer: Callable[..., MixerConfig]  # of heads, where it has any, and of nothing else that must be given
    compiles: bool = True  # torch.compile makes it faster


def _baseline(label: str, mixer: Callable[..., MixerConfig], *, compiles: bool = True) -> Architecture:
    return Architecture(label, partial(baseline, mixer), mixer, compiles)


_POSITION_LABELS = {"learned": "learned positions", "rotary": "RoPE", "alibi": "ALiBi", "none": "no positions"}

ARCHITECTURES: dict[str, Architecture] = {
    "memory-mosaic": Architecture("Memory Mosaic", memory_mosaic, ContextualMemoryConfig),
    "memory-mosaic-v2": Architecture("Memory Mosaic v2", memory_mosaic_v2, ContextualMemoryConfig),
    **{
        "transformer" if code == "learned" else f"transformer-{code}": Architecture(
            f"transformer, {label}", partial(transformer, position=code), AttentionConfig
        )
        for code, label in _POSITION_LABELS.items()
    },
    "llama": Architecture("Llama-like transformer", llama, AttentionConfig),
    "linear-transformer": _baseline("linear transformer", LinearTransformerConfig),
    "retnet": _baseline("RetNet", RetNetConfig),
    "gla": _baseline("GLA", GLAConfig),
    "delta-net": Architecture("DeltaNet", partial(with_swiglu, DeltaNetConfig), DeltaNetConfig),
    "gated-delta-net": Architecture("Gated DeltaNet", partial(with_swiglu, GatedDeltaNetConfig), GatedDeltaNetConfig),
    "rwkv": _baseline("RWKV", RWKVConfig),
    "mamba": _baseline("Mamba", MambaConfig),
    # torch.compile does not generate code for complex numbers and Fourier transforms.
    "s4d": _baseline("S4D", S4DConfig, compiles=False),
    "h3": _baseline("H3", H3Config, compiles=False),
    "hyena": _baseline("Hyena", HyenaConfig, compiles=False),
    # The compiler sees an LSTM as one op, and computes it again in the backward pass.
    "lstm": _baseline("LSTM", LSTMConfig, compiles=False),
}


def architecture_name(config: LanguageModelConfig) -> str:
    """The name of a model in `ARCHITECTURES`: memory-mosaic, transformer (with learned positions), ...

    Contextual memories beside SwiGLU that are not those of v2 are "contextual-memory", which is no name in it.
    """
    mixer = config.sequence_mixer
    if isinstance(config.channel_mixer, SwiGLUConfig):
        match mixer:
            case AttentionConfig():
                return "llama"
            case ContextualMemoryConfig():
                return "memory-mosaic-v2" if has_v2_parts(mixer) else "contextual-memory"
    if isinstance(mixer, AttentionConfig):
        position = position_name(config)
        return "transformer" if position == "learned" else f"transformer-{position}"
    known = (name for name, kind in ARCHITECTURES.items() if kind.mixer is type(mixer))
    return next(known, type(mixer).__name__.removesuffix("Config").lower())


Change = Callable[[LanguageModelConfig, Any], Any]  # from a model and its sequence mixer to the value of a field


def _tap_keys(_: LanguageModelConfig, mixer: Any) -> TapsConfig:
    """Keys that are averaged over four steps. Those of memories have norm 1, those of attention have not."""
    return TapsConfig(back=3, peek=0, initial="decaying", norm=isinstance(mixer, ContextualMemoryConfig))


def _half_windowed(config: LanguageModelConfig, mixer: Any) -> tuple[Visibility, Visibility]:
    every, *others = head_groups(mixer.visibility, mixer.heads)
    if others:
        raise UserError(f"the heads of {type(mixer).__name__} see different pairs already: leave out windows")
    return replace(every, window=short_window(config.context)), every


def _fixed_delay(_: LanguageModelConfig, mixer: Any) -> Visibilities:
    if not isinstance(mixer.visibility, tuple):
        return replace(mixer.visibility, train_delay=None)
    return tuple(replace(each, train_delay=None) for each in mixer.visibility)


def _slot_dropout(config: LanguageModelConfig, _: Any) -> MixerConfig | None:
    slots = config.channel_mixer
    return replace(slots, dropout_of="pairs") if isinstance(slots, PersistentMemoryConfig) else slots


def _wide_slots(config: LanguageModelConfig, _: Any) -> MixerConfig | None:
    slots = config.channel_mixer
    return replace(slots, heads=max(1, slots.heads // 2)) if isinstance(slots, PersistentMemoryConfig) else slots


def _swiglu(config: LanguageModelConfig, _: Any) -> MixerConfig:
    return config.channel_mixer if isinstance(config.channel_mixer, SwiGLUConfig) else SwiGLUConfig(hidden=1)


# New values of fields of a model or of its sequence mixer. Architectures with some of them are memory-mosaic+taps+gate.
INGREDIENTS: dict[str, dict[str, Change]] = {
    "adaptive": {"sharpness": lambda *_: AdaptiveSharpnessConfig()},
    "gated": {"key": lambda *_: GatedAverageConfig()},
    "taps": {"key": _tap_keys},
    "gate": {"gate": lambda *_: OutputGateConfig()},
    "windows": {"visibility": _half_windowed},
    "short-long": {
        "heads": lambda _, mixer: 2 * mixer.heads,
        "head_width": lambda config, mixer: head_width(config.width, mixer.heads),
        "visibility": lambda config, _: short_and_long(config.context),
    },
    "fixed-delay": {"visibility": _fixed_delay},
    "pair-dropout": {"dropout_of": lambda *_: "pairs"},
    "slot-dropout": {"channel_mixer": _slot_dropout},
    "wide-slots": {"channel_mixer": _wide_slots},
    "swiglu": {"channel_mixer": _swiglu},
    "rmsnorm": {"norm": lambda *_: RMSNormConfig()},
}


def with_ingredients(
    build: Callable[..., LanguageModelConfig], names: Sequence[str], **sizes: Any
) -> LanguageModelConfig:
    """A model with some of INGREDIENTS, and a channel mixer that makes it as large as the model without them."""
    base = build(**sizes)
    parts: list[Any] = [base, base.sequence_mixer]
    changed_by: dict[str, str] = {}
    for name in names:
        for field, change in INGREDIENTS[name].items():
            part = next((part for part in parts if field in {each.name for each in fields(part)}), None)
            if part is None:
                raise UserError(f"{type(base.sequence_mixer).__name__} has no {field}, which {name} would change")
            if field in changed_by:
                raise UserError(f"{changed_by[field]} and {name} both change the {field}; leave one of them out")
            changed_by[field] = name
            value = change(base, base.sequence_mixer)
            if value == getattr(part, field):
                raise UserError(f"{name} changes nothing: the {field} of {type(part).__name__} is {value} without it")
            parts[parts.index(part)] = replace(part, **{field: value})
    config, mixer = parts
    return resize_channel_mixer(replace(config, sequence_mixer=mixer), weight_count(base))


def add_ingredients(kind: Architecture, names: Sequence[str]) -> Architecture:
    """An architecture with some of INGREDIENTS, at any size."""
    for name in names:
        if name not in INGREDIENTS:
            raise UserError(f"no ingredient {name!r}; {did_you_mean(name, INGREDIENTS)}")
    config = partial(with_ingredients, kind.config, tuple(names))
    return replace(kind, label=f"{kind.label} + {', '.join(names)}", config=config)


@dataclass(frozen=True)
class Preset:
    """A model of one size, and what it is trained with beyond the defaults of `mosaics train`."""

    config: Callable[..., LanguageModelConfig]
    dropout: float | None
    training: dict[str, Any]


TINY = {"width": 128, "blocks": 4, "heads": 4, "vocabulary": 2048, "context": 256}
SMALL = {"width": 384, "blocks": 6, "heads": 6}
# The paper's best row has 80 thousand steps of 512 windows. A corpus of a few million tokens wants fewer.
_SMALL_TRAINING = {"steps": 800, "batch": 64, "warm_up": 100, "evaluate_every": 100}
_SMALL_TRAINING |= {"learning_rate": 1e-3, "final_learning_rate": 1e-4}
_TINY_TRAINING = _SMALL_TRAINING | {"steps": 600, "batch": 16, "warm_up": 50}
_TINY_TRAINING |= {"learning_rate": 3e-3, "final_learning_rate": 3e-4}
# The models that come with the package (pretrained/), trained by experiments/pretrained on stories of the story world.
STORIES = {"width": 256, "blocks": 5, "heads": 4, "vocabulary": 4096}
_STORIES_TRAINING = {"steps": 5000, "batch": 64, "warm_up": 300, "evaluate_every": 1000}
_STORIES_TRAINING |= {"learning_rate": 3e-3, "final_learning_rate": 1e-4}

# Memory Mosaics v2 and its Llama, sizes and training as printed: width, blocks, heads, hidden units, learning rate, and
# tokens in batches of 1,024 windows. The two are not of one size. Documents are apart with `documents` of a run.
PRINTED = {"1.5b": (2048, 24, 16, 6144, 3e-4, 200e9), "8b": (4096, 32, 32, 14336, 1e-3, 1e12)}
_PRINTED = {"vocabulary": 128_256, "context": 4096, "tied": False}


def _printed(name: str, size: str) -> Preset:
    *shape, rate, tokens = PRINTED[size]
    sizes = dict(zip(("width", "blocks", "heads", "hidden"), shape, strict=True)) | _PRINTED
    training = {"steps": round(tokens / (1024 * 4096)), "batch": 1024, "warm_up": 2000}
    training |= {"learning_rate": rate, "final_learning_rate": rate / 100}
    return Preset(partial(ARCHITECTURES[name].config, **sizes), None, training)


PRESETS: dict[str, Preset] = {
    **{
        f"{name}-{depth}": Preset(partial(ARCHITECTURES[name].config, blocks=depth), 0.05, {})
        for name in ("memory-mosaic", "transformer", "llama")
        for depth in DEPTHS
    },
    **{f"{name}-12": Preset(kind.config, 0.05, {}) for name, kind in ARCHITECTURES.items()},
    **{
        f"{name}-small": Preset(partial(kind.config, **SMALL), 0.1, _SMALL_TRAINING)
        for name, kind in ARCHITECTURES.items()
    },
    **{
        f"{name}-tiny": Preset(partial(kind.config, **TINY), None, _TINY_TRAINING)
        for name, kind in ARCHITECTURES.items()
    },
    "memory-mosaic-stories": Preset(partial(as_large_as, llama, memory_mosaic_v2, **STORIES), None, _STORIES_TRAINING),
    "llama-stories": Preset(partial(llama, **STORIES), None, _STORIES_TRAINING),
    **{f"{name}-{size}": _printed(name, size) for name in ("memory-mosaic-v2", "llama") for size in PRINTED},
}


def preset(name: str, **changes: object) -> LanguageModelConfig:
    """The named configuration, with some of its arguments changed: `preset("memory-mosaic-12", vocabulary=50304)`."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; {preset_hint(name)}")
    try:
        return PRESETS[name].config(**changes)
    except TypeError as error:
        raise ValueError(f"preset {name!r}: {error}") from None


def preset_hint(name: str) -> str:
    """The remedy for the name of an unknown preset."""
    name = name.replace("_", "-")
    if name in ARCHITECTURES:
        return f"did you mean {name}-tiny, {name}-small or {name}-12?"
    names = f"a preset is an architecture and a size, such as mamba-tiny, -small or -12: {', '.join(ARCHITECTURES)}"
    return did_you_mean(name, PRESETS, otherwise=names)
