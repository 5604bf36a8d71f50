"""What studies of trained models share: they measure one after another, and keep what is finished."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memory_mosaics import evaluation
from memory_mosaics import results as files
from memory_mosaics.language_model import parameter_count
from memory_mosaics.trained import Trained


def keep(records: Iterable[dict[str, Any]], results: dict[str, Any], file: Path) -> None:
    """Add records to results["models"] as they come, and write the file each time. Ctrl-C keeps those there are."""
    try:
        for record in records:
            results["models"].append(record)
            files.write(file, results)
    except KeyboardInterrupt:
        if not results["models"]:
            raise
        results["interrupted"] = True
        files.write(file, results)


def about(trained: Trained) -> dict[str, Any]:
    """Which model a record is of."""
    config = trained.model.config
    return {
        "name": trained.name,
        "checkpoint": trained.folder.name,
        "context": config.context,
        "architecture": evaluation.architecture(config),
        "parameters": parameter_count(trained.model)["total"],
    }
