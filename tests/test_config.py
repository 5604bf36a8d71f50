import json
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from torch import nn

from memory_mosaics.config import MixerConfig, from_plain, part, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModelConfig, config_from_plain
from memory_mosaics.mixers.attention import Rotary
from memory_mosaics.models import PRESETS, preset
from memory_mosaics.norms import LayerNormConfig, RMSNormConfig
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.scales import AdaptiveSharpnessConfig, ConstantSharpnessConfig, ScaleConfig
from memory_mosaics.stores import Visibility

PLAIN = to_plain(preset("memory-mosaic-tiny"))
ATTENTION = {"part": "attention", "heads": 4}
MEMORY = {"part": "persistent_memory", "heads": 4, "slots": 8}


@part("for tests")
class Colourful(MixerConfig):
    colour: Literal["red", "blue"] = "red"
    sizes: tuple[int, ...] = field(default_factory=lambda: (1, 2))

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> nn.Module:
        return nn.Identity()


def test_choices_and_tuples_survive_json():
    config = replace(preset("memory-mosaic-tiny"), channel_mixer=Colourful(colour="blue", sizes=(3,)))
    assert config_from_plain(json.loads(json.dumps(to_plain(config)))) == config
    with pytest.raises(ValueError, match="colour wants"):
        from_plain(LanguageModelConfig, PLAIN | {"channel_mixer": {"part": "for tests", "colour": "green"}})


def test_what_has_no_name_cannot_be_saved():
    @dataclass(frozen=True, kw_only=True)
    class Nameless(Colourful):
        pass

    with pytest.raises(ValueError, match="Nameless has no name to be saved under; register it with @part"):
        to_plain(replace(preset("memory-mosaic-tiny"), channel_mixer=Nameless()))


def test_defining_a_part_again_replaces_it():
    """As a notebook does when a cell runs twice."""

    def define():
        @part("again")
        @dataclass(frozen=True, kw_only=True)
        class Again(Colourful):
            pass

        return Again

    define()
    newest = define()
    config = replace(preset("memory-mosaic-tiny"), channel_mixer=newest())
    assert type(config_from_plain(to_plain(config)).channel_mixer) is newest


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    assert config_from_plain(json.loads(json.dumps(to_plain(preset(name))))) == preset(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wdith": 3}, "LanguageModelConfig has no field 'wdith'; it has .*width"),
        ({"width": "wide"}, "LanguageModelConfig.width wants int, not 'wide'"),
        ({"width": 3.5}, "LanguageModelConfig.width wants int, not 3.5"),
        ({"width": True}, "LanguageModelConfig.width wants int, not True"),
        ({"bias": 1}, "LanguageModelConfig.bias wants bool, not 1"),
        ({"sequence_mixer": None}, "LanguageModelConfig.sequence_mixer wants a mixer, not null"),
        ({"channel_mixer": 3}, "channel_mixer wants a mixer or null, not 3"),
        ({"sequence_mixer": {"part": "os.system"}}, "sequence_mixer: no part 'os.system'; there are .*attention"),
        ({"sequence_mixer": {"heads": 4}}, "no part None"),
        ({"sequence_mixer": {"part": "attention"}}, "AttentionConfig wants a value for 'heads'"),
        ({"sequence_mixer": {"part": "attention", "head": 1}}, "AttentionConfig has no field 'head'"),
        ({"sequence_mixer": {"part": ["attention"]}}, "no part"),
        ({"sequence_mixer": {"part": "linear"}}, "sequence_mixer wants a mixer, not the part 'linear'"),
        ({"sequence_mixer": {"part": "rotary"}}, "sequence_mixer wants a mixer, not the part 'rotary'"),
        ({"sequence_mixer": ATTENTION | {"key": {"part": "mlp"}}}, "AttentionConfig.key wants an extractor, not .*mlp"),
        (
            {"sequence_mixer": {"part": "contextual_memory", "heads": 4, "sharpness": {"part": "mlp"}}},
            "ContextualMemoryConfig.sharpness wants a sharpness, not the part 'mlp'",
        ),
        ({"sequence_mixer": ATTENTION | {"position": {"part": "mlp"}}}, "wants the part 'rotary' or the part 'alibi'"),
        ({"sequence_mixer": ATTENTION | {"heads": 0}}, "heads must be at least 1, not 0"),
        ({"channel_mixer": MEMORY | {"slots": -1}}, "slots must be at least 1, not -1"),
        ({"channel_mixer": MEMORY | {"memories": 0}}, "memories must be at least 1, not 0"),
        ({"channel_mixer": MEMORY | {"key": {"part": "taps", "peek": -1}}}, "peek must be at least 0, not -1"),
        ({"channel_mixer": MEMORY | {"key": {"part": "convolution", "back": -5}}}, "back must be at least 0"),
        ({"channel_mixer": {"part": "mlp", "expansion": 0}}, "expansion must be positive"),
        ({"positions": {"part": "learned_positions", "context": -1}}, "context must be at least 1"),
        ({"blocks": 0}, "blocks must be at least 1"),
    ],
)
def test_a_mistake_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        from_plain(LanguageModelConfig, PLAIN | change)


def test_not_a_mapping():
    with pytest.raises(ValueError, match="wants a mapping"):
        from_plain(LanguageModelConfig, [])


def test_a_whole_number_is_a_float_too():
    assert from_plain(LanguageModelConfig, PLAIN | {"dropout": 0}).dropout == 0.0


def test_two_parts_cannot_share_a_name():
    with pytest.raises(ValueError, match=r"part 'attention' is already .*AttentionConfig"):
        part("attention")(LanguageModelConfig)


def test_a_variant_is_a_replace():
    assert replace(preset("memory-mosaic-tiny"), blocks=2).blocks == 2


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (RuntimeConfig, {"precision": "float16"}, "precision must be 'auto', 'float32' or 'bfloat16', not 'float16'"),
        (RuntimeConfig, {"sharding": "zero"}, "sharding must be 'ddp' or 'fsdp', not 'zero'"),
        (RuntimeConfig, {"save_seconds": -1.0}, "save_seconds must be at least 0, not -1.0"),
        (ConstantSharpnessConfig, {"initial": -1.0}, "initial must be positive, not -1.0"),
        (AdaptiveSharpnessConfig, {"b_0": 0.0}, "b_0 must be positive, not 0.0"),
        (AdaptiveSharpnessConfig, {"b_1": 1e5}, "b_1 must be at most 22,026.4.*, not 100000.0"),
        (AdaptiveSharpnessConfig, {"alpha": 2.0}, "alpha must be at most 1, not 2.0"),
        (ScaleConfig, {"initial": 2.0, "largest": 1.0}, "initial must be at most 1.0, not 2.0"),
        (Visibility, {"train_delay": (5, 3)}, "train_delay must be at most 3, not 5"),
        (Visibility, {"train_delay": (-1, 3)}, "train_delay must be at least 0, not -1"),
        (Rotary, {"base": 0.0}, "base must be positive, not 0.0"),
        (LayerNormConfig, {"eps": -1.0}, "eps must be at least 0, not -1.0"),
        (RMSNormConfig, {"eps": float("nan")}, "eps must be at least 0, not nan"),
    ],
)
def test_values_that_would_be_ignored_or_give_nan_are_refused(config, values, message):
    with pytest.raises(UserError, match=message):
        config(**values)
