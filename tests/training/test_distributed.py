"""Many processes: torchrun on the CPU with gloo. The losses are those of one process."""

import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from memory_mosaics import checkpoint
from memory_mosaics.config import to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.models import preset
from memory_mosaics.runtime import RuntimeConfig, start_runtime
from memory_mosaics.stores import Visibility
from memory_mosaics.tasks.mqar import MQARData
from memory_mosaics.tasks.regression import LinearRegressionData
from memory_mosaics.tasks.synthetic import Mixture, Synthetic
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.loggers import read_log
from memory_mosaics.training.trainer import Trainer, train
from training.conftest import TINY
from training.processes import finish, fork_two, in_two_processes, reserved_port, start
from waiting import HANG, until

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")
pytestmark = pytest.mark.slow


def curve(run):
    return [line["loss"] for line in read_log(run.out / "log.jsonl") if "loss" in line]


def valid(run):
    return [line["valid_loss"] for line in read_log(run.out / "log.jsonl") if "valid_loss" in line]


def on_two_nodes(run):
    """Two launchers of one process each that meet at an address, as on two machines."""
    meet = ["--nnodes", "2", "--master-addr", "localhost", "--master-port", str(reserved_port())]
    nodes = [start(run, *TORCHRUN, "1", *meet, "--node-rank", str(rank)) for rank in range(2)]
    until(lambda: any(node.poll() not in (None, 0) for node in nodes) or None not in [node.poll() for node in nodes])
    failed = [node for node in nodes if node.poll() != 0]
    for node in failed:
        node.kill()
    assert not failed, "\n".join(node.communicate()[1] for node in nodes)
    for node in nodes:
        node.communicate()


def on_two_processes(run):
    finish(start(run, *TORCHRUN, "2", "--standalone"))


def fixed_delays(kind, file):
    """A small copy of the printed sizes in a file, with an output matrix of its own as they have, and without drawn
    delays: those of every process and micro-batch are others.
    """
    config = preset(kind, vocabulary=9, **{name: TINY[name] for name in ("width", "blocks", "heads", "context")})
    mixer = replace(config.sequence_mixer, visibility=(Visibility(window=5), Visibility(delay=3)))
    file.write_text(json.dumps(to_plain(replace(config, sequence_mixer=mixer, tied=False))))
    return dict.fromkeys(TINY) | {"name": str(file)}


@pytest.mark.parametrize(
    ("kind", "how", "sharding"),
    [
        ("memory-mosaic-tiny", on_two_processes, "ddp"),
        ("memory-mosaic-tiny", fork_two, "fsdp"),
        ("transformer-tiny", fork_two, "ddp"),
        ("transformer-tiny", fork_two, "fsdp"),
        ("memory-mosaic-tiny", on_two_nodes, "fsdp"),
        ("memory-mosaic-v2-tiny", fork_two, "fsdp"),
    ],
)
def test_the_losses_are_those_of_one_process(run, tmp_path, kind, how, sharding):
    if kind == "memory-mosaic-v2-tiny":
        model = fixed_delays(kind, tmp_path / "config.json")
    else:
        model = {"name": kind, "slots": 7} if "mosaic" in kind else {"name": kind}
    one = run("one", model=model)
    many = run("many", model=model, runtime={"sharding": sharding, "micro_batch": 1, "samples": 1})
    train(one)
    how(many)
    assert curve(many) == pytest.approx(curve(one), rel=1e-4)
    assert valid(many) == pytest.approx(valid(one), rel=1e-4)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_documents_are_those_of_one_process(run, sharding):
    """Processes have documents of other lengths, and call their blocks equally often where these are sharded."""
    several = {"model": {"context": 600, "slots": 7}, "steps": 4, "evaluate_every": 2}
    one = replace(run("one", **several), documents=True)
    many = replace(run("many", runtime={"sharding": sharding, "micro_batch": 1}, **several), documents=True)
    train(one)
    fork_two(many)
    assert curve(many) == pytest.approx(curve(one), rel=1e-4)
    assert valid(many) == pytest.approx(valid(one), rel=1e-4)


@pytest.mark.parametrize("before", ["one", "fsdp"])
def test_a_checkpoint_is_read_by_another_number_of_processes(run, before):
    def trained(out, sharding):
        plan = run(out, runtime={"save_every": 6, "keep": 9} | ({} if sharding == "one" else {"sharding": sharding}))
        train(plan) if sharding == "one" else fork_two(plan)
        return plan

    whole = trained("whole", before)
    for after in ("one", "ddp", "fsdp"):
        parted = shutil.copytree(whole.out, whole.out.with_name(after))
        shutil.rmtree(parted / "step-00000012")
        parted = trained(after, after)
        assert curve(parted) == pytest.approx(curve(whole), rel=1e-4)
        assert checkpoint.load(parted.out).config == checkpoint.load(whole.out).config


def test_a_batch_that_does_not_split_is_one_clear_line(run):
    process = start(run(batch=3), *TORCHRUN, "2", "--standalone")
    _, output = process.communicate(timeout=HANG)
    assert process.returncode != 0
    assert "a batch of 3 does not split over 2 processes; choose a multiple of 2" in output
    assert "Traceback (most recent call last):\n  File" not in output.split("mosaics:")[0]


def test_a_missing_shard_is_refused(run):
    plan = run(steps=2, runtime={"sharding": "fsdp"})
    fork_two(plan)
    folder = checkpoint.newest(plan.out)
    shards = sorted((folder / "training").glob("shard-*"))
    assert len(shards) == 2
    shards[0].unlink()
    with pytest.raises(UserError, match=r"shard-00001.* is in manifest.json, and cannot be read"):
        train(plan)


def train_on_examples(kind, out, sharding="ddp", environment=None, *, micro_batch=1):
    """Train in this process, on the synthetic task of this kind; return the results."""
    os.environ.update(environment or {})
    sizes = {"width": 16, "blocks": 2, "heads": 2}
    if kind == "vectors":
        data: Any = LinearRegressionData(dimension=3, length=12, held_out=8)
        config: Any = data.model(preset("transformer-tiny", vocabulary=1, context=12, **sizes))
    else:
        short = MQARData(vocabulary=16, length=8, pairs=1, examples=32, held_out=8)
        data = Mixture(parts=(short, MQARData(vocabulary=16, length=12, pairs=3, examples=32)), held_out=8)
        config = data.model(preset("memory-mosaic-tiny", vocabulary=16, context=12, slots=4, **sizes))
    training = Training(steps=6, batch=4, learning_rate=1e-2, final_learning_rate=1e-2, warm_up=0, evaluate_every=3)
    machine = RuntimeConfig(device="cpu", samples=0, log_every=1, sharding=sharding, micro_batch=micro_batch)
    run = TaskRun(out=out, name=kind, task=data, model=config, training=training, runtime=machine)
    with start_runtime(machine) as here:
        return Trainer(run, Synthetic(data, batch_size=4), config, here).run()


@pytest.mark.parametrize("kind", ["tokens", "vectors"])
def test_every_task_is_trained_by_many_processes(kind, tmp_path):
    one = train_on_examples(kind, tmp_path / "one", micro_batch=None)
    for sharding in ("ddp", "fsdp"):
        in_two_processes(train_on_examples, kind, tmp_path / sharding, sharding)
        many = json.loads((tmp_path / sharding / "results.json").read_text())
        assert many["valid_loss"] == pytest.approx(one["valid_loss"], rel=1e-4)
        assert curve(SimpleNamespace(out=tmp_path / sharding)) == pytest.approx(
            curve(SimpleNamespace(out=tmp_path / "one")), rel=1e-4
        )
