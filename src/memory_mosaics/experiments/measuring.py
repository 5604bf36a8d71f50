"""What studies of trained models share: they measure one after another, and keep what is finished."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import figures
from memory_mosaics.language_model import parameter_count
from memory_mosaics.models import architecture_name


def keep(
    records: Iterable[dict[str, Any]],
    results: dict[str, Any],
    out: Path,
    *,
    also: Callable[[], object] | None = None,
    pages: Sequence[str] = (),
) -> None:
    """Add records to results["models"] as they come, and write what `also` writes and results.json each time.

    Until the last one the file says that the study was interrupted: a killed one cannot say it any more. Ctrl-C keeps
    those there are. What the study left in the folder before, its figures and `pages` too, goes when it begins; an
    error before the first record, which a wrong flag may be the cause of, puts it back.
    """
    files.prepare(out)
    own = [out / name for name in ("results.json", *figures.names(results["study"]), *pages)]
    before = {file: file.read_bytes() for file in own if file.is_file()}
    for file in before:
        file.unlink()
    models = results["models"]

    def write() -> None:
        if also is not None and models:
            also()
        files.write(out / "results.json", results)

    results["interrupted"] = True
    try:
        write()
        for record in records:
            models.append(record) if isinstance(models, list) else models.update(record)
            write()
        results["interrupted"] = False
        write()
    except KeyboardInterrupt:
        results["interrupted"] = True
        if not models:
            raise
    except UserError:
        if not models:
            (out / "results.json").unlink(missing_ok=True)
            for file, content in before.items():
                file.write_bytes(content)
        raise


def about(trained: LoadedModel) -> dict[str, Any]:
    """Which model a record is of."""
    config = trained.model.config
    return {
        "name": trained.name,
        "checkpoint": trained.folder.name,
        "context": config.context,
        "architecture": architecture_name(config),
        "parameters": parameter_count(trained.model)["total"],
    }
