"""The log of a run: log.jsonl always, one JSON object a line; TensorBoard, wandb and trackio where asked for."""

import json
import sys
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

from tqdm import tqdm

from memory_mosaics.errors import UserError
from memory_mosaics.files import atomic_write, read_bytes
from memory_mosaics.training.config import AnyRun
from memory_mosaics.training.folder import trim_samples

SHOWN = {"loss": "loss {:.3f}", "valid_loss": "valid {:.3f}", "tokens_per_second": "{:,.0f} tokens/s"}


class Log:
    """RUN/log.jsonl and the line on the screen. A run that goes on from `step` forgets the lines that came after it."""

    def __init__(self, run: AnyRun, *, step: int = 0, silent: bool = False):
        self._silent = silent
        self._shown: dict[str, float] = {}
        self.bar = tqdm(
            total=run.training.steps, initial=step, desc=run.out.name, unit="step", disable=silent or None, leave=True
        )
        if silent:
            return
        file = run.out / "log.jsonl"
        trim(file, step)
        trim_samples(run.out / "samples.md", step)
        self._also = [LOGGERS[name](run.out, step, run.plain()) for name in run.machine.loggers]
        self._stream = file.open("a", encoding="utf-8")

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.close()
        if not self._silent:
            self._stream.close()
            for log in self._also:
                log.close()

    def write(self, step: int, **numbers: Any) -> None:
        """Add a line, on the disk at once, and show the newest numbers."""
        if self._silent:
            return
        self._stream.write(json.dumps({"step": step, **numbers}, allow_nan=False) + "\n")
        self._stream.flush()
        for log in self._also:
            log.write(step, {name: value for name, value in numbers.items() if not isinstance(value, list)})
        self._shown.update({name: value for name, value in numbers.items() if name in SHOWN})
        self.bar.set_postfix_str(", ".join(SHOWN[name].format(value) for name, value in self._shown.items()))


MAX_LOG_BYTES = 1 << 30


def read(file: Path, *names: str) -> list[dict[str, Any]]:
    """The lines of a log that have numbers of such `names`.

    A log is only a record: damaged lines do not count, nor does what a killed run left half-written at the end.
    """
    try:
        content = read_bytes(file, MAX_LOG_BYTES)
    except FileNotFoundError:
        return []
    lines = (_line(text) for text in content.rpartition(b"\n")[0].split(b"\n"))
    return [line for line in lines if line and all(name in line for name in names)]


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return None
    values = [one for value in line.values() for one in (value if isinstance(value, list) else [value])]
    return line if all(type(value) in (int, float) and isfinite(value) for value in values) else None


def trim(file: Path, step: int) -> None:
    """Forget the lines after a step, as a run that goes on from there will write them again, and damaged ones."""
    lines = read(file)
    if file.exists() and (damaged := read_bytes(file, MAX_LOG_BYTES).count(b"\n") - len(lines)):
        print(f"{file}: {damaged} damaged lines are left out", file=sys.stderr)
    with atomic_write(file) as tmp:
        kept = "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step)
        tmp.write_text(kept, encoding="utf-8")


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
