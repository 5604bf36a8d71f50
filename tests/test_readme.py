"""What the README promises, it keeps: its Python and its commands run, those of all pages parse, and links exist.

Its numbers: test_committed_results.py.
"""

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import auto_parser

from memory_mosaics.apps.server import Server
from memory_mosaics.cli import COMMANDS, main
from memory_mosaics.parser import QUICK, Parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests/bad_input.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*/README.md"))


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command in the blocks of a page, without comments and redirections."""
    text = page.read_text()
    variables = dict(re.findall(r'(\w+)="(.*?)"', text))
    fenced = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    indented = re.findall(r"^(?:    .*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    for line in "\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines():
        line = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], "runs/a"), line)
        words = shlex.split(line.partition(" > ")[0], comments=True) if re.search("mosaics|pip|make", line) else []
        while words and "=" in words[0]:  # sets a variable
            del words[0]
        if words and words[0] in ("mosaics", "pip", "make", "torchrun"):
            yield words


def parse(words: list[str]) -> None:
    """Parse the words of a `mosaics` command, and run nothing."""
    if "--config" in words and not Path(words[words.index("--config") + 1]).exists():
        words[words.index("--config") + 1] = "{}"  # the reader's own file
    if "--print_config" not in words:
        auto_parser({words[0]: COMMANDS[words[0]]}, parser_class=Parser, allow_abbrev=True).parse_args(words)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    output = capsys.readouterr().out
    assert output
    if "AssociativeMemory" in code:
        assert abs(float(output) - 1) < 0.3, "it answers as documented"


def test_the_commands_of_the_readme_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """In an empty folder, as they are written: only the sizes are smaller, and what is drawn is not rendered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(QUICK, "1")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, file, **__: Path(file).touch())
    monkeypatch.setattr(Server, "run_until_interrupted", lambda server: server.on_ready("http://127.0.0.1:1"))
    run = [words[1:] for words in commands(ROOT / "README.md") if words[0] == "mosaics"]
    for words in run:
        assert main(words) == 0, (words, capsys.readouterr().err)
    assert {"stories", "prepare", "train", "generate", "evaluate", "inspect", "explore", "figures"} <= {
        words[0] for words in run
    }


@pytest.mark.parametrize("page", PAGES + EXPERIMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_pages_parse(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for words in commands(page):
        if words[0] == "mosaics":
            parse(words[1:])
        elif words[0] == "torchrun":
            parse(words[words.index("memory_mosaics.cli") + 1 :])
        elif words[0] == "make":
            assert words[1] in targets
        elif names := re.findall(r"\[(.*)\]", " ".join(words)):
            assert set(names[0].split(",")) <= extras


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
