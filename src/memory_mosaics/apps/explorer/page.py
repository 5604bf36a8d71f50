"""The page: one HTML file with its style, its script and, where nobody serves it, all that it shows."""

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from memory_mosaics.files import write_text

SCRIPTS = ("basics", "source", "text", "mosaic", "cards", "pane", "moons", "export", "main")


def read_asset(name: str) -> str:
    """The text of a file of the page."""
    return files("memory_mosaics.apps.explorer").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _assets() -> tuple[str, str, str]:
    """The page's frame, its style and its script."""
    frame, style, *scripts = map(read_asset, ("page.html", "style.css", *(f"{name}.js" for name in SCRIPTS)))
    return frame, style, '"use strict";\n' + "\n".join(scripts)


def policy() -> str:
    """The Content-Security-Policy that the page keeps to: its own style and script, nothing from anywhere."""
    _, style, script = _assets()
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (script, style)]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def build(data: dict[str, Any]) -> str:
    """The page with what it has to know at the start; a `record` in it makes it one that asks nobody."""
    frame, style, script = _assets()
    frozen = "record" in data
    plain = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">' if frozen else ""
    parts = {"POLICY": meta, "STYLE": style, "SCRIPT": script, "DATA": plain}
    for name, part in parts.items():
        frame = frame.replace(f"<!--{name}-->", part, 1)
    return frame


class View:
    """What the explorer shows of a text, for a notebook (as the last line of a cell) or for a file."""

    def __init__(self, data: dict[str, Any], *, height: int = 760):
        self.html, self.height = build(data), height

    def _repr_html_(self) -> str:
        # A document of its own: neither its style nor its script can touch the notebook.
        look = f"width:100%;height:{self.height}px;border:0"
        sandbox = "allow-scripts allow-downloads"
        return (
            f'<iframe title="Memory Mosaic" sandbox="{sandbox}" style="{look}" srcdoc="{escape(self.html)}"></iframe>'
        )

    def save(self, file: str | Path) -> Path:
        """Write it as one HTML file that opens anywhere."""
        write_text(Path(file), self.html)
        return Path(file)
