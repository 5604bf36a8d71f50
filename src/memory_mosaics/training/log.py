"""The log of a run: log.jsonl always, one JSON object a line; TensorBoard, wandb and trackio where asked for."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from tqdm import tqdm

from memory_mosaics.errors import UserError
from memory_mosaics.files import written_whole
from memory_mosaics.training.folder import trim_samples
from memory_mosaics.training.recipe import Run, plain

SHOWN = {"loss": "loss {:.3f}", "valid_loss": "valid {:.3f}", "tokens_per_second": "{:,.0f} tokens/s"}


class Log:
    """RUN/log.jsonl and the line on the screen. A run that goes on from `step` forgets the lines that came after it."""

    def __init__(self, run: Run, *, step: int = 0, silent: bool = False):
        self._silent = silent
        self._shown: dict[str, float] = {}
        self.bar = tqdm(
            total=run.training.steps, initial=step, desc=run.out.name, unit="step", disable=silent or None, leave=True
        )
        if silent:
            return
        file = run.out / "log.jsonl"
        kept = [line for line in read(file) if line["step"] <= step]
        with written_whole(file) as aside:
            aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        trim_samples(run.out / "samples.md", step)
        self._also = [LOGGERS[name](run.out, step, plain(run)) for name in run.machine.loggers]
        self._stream = file.open("a", encoding="utf-8")

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.close()
        if not self._silent:
            self._stream.close()
            for log in self._also:
                log.close()

    def write(self, step: int, **numbers: float) -> None:
        """Add a line, on the disk at once, and show the newest numbers."""
        if self._silent:
            return
        self._stream.write(json.dumps({"step": step, **numbers}) + "\n")
        self._stream.flush()
        for log in self._also:
            log.write(step, numbers)
        self._shown.update({name: value for name, value in numbers.items() if name in SHOWN})
        self.bar.set_postfix_str(", ".join(SHOWN[name].format(value) for name, value in self._shown.items()))


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a log. What a killed run left half-written at the end does not count."""
    if not file.exists():
        return []
    whole, _, _ = file.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


class Tensorboard:
    """Event files in RUN/tensorboard."""

    def __init__(self, run: Path, step: int, config: dict[str, Any]):
        with _installed("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run at Weights & Biases, the same one when it goes on: its id is in RUN/wandb.id."""

    def __init__(self, run: Path, step: int, config: dict[str, Any]):
        with _installed("wandb"):
            import wandb  # type: ignore[import-not-found]
        file = run / "wandb.id"
        if not file.exists():
            file.write_text(uuid4().hex[:8], encoding="utf-8")
        options = {"id": file.read_text(encoding="utf-8"), "resume": "allow", "dir": str(run), "config": config}
        self.session = wandb.init(project="memory-mosaics", name=run.name, **options)

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self.session.log(numbers, step=step)

    def close(self) -> None:
        self.session.finish()


class Trackio:
    """A local run of trackio, the same one when it goes on."""

    def __init__(self, run: Path, step: int, config: dict[str, Any]):
        with _installed("trackio"):
            import trackio  # type: ignore[import-not-found]
        self.session = trackio.init(project="memory-mosaics", name=run.name, config=config, resume="allow")

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self.session.log(numbers, step=step)

    def close(self) -> None:
        self.session.finish()


class _installed:
    """Turns a missing library into advice."""

    def __init__(self, library: str):
        self.library = library

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ImportError):
            raise UserError(f"the logger {self.library} is not installed: pip install {self.library}") from error


LOGGERS = {"tensorboard": Tensorboard, "wandb": Wandb, "trackio": Trackio}
