"""The two networks of section 5, called astronomers on the page: their predictions and errors for any periods.

The networks are those of `mosaics moons`, 54 parameters each, trained once and shipped with the page;
`python -m memory_mosaics.apps.explorer.moons` trains them again.
"""

import json
import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.apps.explorer.page import read_asset
from memory_mosaics.experiments import moons as study
from memory_mosaics.tasks.moons import MoonNetwork, MoonNetworkConfig, MoonsData, System

HEADS = (1, 3)
SHORTEST, LONGEST = 8, 96  # periods that can be chosen, in observations
TASK = MoonsData(moons=3, length=800)
WATCHED = 480  # observations
WEIGHTS = "astronomers.json"


def limits() -> dict[str, int | list[int]]:
    """Return the ranges and initial values of the page's sliders."""
    periods = [int(period) for period in TASK.validation.periods]
    return {"shortest": SHORTEST, "longest": LONGEST, "periods": periods, "watched": WATCHED, "ahead": study.AHEAD}


@cache
def astronomers() -> dict[int, MoonNetwork]:
    """Return the trained networks by their number of memories."""
    weights = json.loads(read_asset(WEIGHTS))
    found = {}
    for heads in HEADS:
        found[heads] = network = MoonNetworkConfig(moons=TASK.moons, heads=heads).build()
        with torch.no_grad():
            for name, weight in study.weights(network).items():
                weight.copy_(torch.tensor(weights[str(heads)][name]))
    return found


def watch(periods: list[int], *, seed: int = 0) -> dict[str, Any]:
    """Return the positions of moons with these periods and random phases, and after every observation where each
    network predicts them 25 observations later, and its mean error over these 25.
    """
    together = math.lcm(*periods)
    sky = TASK.sequences(System(tuple(periods), together), 1, seed=seed)[:, : WATCHED + study.AHEAD]
    found: dict[str, Any] = {"periods": periods, "together": together, "slowest": max(periods), "astronomers": {}}
    found["truth"] = _rounded(sky[0], 3)
    for heads, network in astronomers().items():
        errors, expected = study.errors_ahead(network, sky)
        error = _rounded(errors[:, 0].mean(dim=0), 4)
        found["astronomers"][str(heads)] = {"error": error, "expected": _rounded(expected[-1, 0], 3)}
    return found


def _rounded(values: Tensor, digits: int) -> list[Any]:
    return values.double().round(decimals=digits).tolist()


def train(file: Path) -> None:
    """Train both networks and write their weights."""
    weights = {}
    for heads in HEADS:
        with TemporaryDirectory() as folder:
            trained = study.train(TASK, MoonNetworkConfig(moons=TASK.moons, heads=heads), Path(folder))
        if trained is None:
            raise KeyboardInterrupt
        weights[heads] = {name: _rounded(weight[0], 6) for name, weight in study.weights(trained[0]).items()}
    file.write_text(json.dumps(weights) + "\n", encoding="utf-8")


if __name__ == "__main__":
    train(Path(__file__).parent / "assets" / WEIGHTS)
