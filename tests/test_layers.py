"""The layers of the package: what may import what, and what importing the package costs."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memory_mosaics.checkpoint import HUB_FILE

ROOT = Path(__file__).parents[1] / "src" / "memory_mosaics"

# In the order of the data: a module imports only modules before it.
ORDER = [
    "version",
    "shapes",
    "errors",
    "files",
    "pretrained",
    "isolation",
    "results",
    "config",
    "runtime",
    "parameters",
    "text",
    "ops",
    "norms",
    "scales",
    "stores",
    "documents",
    "indexed_store",
    "bounded_stores",
    "store_files",
    "extractors",
    "memory",
    "mixers",
    "testing",
    "language_model",
    "models",
    "checkpoint",
    "memory_files",
    "huggingface",
    "convert",
    "decoding",
    "evaluation",
    "inspection",
    "tasks",
    "training",
    "experiments",
    "benchmarks",
    "apps",
    "__init__",
    "parser",
    "cli",
]


def test_shapes_are_checked_wherever_they_are_annotated():
    """pyproject.toml lists the modules whose calls are checked in tests."""
    options = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "addopts"
    ]
    checked = options.split("--jaxtyping-packages=")[1].split(",")[:-1]
    for path in ROOT.rglob("*.py"):
        module = ".".join(("memory_mosaics", *path.relative_to(ROOT).with_suffix("").parts))
        if "memory_mosaics.shapes import" in path.read_text():
            assert any(f"{module}.".startswith(f"{each}.") for each in checked), module


def layer(module: str) -> int:
    return ORDER.index(module)


MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != HUB_FILE)  # a file of a checkpoint


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upwards(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "memory_mosaics":
            names = [name.name if name.name in ORDER else "__init__" for name in node.names]
            for imported in (node.module or "").split(".")[1:2] or names:
                assert imported == own or layer(imported) < layer(own), f"{own} imports {imported}"
        assert not (isinstance(node, ast.ImportFrom) and node.level), "imports name the whole path"
        for name in node.names if isinstance(node, ast.Import) else ():
            parts = name.name.split(".")
            assert parts[0] != "memory_mosaics" or layer((parts[1:2] or ["__init__"])[0]) < layer(own), name.name


def modules_after(*statements: str) -> list[set[str]]:
    """The modules that are loaded after each of these statements in one process."""
    show = "\nprint(json.dumps(sorted(sys.modules)))\n"
    code = "import json, sys\n" + show.join(statements) + show
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in run.stdout.splitlines()]


def test_importing_the_package_needs_torch_and_numpy_only():
    """Whatever else is loaded, torch alone loads too; and of that, no heavy library before it is used.

    Shape annotations are there where jaxtyping is.
    """
    before, after = modules_after("import torch, numpy", "import memory_mosaics")
    packages = {name.split(".")[0] for name in after - before} - sys.stdlib_module_names
    assert packages <= {"memory_mosaics", "numpy", "jaxtyping", "wadler_lindig", "typing_extensions"}, packages
    assert "memory_mosaics.ops.gated_average" in after, "which has kernels"
    assert not after & {"transformers", "matplotlib", "jsonargparse", "safetensors", "triton"}


def test_shapes_are_optional():
    block = "import sys; sys.modules['jaxtyping'] = None\n"
    assert "memory_mosaics" in modules_after(block + "import memory_mosaics")[0]
