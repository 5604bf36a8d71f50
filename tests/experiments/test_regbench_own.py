"""A mixer of your own on RegBench, by its dotted path."""

import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from experiments.conftest import small_regbench as run
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import regbench_models


def test_a_mixer_of_your_own(tmp_path, monkeypatch):
    """As docs/regbench.md says it: the mixer of adding_a_mixer.md in a module that lies where the command is given."""
    guide = (Path(__file__).parents[2] / "docs" / "adding_a_mixer.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL) if "@part" in block]
    (tmp_path / "my_mixers.py").write_text(code := dedent(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    results = run(tmp_path / "out", architectures=["my_mixers.RunningMeanConfig", "lstm"], jobs=2)
    assert {one["architecture"] for one in results["runs"]} == {"my_mixers.RunningMeanConfig", "lstm"}
    assert results["labels"]["my_mixers.RunningMeanConfig"] == "RunningMean"
    assert all(one["status"] == "finished" for one in results["runs"])
    own, ours = (regbench_models.architecture(name) for name in ("my_mixers.RunningMeanConfig", "memory-mosaic"))
    for value in ("learning_rate", "weight_decay", "clip", "blocks", "width"):
        assert getattr(own, value) == getattr(ours, value), "the same recipe as ours"
    sizes = {"blocks": 1, "heads": 2, "width": 16}
    for value in ("dropout", "residual_dropout", "embedding_dropout"):
        assert getattr(own.config(**sizes), value) == getattr(ours.config(**sizes), value)
    again = {"architectures": ["my_mixers.RunningMeanConfig"]}
    assert run(tmp_path / "out", **again)["best"] == results["best"]
    (tmp_path / "my_mixers.py").write_text(code.replace("cumsum(1)", "cummax(1).values"))
    with pytest.raises(UserError, match=r"holds runs with my_mixers\.RunningMeanConfig of a file with SHA-256"):
        run(tmp_path / "out", **again)


OWN = """
from dataclasses import dataclass
import torch
from torch import nn
from memory_mosaics import MixerConfig

class Own(nn.Module):
    def __init__(self, width, **_):
        super().__init__()
        self.map, self.scale = nn.Linear(width, width), float(torch.rand(1))
    def forward(self, x, state=None, mask=None):
        {forward}

class OwnConfig(MixerConfig):
    build = lambda self, width, **_: Own(width)
"""


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("return self.map(x), ()", None),
        ("return self.map(x.flip(1)), ()", "own_{n}.OwnConfig looks ahead"),
        ("return self.map(x)", "own_{n}.OwnConfig: "),
        ("return x[..., :3], ()", "own_{n}.OwnConfig: "),
        ("raise RuntimeError('no way')", "own_{n}.OwnConfig: no way; docs/adding_a_mixer.md says what a mixer is"),
    ],
)
def test_a_mixer_of_your_own_is_tried_first(forward, message, tmp_path, monkeypatch):
    n = abs(hash(forward))
    (tmp_path / f"own_{n}.py").write_text(OWN.format(forward=forward))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    name, size = f"own_{n}.OwnConfig", {"blocks": 2, "heads": 1, "width": 16}
    if message is None:
        regbench_models.check_architecture(name, **size)
    else:
        with pytest.raises(UserError, match=re.escape(message.format(n=n))):
            regbench_models.check_architecture(name, **size)
