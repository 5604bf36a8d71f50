"""Output of commands on trained models: results.json written model by model, text tables, self-contained HTML pages."""

import base64
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape  # torch brings it

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import figures
from memory_mosaics.files import write_text
from memory_mosaics.language_model import parameter_count
from memory_mosaics.models import architecture_name
from memory_mosaics.results import create_output_folder, read_results, write_results

TEMPLATES = Path(__file__).parent / "templates"


def collect_records(
    records: Iterable[dict[str, Any]],
    results: dict[str, Any],
    out: Path,
    *,
    write_page: Callable[[], object] | None = None,
    page: str | None = None,
) -> None:
    """Add records to results["models"] one by one, and write results.json, and the page if there is one, after each.

    Until the last record results.json has "interrupted": true, so that a killed command does not appear complete.
    Ctrl-C keeps the records that are there. The first record replaces what an earlier command left in the folder
    (results.json, figures, `page`), which must be of the same experiment.
    """
    create_output_folder(out)
    read_results(out, results["study"])
    earlier = [out / name for name in (*figures.names(results["study"]), *filter(None, [page]))]
    models = results["models"]

    def write(*, interrupted: bool) -> None:
        results["interrupted"] = interrupted
        if write_page is not None:
            write_page()
        write_results(out / "results.json", results)

    try:
        for record in records:
            if not models:
                for file in earlier:
                    file.unlink(missing_ok=True)
            models.append(record) if isinstance(models, list) else models.update(record)
            write(interrupted=True)
        write(interrupted=False)
    except KeyboardInterrupt:
        results["interrupted"] = True
        if not models:
            raise


def check_output_file(file: Path | None) -> None:
    """Raise an error if a file cannot be written: before the work, not after."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise UserError(f"cannot write {file}: name a file in a folder that is there")


def describe_model(trained: LoadedModel) -> dict[str, Any]:
    """Return the fields that identify a model in a record."""
    config = trained.model.config
    return {
        "name": trained.name,
        "checkpoint": trained.folder.name,
        "context": config.context,
        "architecture": architecture_name(config),
        "parameters": parameter_count(trained.model)["total"],
    }


def log_curve(lines: Iterable[dict[str, Any]], *fields: str) -> list[list[float]]:
    """Return [step, value, ...] for the lines of a training log that have the last of these fields."""
    return [[line["step"], *(round(line[name], 4) for name in fields)] for line in lines if fields[-1] in line]


def print_summary(
    table: str,
    results: dict[str, Any],
    out: Path,
    *,
    draw: bool = True,
    also: str = "",
    if_stopped: str = "what was finished is kept",
) -> None:
    """Print a table, whether the command was interrupted, and which files were written; draw the figures."""
    stopped = f"Stopped; {if_stopped}." if results.get("interrupted") else ""
    drawn = figures.draw_if_possible(results, out) if draw else ""
    print(table)
    print(*filter(None, [stopped, f"Results: {out / 'results.json'}.", also, drawn]))


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ([f"{line[0]:{widths[0]}}", *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in aligned)


def render(template: Path, **values: Any) -> str:
    """Return the text of a template, which may extend and import those of templates/.

    A page loads nothing from elsewhere: the filter `png` embeds a picture. Values are escaped in HTML.
    """
    pages = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.policies["json.dumps_kwargs"] = {}  # in their own order
    pages.filters["png"] = lambda file: f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    return pages.get_template(template.name).render(values)


def write_page(file: Path, template: Path, **values: Any) -> Path:
    """Write a page from a template."""
    write_text(file, render(template, **values))
    return file
