"""Networks of associative memories: train, run, measure and look inside.

Importing the package needs torch and numpy only. Hugging Face support is in `memory_mosaics.huggingface`.
"""

from memory_mosaics.checkpoint import load, save
from memory_mosaics.config import ExtractorConfig, MixerConfig, SharpnessConfig, part, to_plain
from memory_mosaics.decoding import Decoder, Sampler, beam_search, generate, stream
from memory_mosaics.inspection import look, patterns, retrievals
from memory_mosaics.language_model import (
    Block,
    LanguageModel,
    LanguageModelConfig,
    config_from_plain,
    next_token_loss,
    parameter_count,
)
from memory_mosaics.memory import (
    AdaptiveSharpness,
    AdaptiveSharpnessConfig,
    AssociativeMemory,
    Combine,
    ConstantSharpness,
    ConstantSharpnessConfig,
    ContextualMemory,
    ContextualMemoryConfig,
    Convolution,
    ConvolutionConfig,
    Extractor,
    LeakyAverage,
    LeakyAverageConfig,
    Linear,
    LinearConfig,
    PersistentMemory,
    PersistentMemoryConfig,
    Taps,
    TapsConfig,
    normalise,
)
from memory_mosaics.mixers.attention import (
    MLP,
    Alibi,
    Attention,
    AttentionConfig,
    LearnedPositionsConfig,
    MLPConfig,
    Rotary,
)
from memory_mosaics.mixers.hyena import Hyena, HyenaConfig
from memory_mosaics.mixers.linear_attention import (
    GLA,
    GLAConfig,
    LinearTransformer,
    LinearTransformerConfig,
    RetNet,
    RetNetConfig,
)
from memory_mosaics.mixers.lstm import LSTM, LSTMConfig
from memory_mosaics.mixers.rwkv import RWKV, RWKVConfig
from memory_mosaics.mixers.state_space import H3, S4D, H3Config, Mamba, MambaConfig, S4DConfig
from memory_mosaics.models import PRESETS, matching_slots, memory_mosaic, preset, transformer
from memory_mosaics.ops.leaky_average import leaky_average
from memory_mosaics.ops.recall import dot_product, gaussian, merge, recall, recall_with_lse
from memory_mosaics.parameters import ParamSpec
from memory_mosaics.scales import Decay, Scale
from memory_mosaics.stores import FixedStore, GrowingStore, Pairs, Retrieval, RetrievalMixer, Visibility, map_state
from memory_mosaics.version import __version__

__all__ = [
    "GLA",
    "H3",
    "LSTM",
    "MLP",
    "PRESETS",
    "RWKV",
    "S4D",
    "AdaptiveSharpness",
    "AdaptiveSharpnessConfig",
    "Alibi",
    "AssociativeMemory",
    "Attention",
    "AttentionConfig",
    "Block",
    "Combine",
    "ConstantSharpness",
    "ConstantSharpnessConfig",
    "ContextualMemory",
    "ContextualMemoryConfig",
    "Convolution",
    "ConvolutionConfig",
    "Decay",
    "Decoder",
    "Extractor",
    "ExtractorConfig",
    "FixedStore",
    "GLAConfig",
    "GrowingStore",
    "H3Config",
    "Hyena",
    "HyenaConfig",
    "LSTMConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LeakyAverage",
    "LeakyAverageConfig",
    "LearnedPositionsConfig",
    "Linear",
    "LinearConfig",
    "LinearTransformer",
    "LinearTransformerConfig",
    "MLPConfig",
    "Mamba",
    "MambaConfig",
    "MixerConfig",
    "Pairs",
    "ParamSpec",
    "PersistentMemory",
    "PersistentMemoryConfig",
    "RWKVConfig",
    "RetNet",
    "RetNetConfig",
    "Retrieval",
    "RetrievalMixer",
    "Rotary",
    "S4DConfig",
    "Sampler",
    "Scale",
    "SharpnessConfig",
    "Taps",
    "TapsConfig",
    "Visibility",
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
    "matching_slots",
    "memory_mosaic",
    "merge",
    "next_token_loss",
    "normalise",
    "parameter_count",
    "part",
    "patterns",
    "preset",
    "recall",
    "recall_with_lse",
    "retrievals",
    "save",
    "stream",
    "to_plain",
    "transformer",
]
