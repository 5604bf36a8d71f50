"""One self-contained HTML page: text, tables and figures, with nothing to load from anywhere."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from memory_mosaics.files import atomic_write

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ddd; --soft: #f5f5f3; --accent: #b84e00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #17181a; --line: #3a3b3d; --soft: #222426; --accent: #ff9a55; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; }
img { display: block; max-width: 100%; height: auto; margin: 1rem 0; padding: .4rem; background: #fff;
  border-radius: 6px; }
figcaption { font-size: .9rem; opacity: .8; max-width: 46rem; }
figure { margin: 1.2rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { padding: .35rem .9rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: 1rem; }
.beside > div { background: var(--soft); border-radius: 6px; padding: .8rem 1rem; white-space: pre-line;
  overflow-wrap: anywhere; }
.beside strong { display: block; color: var(--accent); margin-bottom: .3rem; }
.beside small { display: block; opacity: .7; margin-top: .4rem; }
pre { background: var(--soft); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; font-size: .9rem; }
"""


class Page:
    """Grows from top to bottom; `write` puts it into one file."""

    def __init__(self, title: str):
        self.title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, *paragraphs: str) -> None:
        self._parts += [f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs]

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def figure(self, file: Path, caption: str) -> None:
        """A PNG, within the page."""
        data = base64.b64encode(file.read_bytes()).decode()
        image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        self._parts.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """The first column is text, the others are numbers."""
        lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
        lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        self._parts.append(f'<div class="wide"><table>{body}</table></div>')

    def beside(self, columns: dict[str, str], notes: dict[str, str] | None = None) -> None:
        """Texts side by side, each under its name, and under it what is noted of it."""
        notes = {name: f"<small>{escape(note)}</small>" for name, note in (notes or {}).items()}
        cells = (
            f"<div><strong>{escape(name)}</strong>{escape(text)}{notes.get(name, '')}</div>"
            for name, text in columns.items()
        )
        self._parts.append(f'<div class="beside">{"".join(cells)}</div>')

    def write(self, file: Path) -> Path:
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        icon = '<link rel="icon" href="data:,">'  # or the browser would ask for one
        title = f"<title>{escape(self.title)}</title>"
        page = f'<!doctype html><html lang="en"><head>{head}{icon}{title}<style>{STYLE}</style></head>'
        with atomic_write(file) as tmp:
            tmp.write_text(f"{page}<body>{''.join(self._parts)}</body></html>\n", encoding="utf-8")
        return file
