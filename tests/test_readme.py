"""What the README promises, it keeps: its Python runs and its links exist. Its numbers: test_committed_results.py."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    output = capsys.readouterr().out
    assert output
    if "AssociativeMemory" in code:
        assert abs(float(output) - 1) < 0.3, "it answers as documented"


def test_the_mixer_of_the_guide_works(tmp_path):
    """The guide's mixer passes the checks, and a model trains, saves and loads with it."""
    guide = (ROOT / "docs" / "adding_a_mixer.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    code = "\n".join(textwrap.dedent(block) for block in blocks if "@part" in block or "check_mixer" in block)
    use = """
from memory_mosaics import LanguageModel, LanguageModelConfig, load, save
config = LanguageModelConfig(vocabulary=9, width=8, blocks=2, sequence_mixer=RunningMeanConfig())
model = LanguageModel(config)
tokens = torch.randint(0, 9, (2, 7))
model(tokens)[0].sum().backward()
y, state = load(save(model, "run"))(tokens)
print(torch.allclose(y, model(tokens)[0]), type(load("run").blocks[0].sequence_mixer).__name__)
"""
    run = subprocess.run([sys.executable, "-c", code + use], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == "True RunningMean\n", run.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_existing_files(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
