"""Every mixer there is, at a size that tests in a moment. A new one adds its line here and nowhere else."""

from math import e

from memory_mosaics.config import MixerConfig
from memory_mosaics.extractors import ConvolutionConfig, GatedAverageConfig, LinearConfig, MixConfig, TapsConfig
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
from memory_mosaics.models import ARCHITECTURES, add_ingredients
from memory_mosaics.norms import LayerNormConfig, RMSNormConfig
from memory_mosaics.scales import AdaptiveSharpnessConfig, ScaleConfig
from memory_mosaics.stores import Visibility

WIDTH = 32


def mixer_with(name: str, *ingredients: str) -> MixerConfig:
    """The sequence mixer of an architecture with these ingredients. Windows are of 6 pairs."""
    sizes = {"width": WIDTH, "blocks": 1, "heads": 4, "vocabulary": 50, "context": 48}
    return add_ingredients(ARCHITECTURES[name], ingredients).config(**sizes).sequence_mixer


MIXERS = {
    "contextual memory": ContextualMemoryConfig(heads=4),
    "contextual memory, linear values": ContextualMemoryConfig(heads=2, value=LinearConfig(peek=1)),
    "contextual memory, peeking 3": ContextualMemoryConfig(heads=4, value=TapsConfig(back=1, peek=3)),
    "contextual memory, convolutions": ContextualMemoryConfig(
        heads=4, key=ConvolutionConfig(back=2), value=ConvolutionConfig(back=0, peek=1)
    ),
    "contextual memory, convolutions peeking 2": ContextualMemoryConfig(
        heads=4, value=ConvolutionConfig(back=1, peek=2)
    ),
    "contextual memory, the last 5 pairs": ContextualMemoryConfig(heads=4, visibility=Visibility(window=5)),
    "contextual memory, pairs 3 to 6 steps ago": ContextualMemoryConfig(
        heads=4, visibility=Visibility(delay=3, window=4)
    ),
    "contextual memory, adaptive sharpness": ContextualMemoryConfig(heads=4, sharpness=AdaptiveSharpnessConfig()),
    "contextual memory, adaptive sharpness, the last 5 pairs": ContextualMemoryConfig(
        heads=4, sharpness=AdaptiveSharpnessConfig(), visibility=Visibility(window=5)
    ),
    "contextual memory, values of v2": ContextualMemoryConfig(
        heads=4, value=MixConfig(), scale=ScaleConfig(initial=1.0, speed=1.0, largest=e**15)
    ),
    "contextual memory, taps as keys": ContextualMemoryConfig(
        heads=4, key=TapsConfig(back=3, peek=0, initial="decaying")
    ),
    "contextual memory, output gate": ContextualMemoryConfig(heads=4, gate=OutputGateConfig()),
    "contextual memory, gated keys": ContextualMemoryConfig(heads=4, key=GatedAverageConfig()),
    "contextual memory, short and long": ContextualMemoryConfig(
        heads=4,
        head_width=12,
        sharpness=AdaptiveSharpnessConfig(),
        visibility=(Visibility(window=5), Visibility(delay=3, train_delay=(3, 9))),
    ),
    "contextual memory, four ingredients": mixer_with("memory-mosaic", "adaptive", "taps", "gate", "windows"),
    "contextual memory of v2, tap keys, gate": mixer_with("memory-mosaic-v2", "taps", "gate"),
    "persistent memory, gated keys": PersistentMemoryConfig(heads=4, slots=40, key=GatedAverageConfig()),
    "persistent memory": PersistentMemoryConfig(heads=4, slots=40),
    "persistent memory, three per head": PersistentMemoryConfig(heads=4, slots=13, memories=3),
    "attention": AttentionConfig(heads=4),
    "attention, rotary": AttentionConfig(heads=4, position=Rotary()),
    "attention, alibi": AttentionConfig(heads=4, position=Alibi()),
    "attention, keys see the previous token": AttentionConfig(heads=4, key=ConvolutionConfig(norm=False)),
    "attention, taps as keys": AttentionConfig(
        heads=4, key=TapsConfig(back=3, peek=0, norm=False, initial="decaying"), position=Rotary()
    ),
    "attention, half of the heads see 4 tokens": AttentionConfig(
        heads=4, key_value_heads=2, visibility=(Visibility(delay=0, window=4), Visibility(delay=0)), position=Rotary()
    ),
    "attention, output gate": AttentionConfig(heads=4, key_value_heads=2, gate=OutputGateConfig()),
    "attention, three ingredients": mixer_with("llama", "taps", "gate", "windows"),
    "attention, grouped queries": AttentionConfig(heads=4, key_value_heads=2, position=Rotary()),
    "attention, QK-norm": AttentionConfig(heads=4, position=Rotary(), qk_norm=RMSNormConfig()),
    "attention, one group, layer norm": AttentionConfig(heads=4, key_value_heads=1, qk_norm=LayerNormConfig()),
    "learned positions": LearnedPositionsConfig(context=2048),
    "mlp": MLPConfig(),
    "swiglu": SwiGLUConfig(hidden=80),
    "lstm": LSTMConfig(),
    "linear transformer": LinearTransformerConfig(heads=4),
    "retnet": RetNetConfig(heads=4),
    "gla": GLAConfig(),
    "gla, heads": GLAConfig(heads=4),
    "delta net": DeltaNetConfig(heads=4),
    "gated delta net": GatedDeltaNetConfig(heads=4),
    "rwkv": RWKVConfig(),
    "rwkv, as published": RWKVConfig(as_published=True),
    "s4d": S4DConfig(),
    "h3": H3Config(),
    "hyena": HyenaConfig(),
    "mamba": MambaConfig(),
    "mamba, bias of its own": MambaConfig(bias=True),
}
