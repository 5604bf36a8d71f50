"""Three moons: section 5 of the paper and its appendix A.

Two networks of 54 numbers predict where three moons will be. One has a single memory of all positions, like the
astronomer who keeps one table; the other has a memory for each of three learned combinations, like the one who keeps
three. Training makes each combination one moon ("predictive disentanglement"), and the second network is right after
the slowest moon has returned once, long before the whole system has.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from memory_mosaics.config import MAX_SEED, MAX_SIZE
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments.grid import Grid
from memory_mosaics.experiments.outcomes import Outcome
from memory_mosaics.experiments.report import text_table
from memory_mosaics.experiments.runner import load_packaged, prepare, report, train_and_collect
from memory_mosaics.ops.recall import merge, recall_with_lse
from memory_mosaics.runtime import RuntimeConfig, start_runtime
from memory_mosaics.shapes import Float
from memory_mosaics.tasks.moons import (
    BATCH_SIZE,
    MARGIN,
    SHARPNESS,
    MoonNetwork,
    MoonNetworkConfig,
    Moons,
    MoonsData,
    System,
    shortest,
)
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.loggers import read_log
from memory_mosaics.training.trainer import Trainer

RECIPE = load_packaged("moons")
LEARNING_RATE = 0.06
AHEAD = 25  # steps of a prediction that feeds on itself
CONTEXTS = (30, 60, 110, 290)  # at which the strip of figures asks both networks
STRIDE = 4  # of the attention maps, which would otherwise fill the results
FIELDS = ("label", "parameters", "curve", "seeds", "error", "weights", "attention", "sky", "seconds")


def run(
    out: Path = Path("runs/moons"),
    *,
    heads: list[int] | None = RECIPE["heads"],
    seeds: int = RECIPE["seeds"],
    moons: int = RECIPE["moons"],
    steps: int = RECIPE["steps"],
    sequences: int = RECIPE["sequences"],
    seed: int = RECIPE["seed"],
    integer_periods: bool = RECIPE["integer_periods"],
) -> dict[str, Any]:
    """Train networks of one and of three memories to predict three moons, measure both, and draw what they do.

    A minute on two CPU cores for one seed. Ctrl-C keeps what is finished; the same command continues.

    Args:
        out: folder for the runs, results.json and the figures
        heads: memories of each network, which must divide the number of moons; by default one, and one for each moon
        seeds: networks of each kind, trained side by side; the figures show the first
        moons: number of moons
        steps: training steps
        sequences: sequences over which the error is averaged
        seed: seed of the first network's initial values and sequences
        integer_periods: round the periods down to integers; false for the periods of the authors' code, 44.4, 66.7 and
            88.9 observations in place of 44, 66 and 88
    """
    arguments = dict(locals())
    heads = sorted({1, moons}) if heads is None else heads
    settings = arguments | {"heads": heads}
    del settings["out"]
    check_range(1, 10_000, seeds=seeds)
    check_range(1, 100_000, sequences=sequences)
    check_range(1, MAX_SIZE, steps=steps)
    check_range(0, MAX_SEED, seed=seed)
    task = MoonsData(moons=moons, length=max(800, 4 * shortest(moons)), integer_periods=integer_periods)
    configs = {count: MoonNetworkConfig(moons=moons, heads=count, copies=seeds) for count in heads}
    prepare(out, arguments, {name: value for name, value in settings.items() if name not in ("heads", "seeds")})
    sky = sky_of(task)
    truth = [sky[0, context : context + AHEAD].tolist() for context in CONTEXTS]
    results: dict[str, Any] = {"study": "moons", "interrupted": False}
    results["settings"] = settings | {"batch_size": BATCH_SIZE, "attention_stride": STRIDE}
    results["systems"] = {split: asdict(system) for split, system in systems(task).items()}
    results["sky"] = {"contexts": list(CONTEXTS), "truth": truth}
    grid = Grid(
        out=out,
        name_of=lambda run: f"{run['heads']}-heads-{seeds}-seeds",
        train=lambda run, folder: train_and_measure(
            task, configs[run["heads"]], folder, steps=steps, seed=seed, sequences=sequences
        ),
        settings=[{"heads": count} for count in configs],
        required_fields=FIELDS,
        quiet=False,
    )
    common, finished = train_and_collect(grid)
    results |= common | {"networks": {str(run["heads"]): {name: run[name] for name in FIELDS} for run in finished}}
    report(results, out, table(results), drawable=bool(results["networks"]))
    if results["failed"] and not results["networks"]:
        raise UserError("no network was trained: the loss of all has diverged; try another seed")
    return results


def systems(task: MoonsData) -> dict[str, System]:
    """Return the systems that are shown: the training system with the longest wait, and that of the validation."""
    return {
        "training": max(task.training, key=lambda system: system.lcm - max(system.periods)),
        "validation": task.validation,
    }


def longest_context(task: MoonsData) -> int:
    return math.ceil(task.validation.lcm) + 70


def sky_of(task: MoonsData) -> Float[Tensor, "one T W"]:
    """Return the sequence along which predictions and attention are shown."""
    return task.sequences(task.validation, 1, seed=2**22)[:, : max(longest_context(task), *CONTEXTS) + AHEAD + 1]


def train_and_measure(
    task: MoonsData, config: MoonNetworkConfig, out: Path, *, steps: int, seed: int, sequences: int
) -> Outcome | None:
    """Train networks side by side, measure each of them, and inspect the first; None if told to stop."""
    start = time.perf_counter()
    trained = train(task, config, out, steps=steps, seed=seed)
    if trained is None:
        return None
    nets, curve = trained
    net, sky, longest = pick(nets, 0), sky_of(task), longest_context(task)
    predicted = errors_ahead(net, sky)[1]
    return {
        "label": _count(config.heads, "memory", "memories"),
        "parameters": sum(weight.numel() for weight in net.parameters()),
        "curve": curve,
        "seeds": measure_seeds(nets, task),
        "error": {split: error_curve(net, task, x, sequences, longest) for split, x in systems(task).items()},
        "weights": {name: weight[0].norm(dim=-1).tolist() for name, weight in weights(net).items()},
        "attention": {"weights": attention(net, sky[:, :longest])},
        "sky": [predicted[:, 0, context - 1].tolist() for context in CONTEXTS],
        "seconds": round(time.perf_counter() - start, 1),
    }


def table(results: dict[str, Any]) -> str:
    """One line per network."""
    system = results["systems"]["validation"]
    first, last = window(**system)
    periods = ", ".join(f"{period:.4g}" for period in system["periods"])
    rows = []
    for record in results["networks"].values():
        seeds = record["seeds"]
        converged = f"{sum(seed['converged'] for seed in seeds)} of {len(seeds)}"
        worst = [max(seed[name] for seed in seeds) for name in ("error_1", "error_25")]
        worst.append(min(seed["score"] for seed in seeds))
        numbers = [f"{number:.3f}" for number in worst]
        rows.append([record["label"], str(record["parameters"]), converged, *numbers, f"{record['seconds']:.0f}"])
    header = ["network", "parameters", "converged", "1 step", "25 steps", "score", "seconds"]
    return (
        f"Moons with periods {periods}, a combination never trained on, return together after {system['lcm']:.4g}.\n"
        f"Errors between {first} and {last} observations, the worst seed:\n{text_table(header, rows)}"
    )


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


@torch.no_grad()
def attention(net: MoonNetwork, x: Float[Tensor, "one T W"]) -> list[list[list[float]]]:
    """The retrieval weights of every memory along one sequence, averaged over squares of STRIDE x STRIDE."""
    weights = net.prepare_retrieval(x)[0].weights()[0]  # (H, T, T - 1): the last pair is not complete yet
    coarse = F.avg_pool2d(F.pad(weights, (0, 1)), STRIDE) * STRIDE
    return [[[round(value, 3) for value in row] for row in head] for head in coarse.tolist()]


def weights(net: MoonNetwork) -> dict[str, Tensor]:
    """The three matrices, each (copies, moons, moons, 2)."""
    return {"phi": net.key.map.weight, "psi": net.value.map.weight, "z": net.combine.map.weight}  # type: ignore


def pick(net: MoonNetwork, copy: int) -> MoonNetwork:
    """One of the networks that were trained side by side."""
    chosen = replace(net.config, copies=1).build().requires_grad_(False)
    chosen.load_state_dict({name: weight[copy : copy + 1] for name, weight in net.state_dict().items()})
    return chosen


def train(
    task: MoonsData, config: MoonNetworkConfig, out: Path, *, steps: int = 500, seed: int = 0
) -> tuple[MoonNetwork, list[list[int | float]]] | None:
    """Train networks side by side, each with its own initial values and sequences; return them and their loss curves.

    The learning rate of Adam falls linearly to zero. None is returned if it was told to stop.
    """
    training = Training(
        steps=steps,
        batch=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        final_learning_rate=0.0,
        warm_up=0,
        schedule="linear",
        weight_decay=0.0,
        clip=None,
        seed=seed,
        evaluate_every=steps,
    )
    runtime = RuntimeConfig(device="cpu", samples=0, log_every=max(steps // 60, 1), save_every=max(1, steps // 5))
    run = TaskRun(
        out=out,
        name=f"{_count(config.heads, 'memory', 'memories')}, {_count(config.copies, 'network', 'networks')}",
        task=task,
        model=config,
        training=training,
        runtime=runtime,
    )
    with torch.random.fork_rng(devices=[]), start_runtime(runtime) as here:
        trainer = Trainer(run, Moons(task, steps=steps, copies=config.copies, seed=seed), config, here)
        if trainer.run()["interrupted"]:
            return None
    lines = [line for line in read_log(out / "log.jsonl") if "loss" in line]
    curve = [[line["step"], *(round(loss, 7) for loss in line.get("losses", [line["loss"]]))] for line in lines]
    return trainer.model.requires_grad_(False), curve  # type: ignore[return-value]


def modulus(difference: Float[Tensor, "*B W"]) -> Float[Tensor, "*B"]:
    """Mean over the moons of how far a prediction is from the truth."""
    return difference.unflatten(-1, (-1, 2)).norm(dim=-1).mean(dim=-1)


@torch.no_grad()
def errors_ahead(
    net: MoonNetwork, x: Float[Tensor, "B T W"], *, ahead: int = AHEAD
) -> tuple[Float[Tensor, "ahead B C"], Float[Tensor, "ahead B C W"]]:
    """Errors and predictions 1 to `ahead` steps beyond every context x_0 .. x_c, c = 0 .. T - ahead - 1, in one pass.

    All contexts share the pairs stored along x. Each goes on alone with the pairs that its own predictions make, in a
    second, small memory whose answer is merged exactly with that of the first.
    """
    contexts = x.shape[1] - ahead
    keys, _ = net.key(x)
    values, _ = net.value(x)
    shared_keys, shared_values = keys[:, :contexts], values[:, :contexts]
    own_keys, own_values = [], []
    now, found, predicted = x[:, :contexts], [], []
    for step in range(1, ahead + 1):
        key = net.key(now)[0]
        answer = recall_with_lse(key, shared_keys, shared_values, SHARPNESS, causal_offset=0)
        if own_keys:
            own = (torch.stack(part, dim=2).flatten(0, 1) for part in (own_keys, own_values))  # (B*C, step - 1, H, D)
            alone = recall_with_lse(key.flatten(0, 1)[:, None], *own, SHARPNESS)
            answer = merge(answer, tuple(part[:, 0].unflatten(0, key.shape[:2]) for part in alone))  # type: ignore
        now = net.combine(answer[0])
        own_keys.append(key)
        own_values.append(net.value.map(now).unflatten(-1, key.shape[2:]))  # type: ignore
        predicted.append(now)
        found.append(modulus(now - x[:, step : step + contexts]))
    return torch.stack(found), torch.stack(predicted)


def error_curve(net: MoonNetwork, task: MoonsData, system: System, sequences: int, longest: int) -> list[float]:
    """Mean error of 25 steps beyond contexts of 1 .. longest observations, over many sequences of one system."""
    x = task.sequences(system, sequences, seed=2**20)[:, : longest + AHEAD]
    bar = tqdm(x.split(16), desc="measuring", leave=False, disable=None)
    parts = [errors_ahead(net, part)[0].mean(dim=0).sum(dim=0) for part in bar]
    return [round(error, 4) for error in (torch.stack(parts).sum(dim=0) / sequences).tolist()]


def disentanglement(net: MoonNetwork) -> list[float]:
    """Return for every copy how much of its matrices links each memory with one moon: 1 if all of it does.

    W_phi and W_psi lead from moons to memories, W_z back. The share is that of the squared moduli, the mean over
    memories and over the three matrices, under the best order of the moons; the same order must serve all three.
    """
    heads, scores = net.config.heads, []
    for phi, psi, z in zip(*(w.square().sum(dim=-1) for w in weights(net).values()), strict=True):
        by_head = torch.stack([w.unflatten(0, (heads, -1)).sum(dim=1) for w in (phi, psi, z.T)])  # (3, heads, moons)
        shares = (by_head / by_head.sum(dim=-1, keepdim=True)).mean(dim=0)
        orders = permutations(range(shares.shape[1]), heads)
        scores.append(max(float(shares[range(heads), list(order)].mean()) for order in orders))
    return scores


def window(periods: Sequence[int | float], lcm: int | float) -> tuple[int, int]:
    """Contexts in which every moon has returned but the system has not; the next 50 where both happen at once."""
    first, last = math.ceil(max(periods)) + MARGIN, math.floor(lcm) - MARGIN
    return first, last if first < last else first + 50


def measure_seeds(net: MoonNetwork, task: MoonsData, *, sequences: int = 8) -> list[dict[str, Any]]:
    """Measure every seed on the validation system, between the return of the slowest moon and that of the system."""
    system = task.validation
    first, last = window(system.periods, system.lcm)
    x = task.sequences(system, sequences, seed=2**21)[:, : last + AHEAD]
    found = []
    scores = tqdm(disentanglement(net), desc="measuring", unit="seed", leave=False, disable=None)
    for one, score in enumerate(scores):
        error = errors_ahead(pick(net, one), x)[0][:, :, first:].mean(dim=(1, 2))
        near, far = round(error[0].item(), 4), round(error.mean().item(), 4)
        measured = {"error_1": near, "error_25": far, "score": round(score, 4)}
        found.append(measured | {"converged": near < 0.05 and far < 0.15})
    return found
