"""Networks of associative memories: train, run, measure and look inside.

Importing the package needs torch and numpy only. Hugging Face support is in `memory_mosaics.huggingface`.
"""

from memory_mosaics.config import to_plain
from memory_mosaics.extractors import (
    Convolution,
    ConvolutionConfig,
    LeakyAverage,
    LeakyAverageConfig,
    Linear,
    LinearConfig,
    Taps,
    TapsConfig,
    normalise,
)
from memory_mosaics.language_model import (
    Block,
    LanguageModel,
    LanguageModelConfig,
    config_from_plain,
    next_token_loss,
    parameter_count,
)
from memory_mosaics.memory import (
    AssociativeMemory,
    ContextualMemory,
    ContextualMemoryConfig,
    PersistentMemory,
    PersistentMemoryConfig,
)
from memory_mosaics.mixers.attention import Alibi, Attention, AttentionConfig, LearnedPositionsConfig, Rotary
from memory_mosaics.mixers.mlp import MLP, MLPConfig
from memory_mosaics.ops.leaky_average import leaky_average
from memory_mosaics.ops.recall import dot_product, gaussian, merge, recall, recall_with_lse
from memory_mosaics.presets import PRESETS, memory_mosaic, preset, transformer

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "PRESETS",
    "Alibi",
    "AssociativeMemory",
    "Attention",
    "AttentionConfig",
    "Block",
    "ContextualMemory",
    "ContextualMemoryConfig",
    "Convolution",
    "ConvolutionConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LeakyAverage",
    "LeakyAverageConfig",
    "LearnedPositionsConfig",
    "Linear",
    "LinearConfig",
    "MLPConfig",
    "PersistentMemory",
    "PersistentMemoryConfig",
    "Rotary",
    "Taps",
    "TapsConfig",
    "config_from_plain",
    "dot_product",
    "gaussian",
    "leaky_average",
    "memory_mosaic",
    "merge",
    "next_token_loss",
    "normalise",
    "parameter_count",
    "preset",
    "recall",
    "recall_with_lse",
    "to_plain",
    "transformer",
]
