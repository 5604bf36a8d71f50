"""`mosaics plan`: what is counted is what PyTorch counts, what is stored is what processes store, and one line for what
makes no sense."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from memory_mosaics.benchmarks import plan
from memory_mosaics.benchmarks.plan import GIB, PER_NODE, Layout, find_gpu, layouts, memory_gib, predict
from memory_mosaics.benchmarks.work import count_work
from memory_mosaics.cli import main
from memory_mosaics.extractors import GatedAverageConfig
from memory_mosaics.language_model import LanguageModel, last_hidden_state, weight_count
from memory_mosaics.memory import ContextualMemoryConfig
from memory_mosaics.models import ARCHITECTURES, PRESETS, llama, memory_mosaic, transformer
from memory_mosaics.stores import Visibility

SIZES = {"width": 32, "blocks": 2, "heads": 2, "vocabulary": 50, "context": 40}
RETRIEVE = ("memory-mosaic", "transformer", "transformer-rotary", "transformer-none", "llama", "memory-mosaic-v2")
LARGE = {"width": 4096, "blocks": 32, "heads": 32, "vocabulary": 128256, "context": 4096}
FLAGS = {"micro_batch": None, "sharding": None, "checkpointing": None}


@pytest.mark.parametrize("name", RETRIEVE)
def test_operations_are_those_of_the_benchmark_of_training(name):
    work = count_work(ARCHITECTURES[name].config(**SIZES))
    assert work.training_flops == work.model_flops


@pytest.mark.parametrize("name", ["transformer", "gla", "retnet", "delta-net", "mamba"])
def test_products_are_those_that_pytorch_counts(name):
    """Of blocks that run on the CPU, with attention as plain products of all pairs, seen or not."""
    config = ARCHITECTURES[name].config(**SIZES)
    model, work, rows = LanguageModel(config), count_work(config), 3
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        last_hidden_state(model, torch.zeros(rows, 40, dtype=torch.long))
    seen = sum(each.flops * 40 / each.pairs for each in work.recalls)
    assert counter.get_total_flops() == pytest.approx(rows * 40 * 2 * (work.products + seen), rel=1e-6)


def test_numbers_that_a_block_saves_by_hand():
    """In widths: a transformer's norms 2, keys, values and queries 3, answers 1, hidden layer before and after 8."""
    for config, halves in (
        (transformer(**SIZES), 14),
        # Norms 2, values before and after their taps 2, keys 1, answers 1; queries 1 and answers 1 of the slots.
        (memory_mosaic(**SIZES), 8),
        (llama(hidden=64, **SIZES), 2 + 3 + 1 + 3 * 2),
    ):
        work = count_work(config)
        taps = (
            32 / 40 if config.channel_mixer != transformer(**SIZES).channel_mixer and "Taps" in work.extractors else 0
        )
        assert work.saved == pytest.approx(2 * (32 * halves - taps) + 32 * (4 + 2))
        assert count_work(replace(config, dropout=0.1)).saved >= work.saved + 2 * 32


def test_a_window_bounds_the_pairs():
    memory = ContextualMemoryConfig(heads=2, key=GatedAverageConfig(), visibility=Visibility(window=4))
    config = memory_mosaic(**SIZES)
    full, window = count_work(config), count_work(replace(config, sequence_mixer=memory))
    assert full.recalls[0].pairs == 39 / 2
    assert window.recalls[0].pairs == (0 + 1 + 2 + 3 + 4 * 36) / 40
    assert set(window.extractors) == {"GatedAverage", "Taps", "LeakyAverage"}


@pytest.mark.parametrize("name", sorted(name for name in PRESETS if name.endswith("-tiny")))
def test_every_architecture_has_a_plan(name, capsys):
    assert main(["plan", name, "--gpus", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == weight_count(PRESETS[name].config())
    assert {(row["sharding"], row["checkpointing"]) for row in found["rows"]} == {
        (sharding, checkpointing) for sharding in ("ddp", "fsdp") for checkpointing in (False, True)
    }
    for row in found["rows"]:
        assert 0 < row["mfu"] < 1
        assert row["days"] > 0


def test_models_of_any_size_are_counted_without_being_built():
    work = count_work(llama(key_value_heads=8, hidden=14336, **LARGE))
    assert work.parameters == weight_count(work.config) > 7e9
    found = predict(work, Layout(64, 1024, 1, "fsdp", True), find_gpu("h200"))
    assert found["memory_gib"]["weights"] == pytest.approx(4 * work.parameters / 64 / GIB, rel=1e-3)
    assert found["micro_steps"] == 16
    # The whole gradient is kept while it accumulates, and not with one micro-batch.
    assert found["memory_gib"]["gradients"] == pytest.approx(4 * work.parameters / GIB, rel=1e-3)
    whole = memory_gib(work, Layout(64, 1024, 16, "fsdp", True), find_gpu("h200").rates)
    assert whole["gradients"] == pytest.approx(4 * work.parameters / 64 / GIB)


def test_more_network_less_time():
    """Every part of the model of communication counts."""
    work, gpu = count_work(transformer(**SIZES | {"width": 768, "vocabulary": 50304})), find_gpu("h200")
    one, node, two = (predict(work, Layout(n, 16, 16 // n), gpu)["seconds"] for n in (1, PER_NODE, 2 * PER_NODE))
    assert one["communication"] == 0 < node["communication"] < two["communication"]
    sharded = predict(work, Layout(8, 16, 2, "fsdp"), gpu)["seconds"]
    assert sharded["communication"] == pytest.approx(1.5 * node["communication"], rel=1e-3)
    assert sharded["optimizer"] == pytest.approx(one["optimizer"] / 8, rel=1e-3)
    again = predict(work, Layout(1, 16, 16, checkpointing=True), gpu)["seconds"]
    assert one["products"] < again["products"] < 4 / 3 * one["products"]
    slower = predict(work, Layout(1, 16, 16), find_gpu("a100"))["seconds"]
    assert slower["products"] == pytest.approx(one["products"] * 989 / 312, rel=1e-3)


def test_the_largest_micro_batch_that_fits():
    work, gpu = count_work(llama(**LARGE | {"blocks": 4})), find_gpu("h100")
    for layout in layouts(work, gpu, 8, 512, FLAGS):
        assert memory_gib(work, layout, gpu.rates)["peak"] <= gpu.usable_gib
        larger = replace(layout, micro=2 * layout.micro)
        assert layout.micro == 64 or memory_gib(work, larger, gpu.rates)["peak"] > gpu.usable_gib


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nope", "model nope: neither a preset nor a file"),
        ("memory-mosaic-tiny --gpu h20", "no GPU 'h20'; did you mean h200?"),
        ("memory-mosaic-tiny --gpus 0", "--gpus must be at least 1, not 0"),
        ("memory-mosaic-tiny --gpus 12", "12 GPUs are not whole nodes of 8; choose 8 or 16"),
        ("memory-mosaic-tiny --sharding fsdp", "--sharding fsdp needs several GPUs; give --gpus, or leave it out"),
        ("memory-mosaic-tiny --gpus 3", "a batch of 16 does not split over 3 GPUs; choose a multiple of 3"),
        ("memory-mosaic-tiny --micro_batch 5", "--micro_batch 5 does not divide the 16 sequences of a GPU"),
        ("memory-mosaic-tiny --tokens 9", "--tokens 9 are less than the 4,096 of one step; give more"),
        (
            "transformer-rotary-12 --context 500000 --batch 8 --checkpointing false",
            "--gpus 1 --sharding ddp --checkpointing true --micro_batch 2 would fit",
        ),
        (
            "memory-mosaic-12 --context 4000000 --batch 8",
            "no number of GPUs would fit; choose a smaller model or context",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(words, message, capsys):
    assert main(["plan", *words.split()]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


def test_the_table(capsys):
    assert main(["plan", "gated-delta-net-tiny", "--gpus", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("on 2 h200: 16 x 256 tokens per step, 2.458e+06 in total")
    assert [line.split()[0] for line in lines[2:]] == ["ddp", "ddp,", "fsdp", "fsdp,", "Not"]
    note = "Not measured: gated_delta_net. Of a mixer the products alone are counted"
    assert lines[-1].startswith(note)
    assert plan.ASSUMED["overlap"] <= 1
