"""Models by name: the paper's, their twins of the same size, and small ones for a laptop.

`memory_mosaic` and `transformer` build any size; PRESETS names the ones that experiments and tests speak of.
"""

from collections.abc import Callable
from functools import partial

from memory_mosaics.config import MixerConfig
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.memory import ContextualMemoryConfig, PersistentMemoryConfig
from memory_mosaics.mixers.attention import Alibi, AttentionConfig, LearnedPositionsConfig, Rotary
from memory_mosaics.mixers.mlp import MLPConfig

GPT2_VOCABULARY = 50257
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
    """The right of figure 6. By default 3.5 slots per unit of width: a block then has the 12 width^2 of GPT-2's."""
    return LanguageModelConfig(
        vocabulary=vocabulary,
        width=width,
        blocks=blocks,
        context=context,
        dropout=dropout,
        sequence_mixer=ContextualMemoryConfig(heads=heads),
        channel_mixer=PersistentMemoryConfig(heads=heads, slots=7 * width // 2 if slots is None else slots),
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
    """The left of figure 6: GPT-2 without bias. `position` is learned, rotary, alibi or none."""
    codes: dict[str, Rotary | Alibi | None] = {"learned": None, "rotary": Rotary(), "alibi": Alibi(), "none": None}
    if position not in codes:
        raise ValueError(f"no position code {position!r}; there are {', '.join(codes)}")
    table: MixerConfig | None = LearnedPositionsConfig(context=context) if position == "learned" else None
    return LanguageModelConfig(
        vocabulary=vocabulary,
        width=width,
        blocks=blocks,
        context=context,
        dropout=dropout,
        positions=table,
        sequence_mixer=AttentionConfig(heads=heads, position=codes[position]),
        channel_mixer=MLPConfig(),
    )


_TINY = {"width": 128, "blocks": 4, "heads": 4, "vocabulary": 2048, "context": 256}

PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    **{f"memory-mosaic-{depth}": partial(memory_mosaic, blocks=depth) for depth in DEPTHS},
    **{f"transformer-{depth}": partial(transformer, blocks=depth) for depth in DEPTHS},
    **{f"transformer-{code}-12": partial(transformer, position=code) for code in ("rotary", "alibi", "none")},
    # At this size a table of positions weighs something: 32 more slots a head make up for it.
    "memory-mosaic-tiny": partial(memory_mosaic, slots=480, **_TINY),
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
