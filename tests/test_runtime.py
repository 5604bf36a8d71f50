"""Absurd sizes are refused in one line before anything is built."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from memory_mosaics import checkpoint, runtime
from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.language_model import LanguageModel, weight_count, weight_shapes
from memory_mosaics.models import PRESETS, memory_mosaic, preset
from memory_mosaics.training.config import Training
from memory_mosaics.training.trainer import memory_needed

SMALL = memory_mosaic(width=16, blocks=2, heads=2, vocabulary=30, context=8)


@pytest.mark.parametrize("name", ["memory-mosaic-tiny", "transformer-tiny", "transformer-alibi-12"])
def test_shapes_are_those_of_the_whole_model(name):
    with torch.device("meta"):
        whole = LanguageModel(preset(name)).state_dict()
    assert name in PRESETS
    assert weight_shapes(preset(name)) == {each: tuple(tensor.shape) for each, tensor in whole.items()}
    assert weight_count(preset(name)) == sum(tensor.numel() for tensor in whole.values())


def test_counting_does_not_touch_the_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    weight_shapes(SMALL)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 100_000}, "blocks must be at most 4,096, not 100000"),
        ({"width": 10**30}, "must be at most 2,147,483,647"),
        ({"slots": 10**12}, "slots must be at most 2,147,483,647"),
        ({"vocabulary": 2 * 10**9, "width": 2_000_000}, "too large for any machine|GB of memory"),
        ({"width": 2_000_000, "slots": 10}, r"parameters needs at least [\d,.]+ GB of memory, and cpu has"),
    ],
)
def test_what_cannot_be_built_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        LanguageModel(memory_mosaic(**{"width": 16, "heads": 2, "vocabulary": 30} | changes))


def test_memory_is_that_of_the_container(tmp_path, monkeypatch):
    (tmp_path / "max").write_text("1000\n")
    monkeypatch.setattr(runtime, "LIMITS", (tmp_path / "max", tmp_path / "none"))
    assert runtime.total_memory("cpu") == 1000
    with pytest.raises(UserError, match=r"a model of .* parameters needs at least"):
        LanguageModel(SMALL)
    (tmp_path / "max").write_text("max\n")
    assert runtime.total_memory("cpu") > 1 << 20


def test_training_needs_more_than_the_weights():
    count = weight_count(SMALL)
    assert memory_needed(SMALL, batch=1, micro=1) >= 16 * count
    assert memory_needed(SMALL, batch=1, micro=1, shards=4) < memory_needed(SMALL, batch=1, micro=1)
    assert memory_needed(SMALL, batch=10**9, micro=1) > 10**11


def test_a_seed_is_one_that_pytorch_takes():
    assert Training(seed=2**63 - 1).seed
    with pytest.raises(UserError, match="seed must be at most"):
        Training(seed=2**63)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("not enough memory"), RuntimeError("Storage size calculation overflowed")]
)
def test_every_kind_of_too_large_is_one_line(error):
    with pytest.raises(UserError, match="out of memory: take less"), within_memory("take less"):
        raise error


def test_a_number_too_large_is_not_taken_for_memory():
    for error in (OverflowError("int too large"), RuntimeError("cannot be converted to type float without overflow")):
        with pytest.raises(UserError, match="a number is too large: "), within_memory("take less"):
            raise error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 100_000}, "blocks must be at most"),
        ({"blocks": 4000}, r"lacks the weight blocks\.2\."),
        ({"width": 2**20}, r"embedding\.weight is .30, 16., the configuration wants .30, 1048576."),
        ({"vocabulary": 2**31 - 1}, r"the configuration wants .2147483647, 16\)"),
    ],
)
def test_a_checkpoint_is_compared_with_its_weights_before_building(tmp_path, changes, message, monkeypatch):
    folder = checkpoint.save(LanguageModel(SMALL), tmp_path / "model")
    plain = json.loads((folder / "config.json").read_text())
    plain["language_model"] |= changes
    (folder / "config.json").write_text(json.dumps(plain))
    monkeypatch.setattr("safetensors.torch.load_file", lambda *_, **__: pytest.fail("read although it cannot fit"))
    monkeypatch.setattr(checkpoint, "LanguageModel", lambda *_: pytest.fail("built although it cannot fit"))
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_to_a_device_is_not_followed(tmp_path, name):
    folder = checkpoint.save(LanguageModel(SMALL), tmp_path / "model")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(checkpoint.CheckpointError, match="not a regular file"):
        checkpoint.load(folder)


def test_a_smaller_device_refuses_the_weights(tmp_path, monkeypatch):
    folder = checkpoint.save(LanguageModel(replace(SMALL, blocks=1)), tmp_path / "model")
    monkeypatch.setattr(runtime, "total_memory", lambda _: 100)
    with pytest.raises(UserError, match=r"needs at least .* GB of memory, and cpu has"):
        checkpoint.load(folder)
    shutil.rmtree(folder)


def test_an_error_of_any_kind_reaches_all_processes(monkeypatch):
    """They would wait for this one without end."""
    told = []

    def gathered(found, mine):
        told.append(mine)
        found[:] = [mine, (None, None)]

    monkeypatch.setattr(runtime.dist, "all_gather_object", gathered)
    with pytest.raises(UserError, match="not there"):
        runtime.Runtime(size=2, distributed=True).gather(lambda: {}["not there"])
    assert len(told) == 1
