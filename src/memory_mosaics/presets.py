"""Models by name: the paper's, their twins of the same size, and small ones for a laptop.

`memory_mosaic` and `transformer` build any size; PRESETS names the ones that experiments and tests speak of.
"""

from collections.abc import Callable
from functools import partial

from memory_mosaics.config import MixerConfig
from memory_mosaics.language_model import LanguageModelConfig, weight_count
from memory_mosaics.memory import ContextualMemoryConfig, PersistentMemoryConfig
from memory_mosaics.mixers.attention import Alibi, AttentionConfig, LearnedPositionsConfig, Rotary
from memory_mosaics.mixers.mlp import MLPConfig

GPT2_VOCABULARY = 50257
CODES: dict[str, Rotary | Alibi | None] = {"learned": None, "rotary": Rotary(), "alibi": Alibi(), "none": None}
DEPTHS = (1, 4, 8, 12, 18)  # of the paper's figure 7 and its appendix


def memory_mosaic(
    *,
    width: int = 768,
    blocks: int = 12,
    heads: int = 12,
    slots: int | None = None,
    vocabulary: int = GPT2_VOCABULARY,
    context: int = 512,
    dropout: float = 0.0,
) -> LanguageModelConfig:
    """The right of figure 6. By default it has the `matching_slots` of the `transformer` of the same sizes."""
    sizes = {"vocabulary": vocabulary, "width": width, "blocks": blocks, "context": context, "dropout": dropout}
    if slots is None:
        slots = matching_slots(transformer(heads=heads, **sizes))
    return LanguageModelConfig(
        **sizes,
        sequence_mixer=ContextualMemoryConfig(heads=heads),
        channel_mixer=PersistentMemoryConfig(heads=heads, slots=slots),
    )


def transformer(
    *,
    width: int = 768,
    blocks: int = 12,
    heads: int = 12,
    position: str = "learned",
    vocabulary: int = GPT2_VOCABULARY,
    context: int = 512,
    dropout: float = 0.0,
) -> LanguageModelConfig:
    """The left of figure 6: GPT-2 without bias. `position` is learned, rotary, alibi or none.

    Only learned positions have weights, and the default `memory_mosaic` has as many parameters as the transformer with
    them. `matching_slots(transformer(position="rotary", ...))` gives the slots that match one of the others.
    """
    if position not in CODES:
        raise ValueError(f"no position code {position!r}; there are {', '.join(CODES)}")
    table: MixerConfig | None = LearnedPositionsConfig(context=context) if position == "learned" else None
    return LanguageModelConfig(
        vocabulary=vocabulary,
        width=width,
        blocks=blocks,
        context=context,
        dropout=dropout,
        positions=table,
        sequence_mixer=AttentionConfig(heads=heads, position=CODES[position]),
        channel_mixer=MLPConfig(),
    )


def position_name(config: LanguageModelConfig) -> str:
    """How a model encodes positions: the `position` that `transformer` takes, or `learned+rotary` where it has two."""
    code = getattr(config.sequence_mixer, "position", None)
    names = [name for name, one in CODES.items() if one is not None and isinstance(code, type(one))]
    return "+".join(([] if config.positions is None else ["learned"]) + names) or "none"


def matching_slots(twin: LanguageModelConfig, *, heads: int | None = None) -> int:
    """Slots per head that make a `memory_mosaic` of the same sizes as large as `twin`, a transformer of any kind.
    It has as many heads as the twin, or `heads`.

    These are the paper's 3.5 slots per unit of width where the parameter counts then differ by less than 1 %. Elsewhere
    it is the number that makes the counts most nearly equal: a table of positions weighs more in a small model. The
    counts then differ by half a slot of every block at most, a share of 1 / (12 width) of a transformer.
    """
    sizes = {"vocabulary": twin.vocabulary, "width": twin.width, "blocks": twin.blocks, "context": twin.context}
    paper = max(1, 7 * twin.width // 2)
    sizes["heads"] = getattr(twin.sequence_mixer, "heads", 1) if heads is None else heads
    missing = weight_count(twin) - weight_count(memory_mosaic(slots=paper, **sizes))
    if abs(missing) < 0.01 * weight_count(twin):
        return paper
    return max(1, paper + round(missing / (2 * twin.width * twin.blocks)))


_TINY = {"width": 128, "blocks": 4, "heads": 4, "vocabulary": 2048, "context": 256}

PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    **{f"memory-mosaic-{depth}": partial(memory_mosaic, blocks=depth) for depth in DEPTHS},
    **{f"transformer-{depth}": partial(transformer, blocks=depth) for depth in DEPTHS},
    **{f"transformer-{code}-12": partial(transformer, position=code) for code in ("rotary", "alibi", "none")},
    "memory-mosaic-tiny": partial(memory_mosaic, **_TINY),
    "transformer-tiny": partial(transformer, **_TINY),
}


def preset(name: str, **changes: object) -> LanguageModelConfig:
    """The named configuration, with some of its arguments changed: `preset("memory-mosaic-12", vocabulary=50304)`."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    try:
        return PRESETS[name](**changes)
    except TypeError as error:
        raise ValueError(f"preset {name!r}: {error}") from None
