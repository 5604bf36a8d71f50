"""What the README promises, it keeps: its Python runs, its links exist, its numbers are in a results.json."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(code, tmp_path):
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_the_memory_of_the_readme_answers_what_it_says():
    (code,) = [block for block in BLOCKS if "AssociativeMemory" in block]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert abs(float(run.stdout) - 1) < 0.3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_numbers_of_the_induction_tables_are_those_measured():
    folder = ROOT / "experiments" / "induction"
    results = json.loads((folder / "results.json").read_text())
    for page in (README, (folder / "README.md").read_text()):
        rows = {line.replace("*", "").split(" | ")[0].strip("| "): line.replace("*", "") for line in page.splitlines()}
        for record in results["models"].values():
            assert f"| {record['parameters']:,} | {record['final']['accuracy']:.3f} |" in rows[record["label"]]
