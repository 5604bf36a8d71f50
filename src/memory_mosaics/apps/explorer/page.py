"""The page as one HTML file: markup, style, script and, in a saved view, all the data that it shows."""

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from memory_mosaics.files import write_text

SCRIPTS = ("basics", "source", "text", "mosaic", "cards", "pane", "moons", "export", "tour", "main")


def read_asset(name: str) -> str:
    """Return the text of a file of the page."""
    return files("memory_mosaics.apps.explorer").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _assets() -> tuple[str, str, str]:
    """Return the page's markup, style and script."""
    markup, style, *scripts = map(read_asset, ("page.html", "style.css", *(f"{name}.js" for name in SCRIPTS)))
    return markup, style, '"use strict";\n' + "\n".join(scripts)


def policy() -> str:
    """Return the Content-Security-Policy of the page: its own style and script, and nothing from other hosts."""
    _, style, script = _assets()
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (script, style)]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def build(data: dict[str, Any]) -> str:
    """Return the page with the data it starts with. With a `record` it is a saved view, which needs no server."""
    markup, style, script = _assets()
    plain = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">' if "record" in data else ""
    parts = {"POLICY": meta, "STYLE": style, "SCRIPT": script, "DATA": plain}
    for name, part in parts.items():
        markup = markup.replace(f"<!--{name}-->", part, 1)
    return markup


class View:
    """A saved view: shown by a notebook if it is the last line of a cell, or written to a file."""

    def __init__(self, data: dict[str, Any], *, height: int = 760):
        self.html, self.height = build(data), height

    def _repr_html_(self) -> str:
        # A document of its own: neither its style nor its script can touch the notebook.
        style = f"width:100%;height:{self.height}px;border:0"
        attributes = f'title="Memory Mosaic" sandbox="allow-scripts allow-downloads" style="{style}"'
        return f'<iframe {attributes} srcdoc="{escape(self.html)}"></iframe>'

    def save(self, file: str | Path) -> Path:
        """Write the view as one HTML file, which needs no server."""
        write_text(Path(file), self.html)
        return Path(file)
