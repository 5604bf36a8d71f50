"""Outside benchmarks: any task of lm-evaluation-harness, through the bridge to Hugging Face, without a network."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import checkpoint
from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.runtime import find_device

TASK_FOLDERS: list[Path] = []  # of tasks that apps bring along; they add theirs
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def run(
    run: Path,
    *,
    tasks: list[str],
    include_path: Path | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    shots: int | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> dict[str, Any]:
    """Measure a trained model on tasks of lm-evaluation-harness, offline; story_memory is one that comes with this.

    A task of the harness itself runs where its data are in Hugging Face's cache already.

    Args:
        run: the folder of a training run, or a checkpoint folder
        tasks: names of tasks, with blanks or commas between them
        include_path: a folder with task files of your own
        limit: only so many items of each task
        batch_size: items at a time
        shots: solved examples before each item; what the task says by default
        device: cuda, mps or cpu; auto takes the first that is there
        out: also write the results to this JSON file
    """
    for name, value in (("limit", limit), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    tasks = [name for word in tasks for name in word.split(",") if name]
    if not tasks:
        raise UserError("name at least one task, such as story_memory")
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"include_path {include_path} is not a folder")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"cannot write {out}: name a file in a folder that is there")
    if not run.exists():
        raise UserError(f"there is no run {run}; mosaics train makes one")
    checkpoint.read_config(checkpoint.newest(run))
    if find_spec("lm_eval") is None:
        raise UserError("this needs lm-evaluation-harness: pip install 'memory-mosaics[lm-eval]'")
    with _offline():
        found = measure(
            run, tasks, include_path, device=find_device(device), limit=limit, batch=batch_size, shots=shots
        )
    print(table(found))
    if out is not None:
        files.write(out, found)
    return found


def measure(
    run: Path,
    tasks: list[str],
    include_path: Path | None = None,
    *,
    device: str = "cpu",
    limit: int | None = None,
    batch: int = 8,
    shots: int | None = None,
) -> dict[str, Any]:
    """The metrics of each task, with their standard errors."""
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]
    from lm_eval.models.huggingface import HFLM  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import memory_mosaics.huggingface  # noqa: F401 - so that the Auto classes know ours

    manager = _manager(tasks, include_path)
    trained = LoadedModel.open(run)  # says what is wrong with a checkpoint better than the libraries do
    trained.tokenizer.encode("a")  # and a tokenizer that crashes its library
    model = AutoModelForCausalLM.from_pretrained(trained.folder).to(device).eval()  # type: ignore[arg-type]
    tokenizer = AutoTokenizer.from_pretrained(trained.folder)
    reader = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch)
    try:
        found = simple_evaluate(
            reader, tasks=list(tasks), task_manager=manager, limit=limit, num_fewshot=shots, log_samples=False
        )
    except (OSError, ValueError, ConnectionError) as error:
        raise UserError(f"a task cannot be run: {one_line(error)}") from error
    assert found is not None
    return {
        "study": "lm-eval",
        "model": trained.name,
        "checkpoint": str(trained.folder),
        "limit": limit,
        "items": {name: counts["effective"] for name, counts in found["n-samples"].items()},
        "results": {name: _numbers(metrics) for name, metrics in found["results"].items()},
        **files.environment_info(torch.device(device)),
    }


def table(found: dict[str, Any]) -> str:
    """A line for each task and metric."""
    lines = [f"{'task':28} {'items':>6}  {'metric':22} {'value':>9}   standard error"]
    for task, metrics in found["results"].items():
        for name, value in metrics.items():
            if not name.endswith("_stderr"):
                error = metrics.get(f"{name}_stderr")
                said = "-" if error is None else f"{error:.4f}"
                lines.append(f"{task:28} {found['items'].get(task, 0):6,}  {name:22} {value:9.4f}   {said}")
    return "\n".join(lines)


def _manager(tasks: list[str], include_path: Path | None) -> Any:
    """Knows the tasks. Those of the harness itself, thousands of files, are read only if one is asked for."""
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]

    places = [*TASK_FOLDERS, *([include_path] if include_path else [])]
    for defaults in (False, True):
        manager = TaskManager(include_path=[str(place) for place in places], include_defaults=defaults)
        unknown = [task for task in tasks if not manager.match_tasks([task])]
        if not unknown:
            return manager
    near = get_close_matches(unknown[0], manager.all_tasks, 3) or ["story_memory"]
    raise UserError(f"there is no task {unknown[0]!r}; near to it: {', '.join(near)}")


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """`acc,none` is `acc`; what is no number, such as an alias, is left out."""
    plain = {name.replace(",none", "").replace(",", "_"): value for name, value in metrics.items()}
    return {
        name: float(value)
        for name, value in plain.items()
        if name != "sample_len" and isinstance(value, int | float) and value == value
    }


@contextmanager
def _offline() -> Iterator[None]:
    """Within: no library asks the network, nor says more than a warning."""
    before = {name: os.environ.get(name) for name in OFFLINE}
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
