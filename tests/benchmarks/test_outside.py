"""`mosaics bench --compare`: a model of somebody else, here a double of nanoGPT's interface, is timed beside ours."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from benchmarks.conftest import SIZE
from memory_mosaics.benchmarks import outside, throughput
from memory_mosaics.cli import main
from memory_mosaics.runtime import Runtime

DOUBLE = """
from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True


class GPT(torch.nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        print("number of parameters: few")
        self.config = config
        self.embedding = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.head = torch.nn.Linear(config.n_embd, config.vocab_size, bias=config.bias)

    def forward(self, idx, targets=None):
        logits = self.head(self.embedding(idx))
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "double.py"
    path.write_text(DOUBLE)
    return path


def test_rows_beside_ours(tiny, file, tmp_path, capsys):
    assert main(["bench", "--cpu", "--compare", str(file), "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results) == ["study", "compare"]
    section = results["compare"]
    assert section["command"] == f"mosaics bench compare --cpu --compare {file}"
    theirs, transformer, mosaic = section["rows"][:3]
    assert [row["model"] for row in section["rows"][:3]] == ["outside", "transformer", "memory-mosaic"]
    assert theirs["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert theirs["settings"] == "eager, float32"
    assert theirs["parameters"] == 2 * SIZE.vocabulary * SIZE.width  # without bias
    assert theirs["tokens_per_second"] == pytest.approx(SIZE.batch * SIZE.context / theirs["step_seconds"], rel=1e-3)
    theirs_again, transformer_again, _ = section["rows"][3:]  # of this size; two of one name have one twin
    ratio = theirs_again["tokens_per_second"] / transformer_again["tokens_per_second"]
    assert theirs_again["relative_speed"] == pytest.approx(ratio, rel=1e-3)
    assert transformer["batch"] == mosaic["batch"] == theirs["batch"] == SIZE.batch
    assert f"GPT of double.py, {theirs['sha256'][:8]}" in output
    assert "number of parameters" not in output


def test_it_trains_on_the_same_tokens_with_the_same_optimizer(file):
    size, device = replace(SIZE, dropout=0.25), torch.device("cpu")
    module = outside.load(file)
    model = outside.build(module, size)
    assert (model.config.block_size, model.config.n_layer, model.config.dropout) == (size.context, size.blocks, 0.25)
    torch.manual_seed(0)
    ours = throughput.RandomTokens(size, device)
    torch.manual_seed(0)
    task = outside.OutsideTokens(size, device)
    assert torch.equal(task.batch(0).inputs, ours.batch(0).inputs)
    before = model.head.weight.detach().clone()
    step = outside.training_step(model, task)
    expected = task.loss(model, task.batch(0), Runtime()).detach()
    torch.testing.assert_close(step(), expected)
    largest = throughput.TRAINING.rate(0)  # of a first step of AdamW, but for weight decay
    assert 0 < (model.head.weight.detach() - before).abs().max() <= 1.2 * largest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "fails: FileNotFoundError"),
        ("class GPT: ...", "fails: AttributeError: module 'outside_"),
        ("raise RuntimeError('two\\nlines')", "fails: RuntimeError: two lines"),
        ("def", "fails: SyntaxError"),
    ],
)
def test_a_file_that_does_not_serve_is_one_line(tiny, tmp_path, capsys, text, message):
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    assert main(["bench", "--cpu", "--compare", str(path), "--out", str(tmp_path / "out")]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare"], "nothing to compare with; give --compare FILE"),
        (["train", "--compare", "x.py"], "--compare x.py is not used by train; add compare to them"),
    ],
)
def test_a_file_and_the_benchmark_go_together(tiny, tmp_path, capsys, words, message):
    assert main(["bench", *words, "--cpu", "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
