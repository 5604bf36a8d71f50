"""Networks of associative memories: train, run, measure and look inside.

Importing the package needs torch and numpy only. Hugging Face support is in `memory_mosaics.huggingface`.
"""

from memory_mosaics.checkpoint import load, save
from memory_mosaics.config import ExtractorConfig, MixerConfig, part, to_plain
from memory_mosaics.extractors import (
    Convolution,
    ConvolutionConfig,
    Decay,
    Extractor,
    LeakyAverage,
    LeakyAverageConfig,
    Linear,
    LinearConfig,
    Scale,
    Taps,
    TapsConfig,
    normalise,
)
from memory_mosaics.generation import Draw, beam_search, generate, stream
from memory_mosaics.inspection import look, patterns, questions, retrieval_weights
from memory_mosaics.language_model import (
    Block,
    LanguageModel,
    LanguageModelConfig,
    config_from_plain,
    map_state,
    next_token_loss,
    parameter_count,
)
from memory_mosaics.memory import (
    AssociativeMemory,
    Combine,
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
from memory_mosaics.reader import Reader
from memory_mosaics.version import __version__

__all__ = [
    "MLP",
    "PRESETS",
    "Alibi",
    "AssociativeMemory",
    "Attention",
    "AttentionConfig",
    "Block",
    "Combine",
    "ContextualMemory",
    "ContextualMemoryConfig",
    "Convolution",
    "ConvolutionConfig",
    "Decay",
    "Draw",
    "Extractor",
    "ExtractorConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LeakyAverage",
    "LeakyAverageConfig",
    "LearnedPositionsConfig",
    "Linear",
    "LinearConfig",
    "MLPConfig",
    "MixerConfig",
    "PersistentMemory",
    "PersistentMemoryConfig",
    "Reader",
    "Rotary",
    "Scale",
    "Taps",
    "TapsConfig",
    "__version__",
    "beam_search",
    "config_from_plain",
    "dot_product",
    "gaussian",
    "generate",
    "leaky_average",
    "load",
    "look",
    "map_state",
    "memory_mosaic",
    "merge",
    "next_token_loss",
    "normalise",
    "parameter_count",
    "part",
    "patterns",
    "preset",
    "questions",
    "recall",
    "recall_with_lse",
    "retrieval_weights",
    "save",
    "stream",
    "to_plain",
    "transformer",
]
