"""The log of a run: log.jsonl with one JSON object per line, samples.md, and optionally TensorBoard, wandb, trackio."""

import json
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

from memory_mosaics.errors import UserError
from memory_mosaics.files import atomic_write, read_bytes, write_text
from memory_mosaics.results import open_bar
from memory_mosaics.training.config import AnyRun

SHOWN = {"loss": "loss {:.3f}", "valid_loss": "valid {:.3f}", "tokens_per_second": "{:,.0f} tokens/s"}
BAR, NAME_WIDTH = "{desc} |{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}", 24
MAX_LOG_BYTES = 1 << 30


class Log:
    """RUN/log.jsonl and the progress bar. For a run that resumes at `step`, later lines are removed."""

    def __init__(self, run: AnyRun, *, step: int = 0, silent: bool = False):
        self._shown: dict[str, Any] = {}
        options = {"initial": step, "bar_format": BAR, "disable": silent}
        self.bar = open_bar(run.out.name[:NAME_WIDTH], run.training.steps, **options)
        file, names = (Path(os.devnull), ()) if silent else (run.out / "log.jsonl", run.runtime.loggers)
        if not silent:
            _trim_log(file, step)
            _trim_samples(run.out / "samples.md", step)
        self._loggers = [LOGGERS[name](name, run.out, step, run.plain()) for name in names]
        self._stream = file.open("a", encoding="utf-8")

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.close()
        self._stream.close()
        for logger in self._loggers:
            logger.close()

    def show(self, text: str) -> None:
        """Show what is done until the next line is written; a log file has its lines when they are due."""
        self.bar.set_postfix_str(text, refresh=sys.stderr.isatty())

    def write(self, step: int, **numbers: Any) -> None:
        """Append a line, flush it, and show the newest numbers."""
        self._stream.write(json.dumps({"step": step, **numbers}, allow_nan=False) + "\n")
        self._stream.flush()
        for logger in self._loggers:
            logger.write(step, {name: value for name, value in numbers.items() if not isinstance(value, list)})
        self._shown.update(numbers)
        self.show(", ".join(text.format(self._shown[name]) for name, text in SHOWN.items() if name in self._shown))


def read_log(file: Path, *names: str) -> list[dict[str, Any]]:
    """Return the lines of a log that have all of these `names`, without damaged lines."""
    return [line for line in _parse_log(file) if line and all(name in line for name in names)]


def _parse_log(file: Path) -> list[dict[str, Any] | None]:
    """Return all lines, None for damaged ones; an incomplete last line, which a killed run left, is left out."""
    try:
        return [_parse_line(text) for text in read_bytes(file, MAX_LOG_BYTES).split(b"\n")[:-1]]
    except FileNotFoundError:
        return []


def _parse_line(text: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        line = json.loads(text)
        values = [value for name, value in line.items() if name != "losses"] + line.get("losses", [])  # of models
        if isinstance(line["step"], int) and all(type(value) in (int, float) and isfinite(value) for value in values):
            return line
    return None


def _trim_log(file: Path, step: int) -> None:
    """Drop the lines after a step, which the resumed run writes again, and damaged lines."""
    lines = _parse_log(file)
    if damaged := lines.count(None):
        print(f"{file}: {damaged} damaged lines are left out", file=sys.stderr)
    write_text(file, "".join(json.dumps(line) + "\n" for line in lines if line and line["step"] <= step))


def _trim_samples(file: Path, step: int) -> None:
    """Drop the samples after a step; anything else in the file stays."""
    if file.exists():
        before, *others = re.split(rb"^## step (\d{1,18})$", read_bytes(file), flags=re.M)
        sections = zip(others[::2], others[1::2], strict=True)
        kept = [b"## step " + number + text for number, text in sections if int(number) <= step]
        with atomic_write(file) as tmp:
            tmp.write_bytes(before + b"".join(kept))


def write_samples(file: Path, step: int, samples: list[tuple[str, str]]) -> None:
    """Append the samples of a step: each prompt in bold, then its continuation."""
    if samples:
        lines = [[part.replace("\n", "  \n") for part in sample] for sample in samples]  # line breaks in Markdown
        texts = "".join(f"\n**{prompt}**{text}\n" for prompt, text in lines)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"## step {step}\n{texts}\n")


class TensorBoardLogger:
    """Event files in RUN/tensorboard."""

    def __init__(self, library: str, run: Path, step: int, config: dict[str, Any]):
        module = _import("torch.utils.tensorboard", library)
        self.writer = module.SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    """A run of wandb or trackio, which share one interface. wandb resumes by the id in RUN/wandb.id."""

    def __init__(self, library: str, run: Path, step: int, config: dict[str, Any]):
        module, options = _import(library, library), {}
        if library == "wandb":
            file = run / "wandb.id"
            if not file.exists():
                file.write_text(uuid4().hex[:8], encoding="utf-8")
            options = {"id": file.read_text(encoding="utf-8"), "dir": str(run)}
        self.session = module.init(project="memory-mosaics", name=run.name, config=config, resume="allow", **options)

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self.session.log(numbers, step=step)

    def close(self) -> None:
        self.session.finish()


def _import(module: str, library: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"the logger {library} is not installed: pip install {library}") from error


LOGGERS = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger, "trackio": WandbLogger}
