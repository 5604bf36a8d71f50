"""RegBench: which architectures learn a new language from its context? Figure 9 and table 2 of the paper.

Every model is trained on some number of languages, its environments, one sequence each, and tested on sequences of
others; or, in distribution, on new sequences of the same. The epoch of each run, and the run of each architecture, is
the one with the lowest validation loss; the test plays no part in the choice. regbench_models.py has the models.

The published recipe: AdamW (0.9, 0.999) with weight decay on all parameters but those whose modules opt out; 32
sequences per step; the learning rate rises over the first tenth of the steps and falls along a cosine that starts at
step 0. The test is run for three epochs of each run: those of the lowest validation loss, which is the one that counts,
of the highest accuracy and of the lowest distance (TVD).

Each run has a folder, OUT/trials/NAME, whose name lists its settings. Commands add runs to OUT: results.json, the
tables and the figures cover all of them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch

from memory_mosaics import checkpoint
from memory_mosaics.config import MAX_JOBS, MAX_SIZE
from memory_mosaics.errors import UserError, check_range, within_memory
from memory_mosaics.experiments import runner
from memory_mosaics.experiments.figures.tasks import published_in_distribution
from memory_mosaics.experiments.grid import Grid, Search, Values, combinations, import_optuna
from memory_mosaics.experiments.outcomes import Outcome, Settings, merge_environments, read_outcome
from memory_mosaics.experiments.own_mixers import fingerprint
from memory_mosaics.experiments.regbench_models import ARCHITECTURES, ELEVEN, architecture, check_architecture
from memory_mosaics.experiments.report import TEMPLATES, render
from memory_mosaics.experiments.runner import should_compile
from memory_mosaics.files import write_text
from memory_mosaics.results import environment_info, round_digits, write_results
from memory_mosaics.runtime import RuntimeConfig, start_runtime
from memory_mosaics.tasks.regbench import BATCH, RegBench, RegBenchData, anchors
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer

RECIPE = runner.load_packaged("regbench")
ENVIRONMENTS = [100, 500, 1000, 2500, 40_000]
SEARCHED: Settings = {  # by the paper
    "blocks": [2, 4, 8],
    "heads": [2, 4, 8],
    "width": [64, 128, 256],
    "weight_decay": [0.01, 0.1],
}
SIZES = ("blocks", "heads", "width")
SHORT = {"blocks": "l", "heads": "h", "width": "d", "weight_decay": "decay", "learning_rate": "lr", "seed": "seed"}
CASE = ("architecture", "environments", "in_distribution")
BEST = (*CASE, "blocks", "heads", "width", "weight_decay", "learning_rate", "seed", "parameters", "valid_loss")
BEST += ("accuracy", "tvd", "tested", "seconds")
SAVE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The values to try, in all combinations; of what is not given, the architecture's own or, in a sweep, the paper's.

    Args:
        blocks: depths
        heads: of architectures that have some
        width: widths
        weight_decay: on all parameters whose modules do not forbid it
        learning_rate: the largest
        seed: of the initial values, the order of the sequences, and dropout
    """

    blocks: list[int] | None = None
    heads: list[int] | None = None
    width: list[int] | None = None
    weight_decay: list[float] | None = None
    learning_rate: list[float] | None = None
    seed: list[int] | None = None

    def of(self, name: str, *, sweep: bool) -> dict[str, list[Any]]:
        """Return all values for one architecture."""
        kind = architecture(name)
        found = {}
        for value, given in asdict(self).items():
            own = 0 if value == "seed" else getattr(kind, value)
            found[value] = list(dict.fromkeys(given or (SEARCHED.get(value) if sweep else None) or [own]))
        if kind.heads is None:
            found["heads"] = [None]
        if not kind.stacks:
            found["blocks"] = [1]
        return found


def make_task(settings: Settings) -> RegBenchData:
    """Return the languages that a run is trained, validated and tested on."""
    same = {name: settings[name] for name in ("environments", "held_out", "in_distribution", "distinct")}
    return RegBenchData(**same, seed=settings["data_seed"])


def training_of(settings: Settings) -> Training:
    """Return the published recipe with the values of a run, which is evaluated after each epoch."""
    epochs, steps_per_epoch = settings["epochs"], ceil(settings["environments"] / BATCH)
    if settings["max_steps"] is not None:
        epochs = min(epochs, max(1, settings["max_steps"] // steps_per_epoch))
    return Training(
        steps=epochs * steps_per_epoch,
        batch=BATCH,
        learning_rate=settings["learning_rate"],
        final_learning_rate=0.0,
        warm_up=epochs * steps_per_epoch // 10,
        schedule="cosine-from-start",
        betas=(0.9, 0.999),
        weight_decay=settings["weight_decay"],
        decay_all=True,
        clip=architecture(settings["architecture"]).clip,
        seed=settings["seed"],
        evaluate_every=steps_per_epoch,
        patience=settings["patience"],
    )


CHOICES = Choices(**RECIPE["choices"])


def run(
    out: Path = Path("runs/regbench"),
    *,
    architectures: list[str] | None = RECIPE["architectures"],
    environments: list[int] | None = RECIPE["environments"],
    in_distribution: bool = RECIPE["in_distribution"],
    sweep: bool = RECIPE["sweep"],
    trials: int | None = RECIPE["trials"],
    choices: Choices = CHOICES,
    epochs: int = RECIPE["epochs"],
    max_steps: int | None = RECIPE["max_steps"],
    patience: int | None = RECIPE["patience"],
    held_out: int = RECIPE["held_out"],
    distinct: bool = RECIPE["distinct"],
    data_seed: int = RECIPE["data_seed"],
    jobs: int = RECIPE["jobs"],
    cluster: Literal["ray"] | None = RECIPE["cluster"],
    device: str = RECIPE["device"],
    precision: Literal["auto", "float32", "bfloat16"] = RECIPE["precision"],
    compile: bool | None = RECIPE["compile"],
) -> dict[str, Any]:
    """Train architectures to learn new languages in context, test them, and draw accuracy and distance to the truth.

    After Ctrl-C, or a kill, the same command continues. Started several times, it shares the runs.

    Args:
        out: the folder: trials/, results.json, tables.md, the figures; and journal.log of a sweep
        architectures: memory-mosaic transformer mamba s4d rwkv linear-transformer h3 gla hyena lstm retnet, which are
            taken if none are named; mamba-as-published lstm-as-published rwkv-as-published; or your own mixer by its
            dotted path, such as my_package.MyMixerConfig
        environments: training languages, with one sequence each; 100 500 1000 2500 40000 if none are named, or 100 in
            distribution
        in_distribution: validate and test with new sequences of the training languages
        sweep: the paper's search: depth, heads, width and weight decay, by Optuna, in a journal
        trials: draw so many of a sweep for each architecture and number of environments; all of them if not given
        choices: the values to try
        epochs: of training; the best one is tested
        max_steps: train for fewer epochs where there are so many languages that they would take more steps than this
        patience: end a run when its validation loss has not fallen for so many epochs; null trains them all
        held_out: sequences of the validation, and of the test
        distinct: use no language twice, neither in one split nor in two
        data_seed: of the languages and sequences; another one is another benchmark
        jobs: runs at once, each in a process of its own, distributed over the GPUs
        cluster: ray trains on the Ray cluster of this machine or of RAY_ADDRESS, whose machines share the folder
        device: cuda, mps or cpu; auto takes the first that is available
        precision: of the products; auto is bfloat16 on CUDA, and float32 elsewhere
        compile: with torch.compile; null compiles on CUDA where a run is long enough
    """
    arguments = dict(locals())
    numbers = list(dict.fromkeys(environments or ([100] if in_distribution else ENVIRONMENTS)))
    names = list(dict.fromkeys(architectures or ELEVEN))
    setup: Settings = {"epochs": epochs, "max_steps": max_steps, "patience": patience}
    check_range(1, MAX_SIZE, **setup, trials=trials)
    check_range(1, MAX_JOBS, jobs=jobs)
    if trials is not None and not sweep:
        raise UserError(f"--trials {trials} draws from a sweep; give --sweep too, or leave it out")
    setup |= {"held_out": held_out, "distinct": distinct, "data_seed": data_seed}
    common = setup | {"in_distribution": in_distribution}
    runtime = RuntimeConfig(device=device, precision=precision, compile=compile)
    cases = [common | {"architecture": name, "environments": number} for number, name in product(numbers, names)]
    grids = [make_grid(out, runtime, case, choices, sweep=sweep, trials=trials) for case in cases]
    if sweep:
        import_optuna()
    setup |= runner.check_devices(runtime, cluster)
    own = [name for name in names if name not in ARCHITECTURES]
    runner.prepare(out, arguments, setup | {f"{name} of a file with SHA-256": fingerprint(name) for name in own})

    def collected(*, interrupted: bool) -> dict[str, Any]:
        results = collect(out, common) | {"interrupted": interrupted}
        write_results(out / "results.json", results)
        write_text(out / "tables.md", tables(results) + "\n")
        return results

    collected(interrupted=True)  # a damaged outcome is found before anything is trained
    done = runner.run_grids(grids, processes=jobs, cluster=cluster, save=lambda: collected(interrupted=True))
    results = collected(interrupted=not done)
    where = f"Tables: {out / 'tables.md'}."
    runner.report(results, out, f"{tables(results)}\n", drawable=bool(results["best"]), also=where)
    runner.raise_errors(grids)
    if done and not results["best"]:
        raise UserError(f"none of {len(results['runs'])} runs finished; {results['runs'][-1]['reason']}")
    return results


def make_grid(
    out: Path, runtime: RuntimeConfig, case: Settings, choices: Choices, *, sweep: bool, trials: int | None
) -> Grid:
    """Return the runs of one architecture and one number of environments, once everything that they train makes sense.

    Another space is another study of Optuna's: a sweep may grow, and the runs of both are in the same folders.
    """
    name = case["architecture"]
    case = case | {"label": architecture(name).label}
    space: dict[str, Values] = {**choices.of(name, sweep=sweep)}
    runs = [case | values for values in combinations(space)]
    for settings in runs:
        check_architecture(name, **{size: settings[size] for size in SIZES})
        make_task(settings)  # which checks its values
        training_of(settings)  # as well
    drawn = trials if trials is not None and trials < len(runs) else 0
    study: Settings = {"study": f"{case_name(case)}-{_name(space)}", "space": space, "base": case}
    return Grid(
        out=out,
        name_of=name_of,
        train=partial(train, runtime),
        settings=[] if drawn else runs,
        search=Search(**study, trials=drawn, seed=space["seed"][0]) if sweep else None,
        required_fields=("train_loss", *BEST),
        summary_formats=("valid loss {valid_loss:.4f}", "accuracy {accuracy:.3f}", "TVD {tvd:.3f}", "{seconds:.0f} s"),
        prefix=f"{case_name(case)}-l",
        keep_checkpoints=False,
    )


def case_name(settings: Settings) -> str:
    return f"{settings['architecture']}-{settings['environments']}{'-in' * settings['in_distribution']}"


def name_of(settings: Settings) -> str:
    """Return the name of the folder of a run."""
    return f"{case_name(settings)}-{_name({name: [settings[name]] for name in SHORT})}"


def _name(space: Mapping[str, Values]) -> str:
    """`l2,4-d64-decay0.1-lr0.001-seed0`; heads only where there are some."""
    parts = []
    for name, short in SHORT.items():
        values = [f"{one:g}" if isinstance(one, float) else str(one) for one in space[name] if one is not None]
        parts += [short + ",".join(values)] if values else []
    return "-".join(parts)


def train(runtime: RuntimeConfig, settings: Settings, out: Path) -> Outcome | None:
    """Train a model in a folder of its own, or continue, and test it; None if it was told to stop.

    The model of the epoch with the lowest validation loss stays in OUT/model.
    """
    kind, languages, training = architecture(settings["architecture"]), make_task(settings), training_of(settings)
    config = kind.config(**{size: settings[size] for size in SIZES})
    runtime = replace(runtime, samples=0, log_every=training.evaluate_every, save_seconds=SAVE_SECONDS)
    run = TaskRun(out=out, name=out.name, task=languages, model=config, training=training, runtime=runtime)
    advice = f"a model of width {config.width} does not fit; choose a smaller"
    with within_memory(advice), start_runtime(runtime) as here:
        cuda = here.device.type == "cuda"
        if cuda:
            torch.set_float32_matmul_precision("high")  # TF32, as published, where not bfloat16
            torch.cuda.empty_cache()  # of the run before: other processes may want it
        task = RegBench(languages, seed=training.seed, device=here.device)
        compiled = should_compile(runtime, here.device, training.steps, faster=kind.compiles)
        trainer = Trainer(run, task, config, here, compiled=compiled)
        results = trainer.run()
        if results["interrupted"]:
            return None
        tested = {by: _test(trainer, task, by) for by in ("tvd", "accuracy", "valid_loss")}
        if (out / "model").exists():  # of a run that was killed here
            checkpoint.remove(out / "model")
        checkpoint.save(trainer.model, out / "model", tokenizer=task.tokenizer)
    progress, by_loss = trainer.progress, tested["valid_loss"]
    names = ("train_loss", "valid_loss", "valid_accuracy", "valid_tvd")
    columns = dict(zip(names, zip(*(line[1:] for line in progress["curve"]), strict=True), strict=True))
    trained = len(progress["curve"])
    return {
        "parameters": results["parameters"],
        "trained_epochs": trained,
        "selected_by": "loss",
        **{name: column[by_loss["epoch"] - 1] for name, column in columns.items()},
        "accuracy": by_loss["accuracy"],
        "tvd": by_loss["tvd"],
        "tested": {"loss": by_loss, "accuracy": tested["accuracy"], "tvd": tested["tvd"]},
        "curve": round_digits({name: list(column) for name, column in columns.items()}, 4),
        "seconds": round(progress["seconds"], 1),
        "tokens_per_second": round(trained * task.splits["train"].tokens / progress["seconds"]),
        "compiled": compiled,
        "precision": here.precision,
        **environment_info(here.device),
    }


def _test(trainer: Trainer, task: RegBench, by: str) -> dict[str, Any]:
    """Return the test scores of the epoch that is the best by a metric of the validation, and load its weights."""
    torch._foreach_copy_([weight.detach() for weight in trainer.model.parameters()], trainer.best_weights[by])
    scores: Any = task.test(trainer.model.eval(), trainer.runtime)
    step = trainer.progress["selected"][by][1]
    return {"epoch": step // task.steps_per_epoch, **round_digits(scores, 5)}


def collect(out: Path, common: Settings) -> dict[str, Any]:
    """Return all runs of the folder, and of each case the one with the lowest validation loss."""
    outcomes = [
        (folder.name, read_outcome(folder, ("train_loss", *BEST), (*CASE, "label")))
        for folder in sorted(out.glob("trials/*"))
    ]
    runs = [{"name": name, **outcome} for name, outcome in outcomes if outcome]
    cases: dict[tuple[Any, ...], list[Outcome]] = {}
    for one in runs:
        if one["status"] == "finished":
            cases.setdefault(_rank(one), []).append(one)
    best = {rank: min(same, key=lambda one: one["valid_loss"]) for rank, same in sorted(cases.items())}
    published = runner.load_packaged("regbench_published")
    return {
        "study": "regbench",
        "interrupted": False,
        **merge_environments(runs),
        "held_out": common["held_out"],
        "labels": {one["architecture"]: one["label"] for one in runs},
        "anchors": _anchors(make_task(common | {"environments": 1, "in_distribution": False})),  # all share the test
        "published": published["figure_9"],
        "published_in_distribution": published["table_2"],
        "best": [
            {name: one[name] for name in ("name", *BEST)} | {"configurations": len(cases[rank])}
            for rank, one in best.items()
        ],
        "runs": runs,
    }


def _rank(outcome: Outcome) -> tuple[Any, ...]:
    """Sort cases: out of distribution first, architectures in the paper's order, then by environments."""
    names, name = list(ARCHITECTURES), outcome["architecture"]
    known = names.index(name) if name in names else len(names)
    return outcome["in_distribution"], known, name, outcome["environments"]


@lru_cache(maxsize=1)
def _anchors(data: RegBenchData) -> dict[str, dict[str, float]]:
    """Return the test scores of predictors that need no training."""
    return round_digits(anchors(data.sequences("test")), 4)


def tables(results: dict[str, Any]) -> str:
    """Return all tables that there are numbers for, in Markdown."""
    functions = {"case_name": case_name, "published_in_distribution": published_in_distribution}
    return render(TEMPLATES / "regbench.md", results=results, **functions).strip()
