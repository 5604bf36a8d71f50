"""Execute a tutorial: its blocks of Python and its `mosaics` commands, from top to bottom, in an empty folder.

    python docs/tutorials/execute.py PAGE.md OUT

writes the page with what was printed and drawn below each block, its figures, and the same as a notebook for Jupyter.
An error in a block is an error here.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt

from memory_mosaics.cli import main
from memory_mosaics.experiments.figures import STYLE

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


@mpl.rc_context(STYLE["settings"])
def execute(page: Path, out: Path) -> None:
    """Write OUT/NAME.md, OUT/NAME.ipynb and OUT/NAME-NUMBER.svg."""
    text, names, written, cells, drawn = page.read_text(encoding="utf-8"), {"__name__": "__main__"}, [], [], 0
    mpl.use("agg")
    torch.manual_seed(0)
    pieces = BLOCK.split(text)  # prose, language, code, prose, ...
    for prose, language, code in zip(pieces[::3], [*pieces[1::3], ""], [*pieces[2::3], ""], strict=True):
        written.append(prose)
        if prose.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": prose.strip()})
        if not language:
            break
        printed = run(language, code, names, page)
        written.append(f"```{language}\n{code}```\n")
        outputs: list[dict[str, Any]] = []
        if printed:
            written.append(f"\n```{{.text .output}}\n{printed.rstrip()}\n```\n")
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed})
        for number in plt.get_fignums():
            figure, drawn = plt.figure(number), drawn + 1
            file = out / f"{page.stem}-{drawn}.svg"
            figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")
            written.append(f"\n![{figure.get_label()}]({file.name})\n")
            data = {"image/svg+xml": file.read_text(encoding="utf-8")}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        plt.close("all")
        source = code if language == "python" else re.sub("^(?=mosaics)", "!", code, flags=re.MULTILINE)
        cell = {"cell_type": "code", "metadata": {}, "execution_count": None}
        cells.append(cell | {"source": source.rstrip(), "outputs": outputs})
    written.append(f"\n[This page as a notebook]({page.stem}.ipynb), with its outputs.\n")
    (out / page.name).write_text("".join(written), encoding="utf-8")
    notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": {"language_info": {"name": "python"}}, "cells": cells}
    (out / page.with_suffix(".ipynb").name).write_text(json.dumps(notebook, indent=1), encoding="utf-8")


def run(language: str, code: str, names: dict[str, Any], page: Path) -> str:
    """Run a block and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if language == "python":
            exec(compile(code, page.name, "exec"), names)
        else:
            for line in code.replace("\\\n", " ").splitlines():
                if exit_code := main(shlex.split(line, comments=True)[1:]):
                    raise SystemExit(f"exit code {exit_code}: {line}")
    return printed.getvalue()


if __name__ == "__main__":
    page, out = (Path(argument).resolve() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, "")  # modules that a page writes
        execute(page, out)
