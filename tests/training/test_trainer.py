"""One process: what a run leaves behind, and that stopping it changes nothing."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from memory_mosaics import checkpoint, files
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.runtime import Runtime, RuntimeConfig
from memory_mosaics.tasks import language_modeling
from memory_mosaics.tasks.language_modeling import LanguageModeling
from memory_mosaics.text import corpus as corpora
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.training.config import ModelArgs, Run, Training
from memory_mosaics.training.loggers import read_log
from memory_mosaics.training.trainer import Diverged, Trainer, train
from training.conftest import STEPS, TINY
from training.processes import finish, fork, start
from waiting import HANG, until


def weights(run):
    return load_file(checkpoint.newest(run.out) / "model.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def losses(run, name="loss"):
    return [line[name] for line in read_log(run.out / "log.jsonl") if name in line]


@pytest.fixture
def short_samples(monkeypatch):
    """Samples of 10 tokens instead of 200."""
    generate = language_modeling.generate
    monkeypatch.setattr(
        language_modeling, "generate", lambda model, begun, _, **options: generate(model, begun, 10, **options)
    )


@pytest.mark.usefixtures("short_samples")
def test_it_learns_and_writes_the_files_it_names(run, capsys):
    plan = run(steps=60, evaluate_every=20, runtime={"samples": 2})
    results = train(plan)
    assert results["valid_loss"] < losses(plan)[0] - 1
    assert [line["step"] for line in read_log(plan.out / "log.jsonl") if "valid_loss" in line] == [20, 40, 60]
    output = capsys.readouterr().out
    for name in ("log.jsonl", "samples.md", "results.json", "run.yaml", "step-00000060"):
        assert name in output
        assert (plan.out / name).exists()
    assert json.loads((plan.out / "results.json").read_text())["valid_loss"] == results["valid_loss"]
    samples = (plan.out / "samples.md").read_text()
    assert samples.count("## step") == 3
    assert samples.count("**") == 2 * 2 * 3


@pytest.mark.usefixtures("short_samples")
def test_a_text_file_is_prepared_and_its_tail_held_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("".join(f"Line {number} of some notes.\n" for number in range(200)))
    small = "--model.width 8 --model.blocks 1 --model.heads 2 --model.context 16 --training.batch 2 --runtime.samples 0"
    words = [*f"{small} --training.warm_up 1 --training.steps 2".split()]
    assert main(["train", "notes.txt", *words]) == 0
    first = capsys.readouterr()
    assert re.search(r"memory-mosaic, [0-9,]+ parameters, on cpu, float32\n2 steps: 64 tokens, ", first.out)
    assert "Next: mosaics generate runs/notes" in first.out
    assert main(["train", "notes.txt", *words]) == 0, "the same command resumes"
    assert main(["train", "notes.txt", "--from", "runs/notes", *words[-6:]]) == 0
    own, theirs = (Corpus.open(Path(run, "corpus")) for run in ("runs/notes", "runs/notes-finetuned"))
    assert own.fingerprint == theirs.fingerprint
    assert own.manifest["splits"]["valid"]["documents"] == 1


def test_a_stopped_run_says_of_which_steps_its_losses_are(run, monkeypatch, capsys):
    plan = run(steps=6, evaluate_every=2)
    step = Trainer._step

    def stop_at_the_fourth(trainer, number):
        trainer.stopping = number == 2
        return step(trainer, number)

    monkeypatch.setattr(Trainer, "_step", stop_at_the_fourth)
    assert train(plan)["interrupted"]
    out = capsys.readouterr().out
    assert re.search(r"step 3 of 6\nloss of the last 1 step [0-9.]+\ntrain loss .* at step 2\nStopped", out)


def test_the_checkpoint_opens_in_hugging_face_with_its_tokenizer(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import memory_mosaics.huggingface  # noqa: F401

    plan = run()
    train(plan)
    folder = checkpoint.newest(plan.out)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = model.generate(**tokenizer("One day", return_tensors="pt"), max_new_tokens=5)
    assert tokenizer.decode(ids[0]).startswith("One day")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 256
    assert len(checkpoint.load(plan.out).blocks) == 2


def test_a_checkpoint_holds_no_pickle(run):
    plan = run()
    train(plan)
    files = [file for file in checkpoint.newest(plan.out).rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".safetensors", ".py"}
    assert [file.name for file in files if file.suffix == ".py"] == [checkpoint.HUB_FILE]  # ours never reads it


def test_two_runs_are_the_same_to_the_last_bit_and_another_seed_is_not(run):
    plans = [run("one", model={"dropout": 0.1}), run("two", model={"dropout": 0.1}), run("three", seed=1)]
    for plan in plans:
        train(plan)
    assert losses(plans[0]) == losses(plans[1]) != losses(plans[2])
    assert same(weights(plans[0]), weights(plans[1]))


@pytest.mark.parametrize("kind", ["memory-mosaic-tiny", "transformer-tiny"])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(run, kind, monkeypatch):
    change = {"model": {"name": kind, "dropout": 0.1}, "runtime": {"save_every": 5, "keep": 9}}
    whole, parted = run("whole", **change), run("parted", **change)
    train(whole)
    take_step, taken = torch.optim.AdamW.step, []

    def interrupt(self, *arguments):
        taken.append(1)
        if len(taken) == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupt)
    stopped = train(parted)
    assert (stopped["interrupted"], stopped["step"]) == (True, 8)
    assert not train(parted)["interrupted"]
    assert same(weights(whole), weights(parted))
    assert losses(whole) == losses(parted)
    assert losses(whole, "valid_loss") == losses(parted, "valid_loss")
    assert len(taken) == 12, "no step is taken twice"


def test_a_finished_run_is_not_repeated(run, capsys):
    plan = run()
    first = train(plan)
    stamp = (plan.out / "step-00000012" / "model.safetensors").stat().st_mtime_ns
    again = train(plan)
    assert again["valid_loss"] == first["valid_loss"]
    for damage in (b"{", b"\xff", b"[]", b'{"step": 12}', b"[" * 99_999):
        (plan.out / "results.json").write_bytes(damage)
        again = train(plan)
        assert (
            again["valid_loss"]
            == json.loads((plan.out / "results.json").read_text())["valid_loss"]
            == first["valid_loss"]
        )
    assert (plan.out / "step-00000012" / "model.safetensors").stat().st_mtime_ns == stamp
    (plan.out / "results.json").unlink()
    os.mkfifo(plan.out / "results.json")
    capsys.readouterr()
    assert main(["train", str(plan.data), "--config", str(plan.out / "run.yaml")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"mosaics: {plan.out}/results.json exists and is not a regular file; remove it"
    ]


@pytest.mark.parametrize("micro", [1, 2])
def test_accumulated_micro_batches_are_the_batch(run, micro):
    whole, parts = run("whole"), run("parts", runtime={"micro_batch": micro})
    train(whole), train(parts)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    assert losses(parts, "valid_loss") == pytest.approx(losses(whole, "valid_loss"), rel=1e-4)


def test_documents_are_read_apart_in_training_and_validation(run):
    several = {"model": {"context": 600}, "steps": 2, "evaluate_every": 2}
    whole, parts = (
        replace(run(str(size), runtime={"micro_batch": size}, **several), documents=True) for size in (4, 2)
    )
    train(whole), train(parts)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    corpus, model = corpora.Corpus.open(whole.data), checkpoint.load(whole.out).eval()
    batch, documents, total = LanguageModeling(corpus, context=600).windows["valid"].evenly_spaced(range(5), 5), 0, 0.0
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        starts = sorted({0, *(inputs == corpus.end_of_text).nonzero().flatten().tolist(), 600})
        for first, end in pairwise(starts):
            loss = model.loss(inputs[None, first:end], targets[None, first:end]).item()
            documents, total = documents + 1, total + loss * (end - first) / batch.inputs.numel()
    assert documents > 5
    assert losses(whole, "valid_loss") == [pytest.approx(total, rel=1e-5)]


def test_a_run_is_of_documents_or_not(run):
    plan = run(steps=1)
    train(plan)
    with pytest.raises(UserError, match="holds a run with documents False, not True"):
        train(replace(plan, documents=True))
    file = plan.out / "run.yaml"
    file.write_text(file.read_text().replace("documents: false\n", ""))
    train(plan)  # recorded before there was a choice
    assert "documents: false" in file.read_text()
    with pytest.raises(UserError, match="which are not compiled; set compile to false"):
        train(replace(run("compiled", runtime={"compile": True}), documents=True))


def test_old_checkpoints_go_and_the_best_stays(run, monkeypatch):
    losses = iter([1.0, 2.0])
    measured = lambda *_: {"train_loss": 0.5, "valid_loss": next(losses)}  # noqa: E731
    monkeypatch.setattr(language_modeling.LanguageModeling, "evaluate", measured)
    plan = run(runtime={"save_every": 3, "keep": 2})
    results = train(plan)
    assert [path.name for path in checkpoint.steps(plan.out)] == ["step-00000006", "step-00000009", "step-00000012"]
    assert (results["kept_step"], results["kept"], results["valid_loss"]) == (6, 1.0, 2.0)


def test_all_processes_save_when_the_clock_of_rank_0_says_so(run, monkeypatch):
    """Clocks of processes differ, and one that saves alone waits for the others forever."""
    broadcast = Runtime.broadcast
    not_yet = lambda self, value: False if value is True else broadcast(self, value)  # noqa: E731 - of rank 0
    monkeypatch.setattr(Runtime, "broadcast", not_yet)
    plan = run(runtime={"save_every": 3, "save_seconds": 0.0, "keep": 9})
    train(plan)
    assert [path.name for path in checkpoint.steps(plan.out)] == ["step-00000012"]


@pytest.mark.parametrize("kind", ["transformer-tiny", "memory-mosaic-tiny"])
def test_samples_end_where_the_positions_of_a_transformer_do(run, kind):
    plan = run(model={"name": kind, "position": "learned" if "trans" in kind else None}, runtime={"samples": 1})
    train(plan)
    assert (plan.out / "samples.md").read_text().count("## step") == 2


@pytest.mark.usefixtures("short_samples")
def test_samples_are_not_written_twice(run):
    plan = run(runtime={"samples": 1, "save_every": 12})
    train(plan)
    whole = (plan.out / "samples.md").read_text()
    shutil.rmtree(plan.out / "step-00000012")
    (plan.out / "results.json").unlink()
    train(plan)
    assert (plan.out / "samples.md").read_text() == whole


def test_a_large_seed_is_a_seed(run):
    assert train(run(seed=12345678901234))["step"] == 12


def test_two_processes_do_not_train_in_one_folder(run):
    plan = run(steps=1_000_000)
    process = start(plan)
    try:
        until(lambda: (plan.out / "log.jsonl").exists() or process.poll() is not None)
        with pytest.raises(UserError, match="is being trained in by another process; wait for it"):
            train(plan)
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "Stopped; the same command resumes from there." in out


def test_its_own_run_yaml_is_a_configuration(run):
    from memory_mosaics.cli import main

    plan = run()
    train(plan)
    assert main(["train", str(plan.data), "--config", str(plan.out / "run.yaml")]) == 0
    with pytest.raises(UserError, match=r"holds a run with training.seed 0, not 5"):
        train(run(seed=5))


def test_a_corpus_without_validation_is_one_line(run, tmp_path):
    corpora.prepare(["stories:5"], out=tmp_path / "all", tokenizer="bytes", valid_share=0.0)
    with pytest.raises(UserError, match="has nothing to validate on; prepare it with --valid"):
        train(replace(run(), data=tmp_path / "all"))


def test_too_little_memory_is_one_line(run, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 53 GiB")

    monkeypatch.setattr(torch.Tensor, "backward", full)
    with pytest.raises(UserError, match=r"out of memory: 4 sequences at once are too many; give a smaller --runtime"):
        train(run())


def test_it_stops_early_when_the_validation_loss_no_longer_falls(run):
    still = {"learning_rate": 1e-30, "final_learning_rate": 0.0}  # nothing moves
    plan = run(steps=40, evaluate_every=2, patience=2, runtime={"save_every": 25}, **still)
    results = train(plan)
    assert results["step"] < 40
    assert results["worse"] == 2
    assert (plan.out / f"step-{results['step']:08}").exists()
    assert train(plan)["step"] == results["step"], "it does not begin again"
    assert not results["interrupted"]


def test_it_stops_when_the_validation_loss_is_low_enough(run):
    plan = run(steps=40, evaluate_every=4, stop_at=100.0)
    results = train(plan)
    assert (results["step"], results["interrupted"]) == (4, False)
    assert train(plan)["step"] == 4, "it does not begin again"
    with pytest.raises(UserError, match=r"stopped at step 4, where it was as good as 100\.0, and more steps change"):
        train(run(steps=80, evaluate_every=4, stop_at=100.0), lengthen=True)


def strict(file):
    """The lines of a log, where NaN and Infinity are no JSON."""
    return [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]


def test_a_run_that_diverges_is_an_error_and_keeps_the_last_good_checkpoint(run):
    plan = run(learning_rate=1e30, final_learning_rate=1e30, warm_up=0, steps=20, runtime={"save_every": 1})
    way_out = r"in another folder, take a smaller learning_rate than 1e\+30 .*: --from .*/run/step-0000000\d$"
    for _ in range(2):  # the same command fails again, and names the way out again
        with pytest.raises(Diverged, match=rf"at step \d+ .*{way_out}"):
            train(plan)
        assert all(weight.isfinite().all() for weight in weights(plan).values())
        assert len(strict(plan.out / "log.jsonl")) >= 1
    assert len(checkpoint.steps(plan.out)) == 1


def poison(monkeypatch, number, where):
    """The optimiser's step of that number leaves NaN in the weights, in a moment, or says that the norm is infinite."""
    taken, step = [], torch.optim.AdamW.step
    clip = torch.nn.utils.clip_grad_norm_

    def poisoned(self, *arguments):
        step(self, *arguments)
        taken.append(1)
        weight = self.param_groups[0]["params"][0]
        if len(taken) == number and where != "norm":
            (weight.data if where == "weight" else self.state[weight]["exp_avg"]).view(-1)[0] = float("nan")

    def clipped(weights, limit):
        norm = clip(weights, limit)
        return norm * float("inf") if len(taken) + 1 == number and where == "norm" else norm

    monkeypatch.setattr(torch.optim.AdamW, "step", poisoned)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("weight", r"embedding.weight contains NaN or Inf at step 8"),
        ("moment", r"exp_avg.embedding.weight contains NaN or Inf at step 8"),
        ("norm", r"the norm of the gradient is inf at step 8"),
    ],
)
def test_a_state_that_is_not_finite_is_never_saved(run, monkeypatch, where, message):
    """A finite loss is no proof: weights, moments and gradient are checked before they replace a good checkpoint."""
    plan = run(runtime={"save_every": 4})
    poison(monkeypatch, 8, where)
    with pytest.raises(Diverged, match=rf"{message} of .*the last good checkpoint: --from .*step-00000004$"):
        train(plan)
    assert [path.name for path in checkpoint.steps(plan.out)] == ["step-00000004"]
    strict(plan.out / "log.jsonl")
    monkeypatch.undo()
    assert train(plan)["step"] == 12


def test_a_checkpoint_that_is_not_finite_is_refused(run):
    """As others may write it, with the checksums that it has."""
    plan = run(steps=1)
    train(plan)
    file = plan.out / "step-00000001" / "model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, file, {"format": "pt"})
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["files"] |= files.describe_files(file.parent, [file.name])
    (file.parent / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"step-00000001: .* contains NaN or Inf; remove that folder to start again"):
        train(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 13}, r"holds a run with training.steps 12, not 13; name another folder, or remove that one"),
        ({"batch": 2}, r"holds a run with training.batch 4, not 2; name another folder, or remove that one"),
        ({"model": {"blocks": 1}}, r"holds a run with model.blocks 2, not 1"),
    ],
)
def test_another_run_in_the_same_folder_is_refused_and_nothing_is_lost(run, change, message):
    plan = run()
    train(plan)
    before = weights(plan)
    with pytest.raises(UserError, match=message):
        train(run(**change))
    assert same(weights(plan), before)


def test_another_corpus_in_the_same_folder_is_refused(run, tmp_path):
    plan = run()
    train(plan)
    corpora.prepare(["stories:60:9"], out=tmp_path / "other", tokenizer="bytes", valid_share=0.1)
    with pytest.raises(UserError, match="holds a run with corpus"):
        train(replace(plan, data=tmp_path / "other"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"context": 10**6}}, r"the train split of .* has [\d,]+ tokens, and a window of 1000000 wants"),
        ({"model": {"heads": 5}}, "width 16 does not split into 5 heads"),
        ({"runtime": {"device": "tpu"}}, "there is no device 'tpu' here; there is cpu"),
        ({"runtime": {"micro_batch": 3}}, "micro_batch 3 does not divide the 4 sequences of a process"),
    ],
)
def test_impossible_settings_are_errors_before_anything_is_written(run, change, message):
    plan = run(**change)
    with pytest.raises(UserError, match=message):
        train(plan)
    assert not plan.out.exists()


def flip(file):
    """One bit of the last number."""
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def halve(file):
    """Half of the tensors, as where one of two shards is missing."""
    with safe_open(file, framework="pt") as opened:
        names, metadata = sorted(opened.keys())[::2], opened.metadata()
        save_file({name: opened.get_tensor(name) for name in names}, file, metadata)


def stray(file):
    """Weights of another model, perhaps put there for a while."""
    tensors = {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}
    save_file(tensors, file.with_name("other.safetensors"))


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A run that saved steps 1 and 2, to be copied and damaged."""
    runtime = RuntimeConfig(device="cpu", samples=0, save_every=1, keep=2)
    plan = Run(
        data=corpus, out=tmp_path_factory.mktemp("runs") / "run", model=ModelArgs(**TINY), runtime=runtime,
        training=Training(**STEPS | {"steps": 2}),
    )  # fmt: skip
    train(plan)
    return plan


MOMENTS = "training/shard-00001-model-00001-of-00001.safetensors"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (MOMENTS, lambda file: file.write_bytes(b"nothing"), "has 7 bytes"),
        (MOMENTS, lambda file: file.unlink(), r"shard-.* is in manifest.json, and cannot be read"),
        (MOMENTS, halve, r"has \d+ bytes"),
        (MOMENTS, stray, r"training/other.safetensors is not in manifest.json; remove that file"),
        (MOMENTS, flip, r"is damaged: its CRC-32 is \w{8}, and manifest.json says \w{8}"),
        ("model.safetensors", flip, "model.safetensors is damaged: its CRC-32"),
        ("model.safetensors", stray, "other.safetensors is not in manifest.json; remove that file"),
        ("progress.json", lambda file: file.write_text('{"step": 1}'), "progress.json has"),
        ("manifest.json", lambda file: file.write_text('{"files": 3}'), "manifest.json is damaged"),
        ("manifest.json", lambda file: file.unlink(), "it has no manifest.json, with the checksums of its files"),
        ("config.json", flip, "config.json is damaged: its CRC-32"),
        ("tokenizer.json", flip, "tokenizer.json is damaged: its CRC-32"),
        ("generation_config.json", lambda file: file.unlink(), "generation_config.json is in manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_named(trained, tmp_path, name, damage, message, capfd):
    plan = replace(trained, out=shutil.copytree(trained.out, tmp_path / "run"))
    newest = plan.out / "step-00000002"
    damage(newest / name)
    with pytest.raises(UserError, match=rf"cannot resume from .*step-00000002: .*({message})") as caught:
        train(plan)
    named = damage is stray and "remove that file" in str(caught.value)  # one remedy is enough
    ending = "; remove that file" if named else "remove that folder to resume from the one before, step-00000001"
    assert str(caught.value).endswith(ending)
    shutil.rmtree(newest)
    assert train(plan)["valid_loss"] == train(trained)["valid_loss"]
    assert "Traceback" not in capfd.readouterr().err


def test_flipped_bits_are_refused_when_the_model_is_used(trained, tmp_path):
    folder = shutil.copytree(checkpoint.newest(trained.out), tmp_path / "model")
    flip(folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors is damaged: its CRC-32 .*or remove manifest.json if the"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", ('"context": 16', '"context": 8')),
        ("tokenizer.json", ('"Ġ"', '"ġ"')),
        ("tokenizer_config.json", ('"name": "bytes"', '"name": "bites"')),
    ],
)
def test_a_changed_file_is_refused_by_every_reader(trained, tmp_path, name, change, capsys):
    folder = shutil.copytree(checkpoint.newest(trained.out), tmp_path / "model")
    text = (folder / name).read_text(encoding="utf-8")
    assert change[0] in text
    (folder / name).write_text(text.replace(*change), encoding="utf-8")
    message = (
        rf"model: {name} (is damaged|has \d+ bytes).* manifest.json says \w+; restore it, or remove manifest.json if"
    )
    readers = [
        lambda: LoadedModel.open(folder),
        lambda: train(replace(trained, out=tmp_path / "tuned", init_from=folder)),
    ]
    model = [lambda: checkpoint.load(folder), lambda: checkpoint.read_config(folder)]
    for reader in readers + (model if name == "config.json" else [lambda: Tokenizer.load(folder)]):
        with pytest.raises(UserError, match=message):
            reader()
    if name == "config.json":
        assert main(["info", str(folder)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    (folder / "manifest.json").unlink()
    LoadedModel.open(folder)


def test_a_disk_that_fills_while_saving_leaves_the_last_checkpoint(run, monkeypatch):
    import torch.distributed.checkpoint as dcp

    save, calls = dcp.save, []

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return save(*arguments, **options)

    monkeypatch.setattr(dcp, "save", full)
    plan = run(runtime={"save_every": 4, "keep": 3})
    with pytest.raises(UserError, match="No space left on device"):
        train(plan)
    assert [path.name for path in checkpoint.steps(plan.out)] == ["step-00000004", "step-00000008"]
    assert not list(plan.out.glob(".*.part"))
    monkeypatch.undo()
    assert train(plan)["step"] == 12


def test_what_a_killed_run_left_is_removed(run):
    plan = run(steps=2)
    step = plan.out / ".step-00000002.3.1@elsewhere.part"
    step.mkdir(parents=True)
    (step / "model.safetensors").write_text("half")
    names = ("samples.md", "run.yaml", "corpus.json", "results.json")
    for name in names:
        (plan.out / f".{name}.3.1@elsewhere.part").write_text("half")
    (plan.out / ".notes.md.1.part").write_text("of others")
    train(plan)
    assert [path.name for path in plan.out.glob(".*.part")] == [".notes.md.1.part"]


@pytest.mark.parametrize("name", ["run.yaml", "corpus.json"])
def test_checkpoints_without_the_description_of_their_run_are_refused(trained, tmp_path, name):
    plan = replace(trained, out=shutil.copytree(trained.out, tmp_path / "run"))
    (plan.out / name).unlink()
    message = rf"run has the checkpoint step-00000002 and no {name}, .*; restore {name}, or name another folder"
    for other in (plan, replace(plan, training=replace(plan.training, seed=3))):
        with pytest.raises(UserError, match=message):
            train(other, lengthen=True)
    assert not (plan.out / name).exists()


@pytest.mark.parametrize("name", ["run.yaml", "corpus.json"])
def test_a_damaged_description_of_the_run_is_named(run, name):
    plan = run(steps=1)
    plan.out.mkdir()
    for damage in (b"{", b"\xff", b"[]", b"[" * 99_999):
        (plan.out / name).write_bytes(damage)
        with pytest.raises(
            UserError, match=rf"{name} (is damaged|is not UTF-8).*name another folder, or remove"
        ) as caught:
            train(plan)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["save", "load"])
def test_ctrl_c_while_a_checkpoint_is_written_or_read_is_no_error_of_it(run, monkeypatch, what):
    """torch wraps whatever is raised within, Ctrl-C too."""
    import torch.distributed.checkpoint as dcp

    one = run("one", steps=2)
    if what == "load":
        train(one)
        one = run("one", steps=2)

    def interrupt(*arguments, **options):
        raise dcp.CheckpointException("interrupted", {0: (KeyboardInterrupt(), None)})

    monkeypatch.setattr(dcp, what, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(one)


@pytest.mark.slow
def test_killed_eight_times_it_ends_the_same(run):
    """kill -9 before events of the file system: most of them while saving, since it saves after each step."""
    change = {
        "steps": 30,
        "runtime": {"save_every": 1, "log_every": 1},
        "model": {"dropout": 0.1},
        "evaluate_every": 15,
    }
    whole, killed = run("whole", **change), run("killed", **change)
    train(whole)
    for number in range(8):
        process = fork(killed, kill_before=50 + 13 * number)
        process.join(HANG)
        assert process.exitcode == -signal.SIGKILL, f"it ended before kill {number}"
    assert "step-00000005" < checkpoint.newest(killed.out).name < "step-00000030"
    finish(start(killed))
    assert same(weights(whole), weights(killed))
    assert losses(whole) == losses(killed)
    assert not list(killed.out.glob(".*.part"))
