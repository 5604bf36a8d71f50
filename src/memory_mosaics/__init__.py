"""Networks of associative memories: train, run, measure and look inside.

Importing the package needs torch and numpy only. Hugging Face support is in `memory_mosaics.huggingface`. What trains
is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memory_mosaics.checkpoint import load, save
from memory_mosaics.config import ExtractorConfig, MixerConfig, NormConfig, SharpnessConfig, part, to_plain
from memory_mosaics.decoding import Decoder, Sampler, beam_search, generate, stream
from memory_mosaics.documents import read_documents
from memory_mosaics.extractors import (
    Convolution,
    ConvolutionConfig,
    Extractor,
    GatedAverage,
    GatedAverageConfig,
    LeakyAverage,
    LeakyAverageConfig,
    Linear,
    LinearConfig,
    Mix,
    MixConfig,
    Taps,
    TapsConfig,
)
from memory_mosaics.inspection import inspect_position, patterns, retrievals
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
    Combine,
    ContextualMemory,
    ContextualMemoryConfig,
    OutputGate,
    OutputGateConfig,
    PersistentMemory,
    PersistentMemoryConfig,
)
from memory_mosaics.mixers.attention import (
    MLP,
    Alibi,
    Attention,
    AttentionConfig,
    LearnedPositionsConfig,
    MLPConfig,
    Rotary,
    SwiGLU,
    SwiGLUConfig,
)
from memory_mosaics.mixers.delta_net import DeltaNet, DeltaNetConfig, GatedDeltaNet, GatedDeltaNetConfig
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
from memory_mosaics.models import PRESETS, llama, matching_slots, memory_mosaic, memory_mosaic_v2, preset, transformer
from memory_mosaics.norms import LayerNormConfig, NoNormConfig, RMSNorm, RMSNormConfig, ScaledNormConfig
from memory_mosaics.ops.leaky_average import leaky_average
from memory_mosaics.ops.normalise import normalise
from memory_mosaics.ops.recall import dot_product, gaussian, merge, recall, recall_with_lse
from memory_mosaics.parameters import ParamSpec
from memory_mosaics.scales import (
    AdaptiveSharpness,
    AdaptiveSharpnessConfig,
    ConstantSharpness,
    ConstantSharpnessConfig,
    Decay,
    Scale,
    ScaleConfig,
)
from memory_mosaics.stores import (
    FixedStore,
    GrowingStore,
    Pairs,
    Retrieval,
    RetrievalMixer,
    Visibility,
    VisiblePairs,
    map_state,
)
from memory_mosaics.version import __version__

if TYPE_CHECKING:
    from memory_mosaics.runtime import RuntimeConfig
    from memory_mosaics.tasks.task import Batch, Task
    from memory_mosaics.text.corpus import Corpus, prepare
    from memory_mosaics.training.config import ModelArgs, Run, TaskRun, Training
    from memory_mosaics.training.trainer import Trainer, train

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
    "Batch",
    "Block",
    "Combine",
    "ConstantSharpness",
    "ConstantSharpnessConfig",
    "ContextualMemory",
    "ContextualMemoryConfig",
    "Convolution",
    "ConvolutionConfig",
    "Corpus",
    "Decay",
    "Decoder",
    "DeltaNet",
    "DeltaNetConfig",
    "Extractor",
    "ExtractorConfig",
    "FixedStore",
    "GLAConfig",
    "GatedAverage",
    "GatedAverageConfig",
    "GatedDeltaNet",
    "GatedDeltaNetConfig",
    "GrowingStore",
    "H3Config",
    "Hyena",
    "HyenaConfig",
    "LSTMConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LayerNormConfig",
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
    "Mix",
    "MixConfig",
    "MixerConfig",
    "ModelArgs",
    "NoNormConfig",
    "NormConfig",
    "OutputGate",
    "OutputGateConfig",
    "Pairs",
    "ParamSpec",
    "PersistentMemory",
    "PersistentMemoryConfig",
    "RMSNorm",
    "RMSNormConfig",
    "RWKVConfig",
    "RetNet",
    "RetNetConfig",
    "Retrieval",
    "RetrievalMixer",
    "Rotary",
    "Run",
    "RuntimeConfig",
    "S4DConfig",
    "Sampler",
    "Scale",
    "ScaleConfig",
    "ScaledNormConfig",
    "SharpnessConfig",
    "SwiGLU",
    "SwiGLUConfig",
    "Taps",
    "TapsConfig",
    "Task",
    "TaskRun",
    "Trainer",
    "Training",
    "Visibility",
    "VisiblePairs",
    "__version__",
    "beam_search",
    "config_from_plain",
    "dot_product",
    "gaussian",
    "generate",
    "inspect_position",
    "leaky_average",
    "llama",
    "load",
    "map_state",
    "matching_slots",
    "memory_mosaic",
    "memory_mosaic_v2",
    "merge",
    "next_token_loss",
    "normalise",
    "parameter_count",
    "part",
    "patterns",
    "prepare",
    "preset",
    "read_documents",
    "recall",
    "recall_with_lse",
    "retrievals",
    "save",
    "stream",
    "to_plain",
    "train",
    "transformer",
]

_TRAINING = {
    "runtime": ("RuntimeConfig",),
    "tasks.task": ("Batch", "Task"),
    "text.corpus": ("Corpus", "prepare"),
    "training.config": ("ModelArgs", "Run", "TaskRun", "Training"),
    "training.trainer": ("Trainer", "train"),
}


def __getattr__(name: str) -> Any:
    """Import what trains, and PyYAML and tqdm with it, when it is first used."""
    for module, names in _TRAINING.items():
        if name in names:
            return getattr(import_module(f"memory_mosaics.{module}"), name)
    raise AttributeError(f"module 'memory_mosaics' has no attribute {name!r}")
