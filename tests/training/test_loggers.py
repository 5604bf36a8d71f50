import importlib.util
import sys

import pytest

from memory_mosaics.errors import UserError
from memory_mosaics.training.loggers import Log, read_log


def test_half_a_line_at_the_end_does_not_count(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_log(file) == [{"step": 1, "loss": 2.0}]
    assert read_log(tmp_path / "none.jsonl") == []


def test_what_came_after_the_checkpoint_is_forgotten(run):
    plan = run()
    plan.out.mkdir()
    with Log(plan) as log:
        for step in (1, 2, 3):
            log.write(step, loss=float(step))
    with Log(plan, step=2) as log:
        log.write(3, loss=30.0)
    assert [line["loss"] for line in read_log(plan.out / "log.jsonl")] == [1.0, 2.0, 30.0]


def test_other_processes_write_nothing(run):
    plan = run()
    plan.out.mkdir()
    with Log(plan, silent=True) as log:
        log.write(1, loss=1.0)
    assert list(plan.out.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_logger_that_is_not_installed_is_named(run, name, monkeypatch):
    for module in ("wandb", "trackio", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    plan = run(runtime={"loggers": [name]})
    plan.out.mkdir()
    with pytest.raises(UserError, match=f"the logger {name} is not installed: pip install {name}"):
        Log(plan)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_reads_what_was_written(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plan = run(runtime={"loggers": ["tensorboard"]})
    plan.out.mkdir()
    with Log(plan) as log:
        log.write(1, loss=3.0)
        log.write(2, loss=2.0)
    events = EventAccumulator(str(plan.out / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 3.0), (2, 2.0)]


DAMAGED = (
    b'{"step": 2, "lo\n\xff\xfe\nnull\n{"loss": 1.0}\n{"step": 3, "norm": NaN}\n{"step": 4, "loss": "low"}\n'
    + b"[" * 9999
)


def test_damaged_lines_block_nothing(run, capsys):
    plan = run()
    plan.out.mkdir()
    file, samples = plan.out / "log.jsonl", plan.out / "samples.md"
    file.write_bytes(b'{"step": 1, "loss": 2.0}\n' + DAMAGED + b'\n{"step": 5, "loss": 1.0}\n')
    samples.write_bytes(b"\xff my notes\n## step 1\na\n## step x\n## step 9\nb\n")
    assert read_log(file) == [{"step": 1, "loss": 2.0}, {"step": 5, "loss": 1.0}]
    assert read_log(file, "valid_loss") == []
    with Log(plan, step=5) as log:
        log.write(6, loss=1.0)
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.write(7, loss=float("nan"))
    assert [line["step"] for line in read_log(file)] == [1, 5, 6]
    assert f"{file}: 7 damaged lines are left out" in capsys.readouterr().err
    assert samples.read_bytes() == b"\xff my notes\n## step 1\na\n## step x\n"
