import json
from dataclasses import replace

import pytest

from memory_mosaics import LanguageModel, parameter_count, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.models import PRESETS, memory_mosaic
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.training.config import ModelArgs, Training, preset_defaults


def test_the_papers_table():
    model, training = preset_defaults("memory-mosaic-18")
    config = model.build(50257)
    assert (config.blocks, config.width, config.context, config.dropout) == (18, 768, 512, 0.05)
    assert (training.batch, training.steps, training.warm_up) == (512, 80_000, 2000)
    assert (training.learning_rate, training.final_learning_rate, training.weight_decay) == (5e-3, 1e-4, 0.1)
    assert (training.betas, training.clip) == ((0.9, 0.95), 1.0)
    assert all(f"{kind}-{depth}" in PRESETS for kind in ("memory-mosaic", "transformer") for depth in (1, 4, 8, 12, 18))


@pytest.mark.parametrize("size", ["1", "12", "small", "tiny"])
def test_twins_have_the_same_size_and_training(size):
    import torch

    (mosaic, how), (transformer, how_too) = (
        preset_defaults(f"memory-mosaic-{size}"),
        preset_defaults(f"transformer-{size}"),
    )
    assert how == how_too
    with torch.device("meta"):
        counts = [
            parameter_count(LanguageModel(model.build(2048 if size == "tiny" else 50257)))["total"]
            for model in (mosaic, transformer)
        ]
    assert abs(counts[0] / counts[1] - 1) < 0.01


@pytest.mark.parametrize(
    "name", ["memory-mosaic-tiny", "memory-mosaic-v2-tiny", "llama-tiny", "transformer-tiny", "gla-tiny"]
)
def test_twins_can_have_the_same_initial_values(name):
    assert ModelArgs(name=name, init="gpt2").build(300) == replace(ModelArgs(name=name).build(300), init="gpt2")


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    training = Training(steps=100, warm_up=10, learning_rate=1.0, final_learning_rate=0.1)
    rates = [training.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert rates[99] == pytest.approx(0.1, abs=1e-3)
    assert sorted(rates[10:], reverse=True) == rates[10:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"final_learning_rate": 1.0}, "final_learning_rate must be from 0 to the learning_rate of 0.005, not 1.0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"stop_at": -0.5}, "stop_at must be positive"),
    ],
)
def test_wrong_numbers_are_named(change, message):
    with pytest.raises(UserError, match=message):
        replace(Training(), **change)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"name": "nobody"}, "neither a preset nor a file; a preset is an architecture and a size"),
        ({"name": "transformer-1", "slots": 3}, "slots"),
        ({"name": "transformer-1", "position": "square"}, "no position code 'square'"),
        ({"heads": 5}, "width|heads"),
        ({"dropout": 2.0}, "dropout must be in"),
    ],
)
def test_wrong_models_are_named(choice, message):
    with pytest.raises(UserError, match=message):
        LanguageModel(ModelArgs(**choice).build(100))


def test_an_unknown_logger_or_device_is_named():
    with pytest.raises(UserError, match="no logger 'telegraph'"):
        RuntimeConfig(loggers=["telegraph"])


def test_another_width_takes_as_many_slots_as_fit_it():
    config = ModelArgs(width=256).build(100)
    assert config.channel_mixer is not None
    assert (
        to_plain(config.channel_mixer)["slots"] == 896 + 256 // 8
    )  # and what a table of 256 positions weighs in 4 blocks


def test_a_model_of_your_own_parts_comes_from_a_file(tmp_path):
    config = memory_mosaic(width=16, blocks=1, heads=2, vocabulary=10, context=8)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(to_plain(config)))
    assert ModelArgs(name=str(file), blocks=3).build(77) == replace(config, vocabulary=77, blocks=3)
