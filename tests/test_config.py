import json
from dataclasses import replace

import pytest

from memory_mosaics.config import from_plain, part, to_plain
from memory_mosaics.language_model import LanguageModelConfig, config_from_plain
from memory_mosaics.presets import PRESETS, preset

PLAIN = to_plain(preset("memory-mosaic-tiny"))


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
        ({"sequence_mixer": None}, "LanguageModelConfig.sequence_mixer wants a part, not None"),
        ({"channel_mixer": 3}, "channel_mixer wants a part or null, not 3"),
        ({"sequence_mixer": {"part": "os.system"}}, "sequence_mixer: no part 'os.system'; there are .*attention"),
        ({"sequence_mixer": {"heads": 4}}, "no part None"),
        ({"sequence_mixer": {"part": "attention"}}, "AttentionConfig wants a value for 'heads'"),
        ({"sequence_mixer": {"part": "attention", "head": 1}}, "AttentionConfig has no field 'head'"),
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
    with pytest.raises(ValueError, match="part 'attention' is already AttentionConfig"):
        part("attention")(LanguageModelConfig)


def test_a_variant_is_a_replace():
    assert replace(preset("memory-mosaic-tiny"), blocks=2).blocks == 2
