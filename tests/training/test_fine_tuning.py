"""Runs that begin with the weights of a checkpoint, runs that go on to more steps, and folders that vanish."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from memory_mosaics import LanguageModel, checkpoint
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus as corpora
from memory_mosaics.text.tokenizer import train_bpe
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training
from memory_mosaics.training.loggers import read_log
from memory_mosaics.training.trainer import train
from training.conftest import STEPS, TINY
from training.processes import fork_two

RUNTIME = RuntimeConfig(device="cpu", samples=0, log_every=1, save_every=2, keep=9)


def weights(folder):
    return checkpoint.load(folder).state_dict()


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left.keys() | right.keys())


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory) -> Run:
    """A run of 24 steps."""
    training = Training(**STEPS | {"steps": 24, "learning_rate": 1e-2})
    out = tmp_path_factory.mktemp("base") / "run"
    plan = Run(data=corpus, out=out, model=ModelArgs(**TINY), training=training, runtime=RUNTIME)
    train(plan)
    return plan


@pytest.fixture
def tuned(base, tmp_path):
    """A run of four steps from its weights, with changes."""

    def build(out="tuned", **changes) -> Run:
        training = Training(**STEPS | {"steps": 4, "evaluate_every": 2})
        start = {"init_from": base.out, "model": ModelArgs(), "runtime": RUNTIME}
        return Run(**{"data": base.data, "out": tmp_path / out, "training": training} | start | changes)

    return build


def losses(run):
    return [line["loss"] for line in read_log(run.out / "log.jsonl") if "loss" in line]


def test_the_first_loss_is_that_of_the_checkpoint_and_the_optimiser_is_new(base, tuned, monkeypatch):
    begun = {}
    load = trainer.initial_model

    def start(*arguments):
        config, found = load(*arguments)
        begun.update(found)
        return config, found

    monkeypatch.setattr(trainer, "initial_model", start)
    plan = tuned(training=Training(**STEPS | {"steps": 1}))
    results = train(plan)
    assert same(begun, weights(base.out))
    assert losses(plan)[0] < losses(base)[0] - 0.5
    assert [line["rate"] for line in read_log(plan.out / "log.jsonl") if "rate" in line] == [pytest.approx(1e-3)]
    assert results["init_from"] == str(base.out)
    assert checkpoint.load(plan.out).config == checkpoint.load(base.out).config


def test_fine_tuning_goes_on_exactly_also_when_the_checkpoint_is_gone(base, tuned, tmp_path):
    source = shutil.copytree(base.out, tmp_path / "source")
    whole, parted = tuned("whole"), tuned("parted", init_from=source)
    train(whole), train(parted)
    assert same(weights(whole.out), weights(parted.out))
    shutil.rmtree(parted.out / "step-00000004")
    shutil.rmtree(source)
    train(parted)
    assert same(weights(whole.out), weights(parted.out))
    assert losses(whole) == losses(parted)


def test_a_configuration_changed_in_a_run_of_its_own_is_refused(tuned):
    plan = tuned()
    train(plan)
    file = plan.out / "step-00000004" / "config.json"
    file.write_text(file.read_text().replace('"dropout": 0.0', '"dropout": 0.5'))
    with pytest.raises(
        UserError,
        match=r"cannot resume from .*04: config.json is damaged.*; restore it, or remove that folder to resume",
    ) as caught:
        train(plan)
    assert str(caught.value).endswith("from the one before, step-00000002")


def test_an_empty_checkpoint_of_its_own_is_refused_with_a_remedy(tuned):
    plan = tuned()
    train(plan)
    (plan.out / "step-00000099").mkdir()
    message = r"cannot resume from .*99: .* has no config.json; remove that folder to resume from the one before, .*04"
    with pytest.raises(UserError, match=message):
        train(plan)


def test_another_start_in_the_same_folder_is_refused(base, tuned, tmp_path):
    plan = tuned()
    train(plan)
    before = weights(plan.out)
    with pytest.raises(UserError, match=r"started with the weights of .*step-00000024, not from scratch; name another"):
        train(replace(plan, init_from=None))
    with pytest.raises(
        UserError, match=r"started with the weights of .*step-00000024, not with the weights of .*00000022"
    ):
        train(replace(plan, init_from=base.out / "step-00000022"))
    with pytest.raises(UserError, match=r"holds a run that started from scratch, not with the weights of"):
        train(replace(base, init_from=base.out))
    assert same(weights(plan.out), before)
    elsewhere = shutil.copytree(base.out, tmp_path / "elsewhere")
    assert train(replace(plan, init_from=elsewhere))["step"] == 4, "the same weights in another folder are the same"


def test_the_tokens_must_be_those_of_the_checkpoint(tuned, tmp_path):
    train_bpe(["one day a cat saw a dog"], 260, name="own").save(tmp_path / "own")
    corpora.prepare(["stories:20"], out=tmp_path / "other", tokenizer=str(tmp_path / "own"), valid_share=0.2)
    plan = tuned(data=tmp_path / "other")
    with pytest.raises(
        UserError, match=r"holds tokens of own, and .* reads those of bytes; prepare it with --tokenizer"
    ):
        train(plan)
    assert not plan.out.exists()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"width": 32}, r"--model.width is 32, and the checkpoint has 16; the model is that of --from .*: leave out"),
        ({"slots": 3}, r"--model.slots is 3, and the checkpoint has \d+"),
        ({"position": "rotary"}, r"--model.position is rotary, and the checkpoint has none"),
        ({"name": "memory-mosaic-tiny"}, r"model memory-mosaic-tiny has width 128, and the checkpoint 16"),
        ({"name": "transformer-tiny", "width": 16, "blocks": 2, "heads": 2}, "model transformer-tiny has"),
    ],
)
def test_a_model_that_contradicts_is_refused(tuned, choice, message):
    plan = tuned(model=ModelArgs(**choice))
    with pytest.raises(UserError, match=message):
        train(plan)
    assert not plan.out.exists()


def test_the_same_model_another_context_and_dropout_are_taken(base):
    config = checkpoint.load(base.out).config
    assert ModelArgs(**TINY).apply_to(config, base.out) == config
    assert ModelArgs(width=16, heads=2, blocks=2).apply_to(config, base.out) == config
    other = ModelArgs(context=20, dropout=0.1).apply_to(config, base.out)
    assert other == replace(config, context=20, dropout=0.1)


def test_the_heads_of_memory_mosaics_v2_are_the_number_that_made_them():
    named = ModelArgs(name="memory-mosaic-v2-tiny", width=16, heads=2, blocks=1, context=16)
    config = named.build(257)
    for same in (named, ModelArgs(heads=2), ModelArgs(init="v2"), replace(named, init="v2")):
        assert same.apply_to(config, Path("runs/a")) == config
    twin = replace(config, init="default")
    assert replace(named, init=None).apply_to(twin, Path("runs/a")) == twin
    with pytest.raises(UserError, match=r"--model.heads is 4, and the checkpoint has 2;"):
        ModelArgs(heads=4).apply_to(config, Path("runs/a"))
    with pytest.raises(UserError, match=r"--model.init is gpt2, and the checkpoint has v2;"):
        ModelArgs(init="gpt2").apply_to(config, Path("runs/a"))


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi", "none"])
def test_a_position_is_compared_by_its_name(position):
    sizes = {"width": 16, "heads": 2, "blocks": 1, "context": 16}
    config = ModelArgs(name="transformer-tiny", position=position, **sizes).build(257)
    assert ModelArgs(position=position).apply_to(config, Path("runs/a")) == config
    other = "rotary" if position == "learned" else "learned"
    with pytest.raises(UserError, match=rf"--model.position is {other}, and the checkpoint has {position};"):
        ModelArgs(position=other).apply_to(config, Path("runs/a"))


def test_a_table_of_positions_bounds_the_context():
    config = ModelArgs(name="transformer-tiny", width=16, heads=2, context=16).build(257)
    shorter = ModelArgs(context=8).apply_to(config, Path("runs/a"))
    LanguageModel(shorter).load_state_dict(LanguageModel(config).state_dict())
    with pytest.raises(UserError, match=r"--model.context is 32, and runs/a has positions for 16 tokens"):
        ModelArgs(context=32).apply_to(config, Path("runs/a"))


@pytest.mark.parametrize(("name", "value"), [("dropout", 2.0), ("context", 0)])
def test_a_value_that_the_model_cannot_have_is_an_error_of_the_user(name, value):
    config = ModelArgs(name="transformer-tiny", width=16, heads=2, context=16).build(257)
    with pytest.raises(UserError, match=rf"model runs/a: {name} must be .*, not {value}"):
        ModelArgs(**{name: value}).apply_to(config, Path("runs/a"))


@pytest.mark.parametrize("step", [False, True])
def test_a_checkpoint_where_only_a_configuration_is_read_is_refused(base, tuned, step):
    folder = base.out / "step-00000024" if step else base.out
    with pytest.raises(UserError, match=rf"to train on from its weights, give mosaics train --from {folder}; for the"):
        train(tuned(init_from=None, model=ModelArgs(name=str(folder))))
    train(tuned(init_from=None, model=ModelArgs(name=str(base.out / "step-00000024" / "config.json"))))


def test_the_command(base, tmp_path, capsys):
    words = [str(base.data), "--out", str(tmp_path / "run"), "--from", str(base.out), "--training.steps", "2"]
    small = ["--training.batch", "2", "--training.evaluate_windows", "2", "--runtime.device", "cpu"]
    assert main(["train", *words, *small]) == 0
    assert f"fine-tuned from {base.out}" in capsys.readouterr().out
    assert main(["train", str(base.data), "--config", str(tmp_path / "run" / "run.yaml")]) == 0
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--from CHECKPOINT" in capsys.readouterr().out
    assert main(["train", *words, "--preset", "memory-mosaic-small", "--out", str(tmp_path / "other")]) == 2
    assert "has width 384, and the checkpoint 16; the model is that of --from" in capsys.readouterr().err


def test_the_default_folder_is_named_after_the_source(base, tmp_path, monkeypatch):
    plans = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "memory_mosaics.training.trainer.train", lambda plan, **_: plans.append(plan) or {"interrupted": False}
    )
    for given in ([], ["--from", str(base.out)], ["--from", str(base.out / "step-00000022")], ["--out", "x"]):
        assert main(["train", str(base.data), *given]) == 0
    names = ["runs/model", "runs/run-finetuned", "runs/run-step-00000022-finetuned", "x"]
    assert [str(plan.out) for plan in plans] == names


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_many_processes_start_with_the_same_weights(tuned, sharding):
    one, many = tuned("one"), tuned("many", runtime=replace(RUNTIME, sharding=sharding))
    train(one)
    fork_two(many)
    assert losses(many) == pytest.approx(losses(one), rel=1e-4)


def test_a_finished_run_goes_on_to_more_steps(base, tmp_path, capsys):
    plan = replace(base, out=shutil.copytree(base.out, tmp_path / "run"))
    longer = replace(plan, training=replace(base.training, steps=30))
    with pytest.raises(UserError, match=r"holds a run with training.steps 24, not 30"):
        train(longer)  # a study does not mix lengths
    results = train(longer, lengthen=True)
    assert (results["step"], results["interrupted"]) == (30, False)
    assert results["lengthened"] == [{"step": 24, "from": 24, "to": 30}]
    assert "continues to 30 steps, not 24; the learning rate is" in capsys.readouterr().out
    lines = [line for line in read_log(plan.out / "log.jsonl") if "rate" in line]
    assert [line["step"] for line in lines] == list(range(1, 31))
    assert [line["rate"] for line in lines[24:]] == [longer.training.rate(step) for step in range(24, 30)]
    whole = weights(plan.out)
    for step in (28, 30):
        shutil.rmtree(plan.out / f"step-{step:08}")
    again = train(longer, lengthen=True)
    assert same(weights(plan.out), whole), "killed on the way, it ends the same"
    assert again["lengthened"] == results["lengthened"]
    for changes in ({"steps": 24}, {"steps": 40, "batch": 2}):
        with pytest.raises(UserError, match="holds a run with training"):
            train(replace(plan, training=replace(longer.training, **changes)), lengthen=True)


def test_a_run_that_patience_ended_is_not_lengthened(base, tmp_path):
    plan = replace(base, out=shutil.copytree(base.out, tmp_path / "run"))
    plan = replace(plan, training=replace(base.training, patience=2))
    file = checkpoint.newest(plan.out) / "progress.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"worse": 2}))
    (file.parent / "manifest.json").unlink()
    yaml = (plan.out / "run.yaml").read_text().replace("patience: null", "patience: 2")
    (plan.out / "run.yaml").write_text(yaml)
    with pytest.raises(UserError, match=r"stopped at step 24 after 2 evaluations .*; start another run with --from"):
        train(replace(plan, training=replace(plan.training, steps=30)), lengthen=True)
    assert (plan.out / "run.yaml").read_text() == yaml


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_folder_that_vanishes_ends_the_run(run, monkeypatch, how, capsys):
    plan = run()
    take_step, taken = torch.optim.AdamW.step, []

    def vanish(self, *arguments):
        taken.append(1)
        if len(taken) == 8:
            shutil.rmtree(plan.out) if how == "removed" else os.rename(plan.out, plan.out.with_name("elsewhere"))
        return take_step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", vanish)
    with pytest.raises(UserError, match=r"run was removed or renamed while it was trained in; the same command starts"):
        train(plan)
    assert not plan.out.exists()
    assert "Checkpoint" not in capsys.readouterr().out
