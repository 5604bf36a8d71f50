"""Command `mosaics lm-eval`: any task of lm-evaluation-harness, through the Hugging Face model, without a network."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.experiments.report import check_output_file, text_table
from memory_mosaics.results import environment_info, write_results
from memory_mosaics.runtime import find_device

TASK_FOLDERS: list[Path] = []  # apps add the folders of their tasks
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
    """Evaluate a trained model on tasks of lm-evaluation-harness, offline; story_memory is included.

    Tasks of the harness itself need their data in the cache of Hugging Face.

    Args:
        run: the folder of a training run, or a checkpoint folder
        tasks: names of tasks, separated by spaces or commas
        include_path: a folder with your own task files
        limit: maximum number of items per task
        batch_size: items per batch
        shots: number of few-shot examples; by default that of the task
        device: cuda, mps or cpu; auto takes the first that is available
        out: also write the results to this JSON file
    """
    check_range(1, 1 << 40, limit=limit, batch_size=batch_size)
    tasks = [name for word in tasks for name in word.split(",") if name]
    if not tasks:
        raise UserError("name at least one task, such as story_memory")
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"include_path {include_path} is not a folder")
    check_output_file(out)
    trained = LoadedModel.open(run)  # its errors are clearer than those of the libraries
    if find_spec("lm_eval") is None:
        raise UserError("this needs lm-evaluation-harness: pip install 'memory-mosaics[lm-eval]'")
    with _offline():
        manager = _task_manager(tasks, include_path)
        found = _evaluate(trained, find_device(device), batch_size, tasks, manager, limit=limit, num_fewshot=shots)
    print(table(found))
    if out is not None:
        write_results(out, found)
    return found


def _evaluate(
    trained: LoadedModel, device: str, batch: int, tasks: list[str], manager: Any, **options: Any
) -> dict[str, Any]:
    """Return the metrics of each task, with their standard errors."""
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]
    from lm_eval.models.huggingface import HFLM  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import memory_mosaics.huggingface  # noqa: F401 - registers our models with the Auto classes

    trained.tokenizer.encode("a")  # a damaged tokenizer.json is an error here
    dtype = trained.model.embedding.weight.dtype  # as other commands: models of the package are stored in bfloat16
    model = AutoModelForCausalLM.from_pretrained(trained.folder, dtype=dtype).to(device).eval()  # type: ignore[arg-type]
    model = HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(trained.folder), batch_size=batch)
    try:
        found = simple_evaluate(model, tasks=tasks, task_manager=manager, log_samples=False, **options)
    except (OSError, ValueError, ConnectionError) as error:
        raise UserError(f"a task cannot be run: {one_line(error)}") from error
    assert found is not None
    return {
        "study": "lm-eval",
        "model": trained.name,
        "checkpoint": str(trained.folder),
        "limit": options["limit"],
        "items": {name: counts["effective"] for name, counts in found["n-samples"].items()},
        "results": {name: _numbers(metrics) for name, metrics in found["results"].items()},
        **environment_info(torch.device(device)),
    }


def table(found: dict[str, Any]) -> str:
    """Return one line per task and metric."""
    rows = []
    for task, metrics in found["results"].items():
        for name, value in metrics.items():
            if not name.endswith("_stderr"):
                error = metrics.get(f"{name}_stderr")
                numbers = [f"{value:.4f}", "-" if error is None else f"{error:.4f}"]
                rows.append([task, f"{found['items'].get(task, 0):,}", name, *numbers])
    return text_table(["task", "items", "metric", "value", "standard error"], rows)


def _task_manager(tasks: list[str], include_path: Path | None) -> Any:
    """Return a manager that knows the tasks. The thousands of files of the harness are read only if one is needed."""
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]

    folders = [str(folder) for folder in (*TASK_FOLDERS, include_path) if folder]
    for defaults in (False, True):
        manager = TaskManager(include_path=folders, include_defaults=defaults)
        unknown = [task for task in tasks if not manager.match_tasks([task])]
        if not unknown:
            return manager
    near = get_close_matches(unknown[0], manager.all_tasks, 3) or ["story_memory"]
    raise UserError(f"there is no task {unknown[0]!r}; near to it: {', '.join(near)}")


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Rename `acc,none` to `acc`, and leave out what is not a number, such as an alias."""
    plain = {name.replace(",none", "").replace(",", "_"): value for name, value in metrics.items()}
    return {
        name: float(value)
        for name, value in plain.items()
        if name != "sample_len" and isinstance(value, int | float) and value == value
    }


@contextmanager
def _offline() -> Iterator[None]:
    """Keep libraries from using the network and from logging anything but errors."""
    logging.disable(logging.WARNING)
    try:
        with patch.dict(os.environ, dict.fromkeys(OFFLINE, "1")):
            yield
    finally:
        logging.disable(logging.NOTSET)
