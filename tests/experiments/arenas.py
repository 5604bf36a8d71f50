"""A suite of two small tasks, and the command on it."""

import json
from pathlib import Path

from memory_mosaics.cli import main

TASK = {
    "data": {"part": "mqar", "vocabulary": 32, "length": 16, "pairs": 2, "examples": 64, "held_out": 20},
    "model": {"width": 8, "blocks": 1, "heads": 1, "channel_mixer": False},
    "training": {"steps": 4, "batch": 8, "warm_up": 1, "evaluate_every": 2},
    "search": {"learning_rate": [0.001, 0.003, 0.01]},
}
LONGER = {"part": "mqar", "vocabulary": 32, "length": 32, "pairs": 4, "examples": 64, "held_out": 10}
MIXED = TASK | {"data": {"part": "mixture", "parts": [TASK["data"]], "tests": [TASK["data"], LONGER], "held_out": 20}}


def run(suite: Path, *words: str, out: str = "out") -> dict:
    folder = suite.parent / out
    assert main(["arena", "--out", str(folder), "--suite", str(suite), "--runtime.device", "cpu", *words]) == 0
    return json.loads((folder / "results.json").read_text())


def outcomes(out: Path) -> dict[str, str]:
    return {str(file.relative_to(out)): file.read_text() for file in out.glob("*/trials/*/outcome.json")}
