"""What is measured is what the table says, at sizes that take no time."""

import gc
import math
import weakref
from dataclasses import replace

import pytest
import torch

from benchmarks.conftest import CEILINGS, SHAPES, SIZE, WORK
from memory_mosaics.benchmarks import kernels, throughput, timing
from memory_mosaics.benchmarks.timing import Timer
from memory_mosaics.benchmarks.work import count_work
from memory_mosaics.decoding import generate
from memory_mosaics.language_model import LanguageModel, weight_shapes

CPU = Timer(torch.device("cpu"))


def test_acts_take_turns_and_the_median_counts(monkeypatch):
    now, order = [0.0], []
    costs = {"a": iter([9, 1, 1, 5]), "b": iter([9, 2, 8, 3])}  # the first is the warm-up

    def act(name):
        order.append(name)
        now[0] += next(costs[name])

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    seconds = CPU.medians({name: lambda name=name: act(name) for name in costs}, repeats=3, warm_up=1)
    assert seconds == {"a": 1, "b": 3}
    assert order == ["a", "b"] * 4


def test_ceilings_are_sane():
    limits = timing.measure_ceilings(CPU, repeats=1)
    assert 1e-4 < limits["product_tflops"] < 1e3
    assert 0.1 < limits["copy_gbs"] < 1e4


@pytest.mark.parametrize("name", throughput.MODELS)
def test_a_step_is_one_of_the_optimiser_on_the_products_objective(name):
    torch.manual_seed(0)
    model = LanguageModel(SIZE.config(name))
    task = throughput.RandomTokens(SIZE, torch.device("cpu"))
    before = [parameter.clone() for parameter in model.parameters()]
    expected = task.loss(model, task.batch(0))
    step = throughput.training_step(model, task)
    torch.testing.assert_close(step(), expected)
    assert all((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
    assert step() < expected


def test_a_size_names_what_dropout_drops_and_the_heads_of_persistent_memories():
    size = replace(SIZE, dropout=0.1, dropout_of="pairs", persistent_heads=1)
    mosaic, llama = size.config("memory-mosaic"), size.config("llama")
    assert {mosaic.sequence_mixer.dropout_of, mosaic.channel_mixer.dropout_of, llama.sequence_mixer.dropout_of} == {
        "pairs"
    }
    assert (mosaic.sequence_mixer.heads, mosaic.channel_mixer.heads) == (2, 1)
    slots = [weight_shapes(one.config("memory-mosaic"))["blocks.0.channel_mixer.keys"] for one in (SIZE, size)]
    assert math.prod(slots[0]) == math.prod(slots[1])


def test_training_rows(monkeypatch):
    monkeypatch.setattr(
        Timer, "medians", lambda self, steps, *_, **__: dict(zip(steps, (0.5, 0.25, 1.0, 2.0), strict=False))
    )
    four = ("memory-mosaic", "transformer", "transformer-alibi", "mamba")
    rows = throughput.add_relative_speed(
        list(throughput.measure_training(CPU, CEILINGS, replace(WORK, sizes=[(SIZE, four)])))
    )
    assert [row["model"] for row in rows] == list(four)
    assert [row["tokens_per_second"] for row in rows] == [48, 96, 24, 12]
    assert [row["relative_speed"] for row in rows] == [0.5, 1, 0.25, 0.125]
    model = LanguageModel(SIZE.config("memory-mosaic"))
    flops = count_work(model.config).model_flops * 48 / 1e12
    assert rows[0]["tflops"] == pytest.approx(flops, rel=1e-3)
    assert rows[0]["product_share"] == pytest.approx(flops / CEILINGS["product_tflops"], rel=1e-3)
    assert rows[0]["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_model_that_does_not_fit_is_named_and_the_others_go_on(monkeypatch):
    def full(model, task):
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(throughput, "training_step", full)
    rows = list(throughput.measure_training(CPU, CEILINGS, WORK))
    assert [row["failed"] for row in rows] == ["out of memory"] * 2
    assert throughput.add_relative_speed(rows) == rows
    assert next(throughput.measure_lengths(CPU, CEILINGS, WORK))["failed"] == "out of memory"


def test_memory_rows_take_recall_off():
    rows = list(throughput.measure_lengths(CPU, CEILINGS, replace(WORK, repeats={"memory": 2})))
    assert [(row["context"], row["batch"], row["model"]) for row in rows] == [
        (time, batch, name) for time, batch in ((6, 4), (12, 2)) for name in throughput.PAIR
    ]
    for row in rows:
        assert row["microseconds"] == pytest.approx(1e6 / row["tokens_per_second"], rel=1e-3)
        rest = row["microseconds"] - row["recall_microseconds"]
        assert row["rest_microseconds"] == pytest.approx(rest, abs=2e-3 * row["microseconds"])
        assert row["recall_microseconds"] > 0


def test_recall_takes_turns_with_the_steps_on_the_cpu(monkeypatch):
    def laps(self, acts, *_, **__):
        rounds.append(list(acts))
        return {name: 0.001 if name.startswith("recall") else 0.005 for name in acts}

    rounds = []
    monkeypatch.setattr(Timer, "medians", laps)
    rows = list(throughput.measure_lengths(CPU, CEILINGS, WORK))
    assert rounds == [["recall memory-mosaic", "recall transformer", "memory-mosaic", "transformer"]] * 2
    assert {row["recall_microseconds"] for row in rows} == {1e6 * 0.001 / 24}
    assert not [row for row in rows if "recall_seconds" in row]


@pytest.mark.parametrize("name", throughput.PAIR)
def test_decoding_is_greedy(name):
    decoder = throughput.build_decode(name, SIZE, torch.device("cpu"))
    torch.manual_seed(0)
    model = LanguageModel(SIZE.config(name)).eval()
    prompts = torch.randint(SIZE.vocabulary, (3, 4))
    expected = prompts
    for _ in range(8):
        expected = torch.cat([expected, model(expected)[0][:, -1:].argmax(-1)], dim=1)
    assert decoder(prompts, 8).tolist() == expected[:, 4:].tolist()


def test_decoding_rows_separate_the_prompt_from_the_tokens(monkeypatch):
    cost = {1: 0.2, WORK.length: 1.6}
    monkeypatch.setattr(Timer, "median", lambda self, act, *_, **__: cost[act.args[1]])
    monkeypatch.setattr(throughput, "CACHES", {})
    rows = list(throughput.measure_decoding(CPU, CEILINGS, WORK))
    assert [(row["batch"], row["model"]) for row in rows] == [(b, name) for b in (1, 3) for name in throughput.PAIR]
    assert [row["tokens_per_second"] for row in rows] == [5, 5, 15, 15]
    assert {(round(row["prefill_ms"], 9), round(row["token_ms"], 9)) for row in rows} == {(200, 200)}


def test_a_model_is_gone_when_the_next_one_is_counted(monkeypatch):
    made = []

    def build(*given):
        model = throughput.random_model("memory-mosaic", SIZE, torch.device("cpu"))
        made.append(weakref.ref(model))
        return lambda prompts, length: torch.stack(generate(model, list(prompts), length))

    monkeypatch.setattr(throughput, "build_decode", build)
    for _ in throughput.measure_decoding(CPU, CEILINGS, WORK):
        gc.collect()
        assert made[-1]() is None


def test_transformers_writes_as_many_tokens():
    pytest.importorskip("transformers")
    for name in throughput.CACHES:
        decoder = throughput.build_decode(name, SIZE, torch.device("cpu"))
        assert decoder(torch.randint(SIZE.vocabulary, (2, 4)), 5).shape == (2, 5)


def test_kernel_rows():
    rows = list(kernels.measure(CPU, CEILINGS, WORK))
    found = {(row["op"], row["form"], row["context"]) for row in rows}
    along = {"key": "PyTorch", "gated key": "PyTorch", "value": "PyTorch", "contextual recall": "recall"}
    assert {(op, form, shape.context) for op, form in along.items() for shape in SHAPES} <= found
    assert {("persistent recall", "flash", 40), ("loss", "PyTorch", 40)} <= found
    assert "op" not in {form for _, form, _ in found}
    assert not [row for row in rows if row["op"] == "loss" and row["context"] == 33]
    for row in rows:
        assert row["failed"] is None
        limit = CEILINGS["copy_gbs" if row["unit"] == "GB/s" else "product_tflops"]
        assert row["forward_share"] == pytest.approx(row["forward_rate"] / limit, rel=1e-3)
    key = rows[0]
    assert key["forward_rate"] == pytest.approx(2 * 2 * 40 * 16 * 4 / key["forward_ms"] / 1e6, rel=2e-3)


@pytest.mark.parametrize("build", [kernels._keys, kernels._gated_keys, kernels._values, kernels._contextual])
@pytest.mark.parametrize("shape", SHAPES)
def test_forms_of_an_operation_agree(build, shape):
    """Or the faster one does less. The first answer of recall from an empty memory is zero; stock kernels leave it."""
    case = build(CPU, shape)
    first, *others = (act(*case.inputs) for act in case.forms.values())
    for other in others:
        other = other if other.shape == first.shape else other.transpose(1, 2)
        torch.testing.assert_close(other, first[:, -other.shape[1] :], rtol=1e-4, atol=1e-5)


def test_a_missing_kernel_is_named():
    def fails(*inputs):
        raise RuntimeError("No available kernel. " * 9)

    case = kernels.Case("key", "GB/s", {"good": torch.exp, "bad": fails}, (torch.randn(9, requires_grad=True),), (1, 1))
    good, bad = kernels._measure(CPU, CEILINGS, case, repeats=1)
    assert good["failed"] is None
    assert good["backward_ms"] > 0
    assert bad["failed"].startswith("No available kernel")
    assert len(bad["failed"]) <= 60
    assert bad["forward_ms"] is None
