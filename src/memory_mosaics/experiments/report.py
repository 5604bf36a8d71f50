"""Output of studies of trained models: results.json written model by model, text tables, self-contained HTML pages."""

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from memory_mosaics import results as result_files
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import figures
from memory_mosaics.files import write_text
from memory_mosaics.language_model import parameter_count
from memory_mosaics.models import architecture_name


def collect_records(
    records: Iterable[dict[str, Any]],
    results: dict[str, Any],
    out: Path,
    *,
    write_pages: Callable[[], object] | None = None,
    pages: Sequence[str] = (),
) -> None:
    """Add records to results["models"] one by one, and write results.json, and the pages if there are any, after each.

    Until the last record results.json has "interrupted": true, so that a killed study does not look complete. Ctrl-C
    keeps the records that are there. Files of an earlier study in the folder (results.json, figures, `pages`) are
    removed first; an error before the first record restores them.
    """
    result_files.prepare(out)
    own = [out / name for name in ("results.json", *figures.names(results["study"]), *pages)]
    before = {file: file.read_bytes() for file in own if file.is_file()}
    for file in before:
        file.unlink()
    models = results["models"]

    def write(*, interrupted: bool) -> None:
        results["interrupted"] = interrupted
        if write_pages is not None and models:
            write_pages()
        result_files.write(out / "results.json", results)

    try:
        write(interrupted=True)
        for record in records:
            models.append(record) if isinstance(models, list) else models.update(record)
            write(interrupted=True)
        write(interrupted=False)
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


def print_summary(table: str, results: dict[str, Any], out: Path, *, draw: bool = True) -> None:
    """Print a table, whether the study was interrupted, and which files were written; draw the figures."""
    stopped = "Stopped: these are the models that were finished. " if results["interrupted"] else ""
    drawn = f" {figures.draw_if_possible(results, out)}" if draw else ""
    print(f"{table}\n{stopped}Results: {out / 'results.json'}.{drawn}")


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ([f"{line[0]:{widths[0]}}", *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in aligned)


def template(name: str) -> str:
    """Return the text of a file in templates/."""
    return files("memory_mosaics.experiments").joinpath("templates", name).read_text(encoding="utf-8")


class Page:
    """An HTML page in one file that loads nothing from elsewhere."""

    def __init__(self, title: str, *, styles: Sequence[str] = ("page.css",)):
        self.title, self.styles, self._parts = title, styles, []

    def html(self, fragment: str) -> None:
        """Add HTML as it is: the caller escapes what is text."""
        self._parts.append(fragment)

    def heading(self, text: str) -> None:
        self.html(f"<h2>{escape(text)}</h2>")

    def text(self, *paragraphs: str) -> None:
        self._parts += [f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs]

    def code(self, text: str) -> None:
        self.html(f"<pre>{escape(text)}</pre>")

    def figure(self, file: Path, caption: str) -> None:
        """Add a PNG, embedded in the page."""
        data = base64.b64encode(file.read_bytes()).decode()
        image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        self.html(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table: the first column is text, the others are numbers."""
        lines = ["".join(f"<th>{escape(cell)}</th>" for cell in header)]
        lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        self.html(f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>')

    def side_by_side(self, columns: dict[str, str], notes: dict[str, str] | None = None) -> None:
        """Add texts in columns, each below its name, with a note below it."""
        notes = {name: f"<small>{escape(note)}</small>" for name, note in (notes or {}).items()}
        cells = (
            f"<div><strong>{escape(name)}</strong>{escape(text)}{notes.get(name, '')}</div>"
            for name, text in columns.items()
        )
        self.html(f'<div class="columns">{"".join(cells)}</div>')

    def write(self, file: Path) -> Path:
        style = "".join(map(template, self.styles))
        page = Template(template("page.html")).substitute(
            title=escape(self.title), style=style, body="\n".join(self._parts)
        )
        write_text(file, page)
        return file
