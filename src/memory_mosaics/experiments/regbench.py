"""RegBench: who learns a new language from its context? Eleven architectures, by one recipe (figure 9 and table 2).

Every model is trained on some number of languages, its environments, one sequence each, and tested on sequences of
others; or, in distribution, on new sequences of the same. Of each run the epoch, and of each architecture the run, is
the one with the lowest validation loss: the test is looked at once they are chosen. Which models there are is in
regbench_models.py.

The published recipe: AdamW (0.9, 0.999) with weight decay on all parameters but those whose modules opt out; 32
sequences per step; the learning rate rises over the first tenth of the steps and falls along a cosine that starts at
step 0. The test is run for three epochs of each run: those of the lowest validation loss, which is the one that counts,
of the highest accuracy and of the lowest distance (TVD).

Each run has a folder, OUT/trials/NAME, whose name lists all of its settings. What is finished stays, whatever is asked
next: results.json, the tables and the figures cover all runs of the folder.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch

from memory_mosaics import checkpoint
from memory_mosaics.config import MAX_JOBS, MAX_SIZE
from memory_mosaics.errors import UserError, check_range, within_memory
from memory_mosaics.experiments.figures.tasks import published_in_distribution
from memory_mosaics.experiments.own_mixers import fingerprint
from memory_mosaics.experiments.regbench_models import (
    ARCHITECTURES,
    ELEVEN,
    architecture,
    check_architecture,
)
from memory_mosaics.experiments.runner import (
    Grid,
    Outcome,
    Search,
    Settings,
    Values,
    check_ray,
    import_optuna,
    load_packaged,
    prepare,
    read_outcome,
    report,
    run_grids,
)
from memory_mosaics.files import read_json, write_text
from memory_mosaics.results import environment_info, round_digits, write_results
from memory_mosaics.runtime import RuntimeConfig, find_device, start_runtime
from memory_mosaics.tasks.regbench import BATCH, RegBench, RegBenchData, anchors
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer

RECIPE = load_packaged("regbench")
ENVIRONMENTS = [100, 500, 1000, 2500, 40_000]
SEARCHED: Settings = {  # by the paper
    "blocks": [2, 4, 8],
    "heads": [2, 4, 8],
    "width": [64, 128, 256],
    "weight_decay": [0.01, 0.1],
}
SHORT = {"blocks": "l", "heads": "h", "width": "d", "weight_decay": "decay", "learning_rate": "lr", "seed": "seed"}
CASE = ("architecture", "environments", "in_distribution")
BEST = (*CASE, "blocks", "heads", "width", "weight_decay", "learning_rate", "seed", "parameters", "valid_loss")
BEST += ("accuracy", "tvd", "tested", "seconds")
SAVE_SECONDS = 60.0
MIN_STEPS_TO_COMPILE = 2000


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


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to train, on one set of languages."""

    architecture: str
    environments: int
    in_distribution: bool
    blocks: int
    heads: int | None
    width: int
    weight_decay: float
    learning_rate: float
    seed: int
    epochs: int = 200
    held_out: int = 500
    distinct: bool = False  # no language twice
    data_seed: int = 0  # another one is another benchmark
    patience: int | None = None  # epochs without a lower validation loss after which a run ends
    most_steps: int | None = None  # fewer epochs where they would be more

    @property
    def task(self) -> RegBenchData:
        return make_task(self.environments, asdict(self))

    @property
    def steps_per_epoch(self) -> int:
        return ceil(self.environments / BATCH)

    @property
    def steps(self) -> int:
        allowed = self.epochs if self.most_steps is None else max(1, self.most_steps // self.steps_per_epoch)
        return min(self.epochs, allowed) * self.steps_per_epoch

    @property
    def training(self) -> Training:
        """The published recipe."""
        return Training(
            steps=self.steps,
            batch=BATCH,
            learning_rate=self.learning_rate,
            final_learning_rate=0.0,
            warm_up=self.steps // 10,
            schedule="cosine-from-start",
            betas=(0.9, 0.999),
            weight_decay=self.weight_decay,
            decay_all=True,
            clip=architecture(self.architecture).clip,
            seed=self.seed,
            evaluate_every=self.steps_per_epoch,
            patience=self.patience,
        )


def make_task(environments: int, common: Settings) -> RegBenchData:
    """Return the languages of a number of environments."""
    same = {name: common[name] for name in ("held_out", "in_distribution", "distinct")}
    return RegBenchData(environments=environments, seed=common["data_seed"], **same)


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
    most_steps: int | None = RECIPE["most_steps"],
    patience: int | None = RECIPE["patience"],
    held_out: int = RECIPE["held_out"],
    distinct: bool = RECIPE["distinct"],
    data_seed: int = RECIPE["data_seed"],
    processes: int = RECIPE["processes"],
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
        most_steps: train for fewer epochs where there are so many languages that they would take more steps than this
        patience: end a run when its validation loss has not fallen for so many epochs; null trains them all
        held_out: sequences of the validation, and of the test
        distinct: use no language twice, neither in one split nor in two
        data_seed: of the languages and sequences; another one is another benchmark
        processes: runs at once, distributed over the GPUs
        cluster: ray trains on the Ray cluster of this machine or of RAY_ADDRESS, whose machines share the folder
        device: cuda, mps or cpu; auto takes the first that is available
        precision: of the products; auto is bfloat16 on CUDA, and float32 elsewhere
        compile: with torch.compile; null compiles on CUDA where a run is long enough
    """
    arguments = dict(locals())
    numbers = list(dict.fromkeys(environments or ([100] if in_distribution else ENVIRONMENTS)))
    names = list(dict.fromkeys(architectures or ELEVEN))
    setup: Settings = {"epochs": epochs, "most_steps": most_steps, "patience": patience}
    check_range(1, MAX_SIZE, **setup, trials=trials)
    check_range(1, MAX_JOBS, processes=processes)
    if trials is not None and not sweep:
        raise UserError(f"--trials {trials} draws from a sweep; give --sweep too, or leave it out")
    setup |= {"held_out": held_out, "distinct": distinct, "data_seed": data_seed}
    common = setup | {"in_distribution": in_distribution}
    runtime = RuntimeConfig(device=device, precision=precision, compile=compile)
    cases = [(name, number) for number in numbers for name in names]
    grids = [make_grid(out, runtime, common, *case, choices, sweep=sweep, trials=trials) for case in cases]
    if sweep:
        import_optuna()
    if cluster == "ray":
        check_ray()
    else:
        setup["precision"] = runtime.precision_on(find_device(device))
    own = [name for name in names if name not in ARCHITECTURES]
    prepare(out, arguments, setup | {f"{name} of a file with SHA-256": fingerprint(name) for name in own})
    for number in numbers:  # once, and not in every process
        for split in ("train", "validation", "test"):
            make_task(number, common).sequences(split, folder=out / "data")

    def collected(*, interrupted: bool) -> dict[str, Any]:
        results = collect(out, common) | {"interrupted": interrupted}
        write_results(out / "results.json", results)
        write_text(out / "tables.md", tables(results) + "\n")
        return results

    collected(interrupted=True)  # a damaged outcome is found before anything is trained
    done = run_grids(grids, processes=processes, cluster=cluster, save=lambda: collected(interrupted=True))
    results = collected(interrupted=not done)
    drawable, where = bool(results["best"]), f"Tables: {out / 'tables.md'}. "
    report(results, out, f"{tables(results)}\n", drawable=drawable, also=where)
    runs: list[Outcome] = results["runs"]
    if done and not results["best"]:
        raise UserError(f"none of {len(runs)} runs finished; {runs[-1]['reason']}")
    return results


def make_grid(
    out: Path,
    runtime: RuntimeConfig,
    common: Settings,
    name: str,
    environments: int,
    choices: Choices,
    *,
    sweep: bool,
    trials: int | None,
) -> Grid:
    """Return the runs of one architecture and one number of environments, once everything that they train makes sense.

    Another space is another study of Optuna's: a sweep may grow, and the runs of both are in the same folders.
    """
    fixed = common | {"architecture": name, "environments": environments}
    make_task(environments, common)
    space: dict[str, Values] = {**choices.of(name, sweep=sweep)}
    runs = [dict(zip(space, row, strict=True)) for row in product(*space.values())]
    for settings in runs:
        check_architecture(name, **{size: settings[size] for size in ("blocks", "heads", "width")})
        _ = Job(**fixed, **settings).training  # which checks its values
    drawn = trials if trials is not None and trials < len(runs) else 0
    case = f"{name}-{environments}{'-in' if common['in_distribution'] else ''}"
    study = {"study": f"{case}-{_name(space)}", "space": space, "base": dict.fromkeys(space)}
    return Grid(
        out=out,
        name_of=partial(name_of, case),
        train=partial(train, fixed, runtime),
        runs=[] if drawn else runs,
        search=Search(**study, trials=drawn, seed=space["seed"][0]) if sweep else None,
        about=partial(about, fixed),
        labels=(*CASE, "label"),
        fields=("train_loss", *BEST),
        shown=("valid loss {valid_loss:.4f}", "accuracy {accuracy:.3f}", "TVD {tvd:.3f}", "{seconds:.0f} s"),
        prefix=f"{case}-l",
        keep_checkpoints=False,
    )


def name_of(case: str, settings: Settings) -> str:
    """Return the name of the folder of a run."""
    return f"{case}-{_name({name: [settings[name]] for name in SHORT})}"


def _name(space: Mapping[str, Values]) -> str:
    """`l2,4-d64-decay0.1-lr0.001-seed0`; heads only where there are some."""
    parts = []
    for name, short in SHORT.items():
        values = [f"{one:g}" if isinstance(one, float) else str(one) for one in space[name] if one is not None]
        parts += [short + ",".join(values)] if values else []
    return "-".join(parts)


def about(fixed: Settings, settings: Settings) -> Settings:
    """Return what an outcome records of the settings of a run."""
    return fixed | settings | {"label": architecture(fixed["architecture"]).label}


def train(fixed: Settings, runtime: RuntimeConfig, settings: Settings, out: Path) -> Outcome | None:
    """Train a model in a folder of its own, or continue, and test it; None if it was told to stop.

    The model of the epoch with the lowest validation loss stays in OUT/model.
    """
    job = Job(**fixed, **settings)
    kind, data = architecture(job.architecture), out.parents[1] / "data"
    runtime = replace(runtime, samples=0, log_every=job.steps_per_epoch, save_seconds=SAVE_SECONDS)
    advice = f"a model of width {job.width} does not fit; choose a smaller"
    with within_memory(advice), start_runtime(runtime) as here:
        cuda = here.device.type == "cuda"
        if cuda:
            torch.set_float32_matmul_precision("high")  # TF32, as published, where not bfloat16
            torch.compiler.reset()  # it gives up on code that it has compiled for eight models
            torch.cuda.empty_cache()  # of the run before: other processes may want it
        task = RegBench(job.task, seed=job.seed, device=here.device, folder=data)
        wanted = cuda and job.steps >= MIN_STEPS_TO_COMPILE and kind.compiles
        compiled = wanted if runtime.compile is None else runtime.compile
        config = kind.config(blocks=job.blocks, heads=job.heads or 1, width=job.width)
        run = TaskRun(out=out, name=out.name, task=job.task, model=config, training=job.training, runtime=runtime)
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
        "curve": {name: round_digits(list(column), 4) for name, column in columns.items()},
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
    return {"epoch": step // task.steps_per_epoch, **{name: round_digits(number, 5) for name, number in scores.items()}}


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
    shared = environment_info()
    hardware = sorted({one.pop("hardware") for one in runs if "hardware" in one})
    for one in runs:
        for name in ("versions", "commit"):
            if one.get(name) == shared[name]:
                del one[name]
    published = load_packaged("regbench_published")
    return {
        "study": "regbench",
        "interrupted": False,
        **shared,
        **({"hardware": "; ".join(hardware)} if hardware else {}),
        "held_out": common["held_out"],
        "labels": {one["architecture"]: one["label"] for one in runs},
        "anchors": _anchors(out, common, min((one["environments"] for one in runs), default=1)),
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


def _anchors(out: Path, common: Settings, environments: int) -> dict[str, dict[str, float]]:
    """Return what predictors reach that need no training; measured once. All sizes share the test, unless it avoids the
    languages of the training: then it is the smallest's.
    """
    file = out / "anchors.json"
    try:
        found = read_json(file)
        return {name: {key: float(scores[key]) for key in ("accuracy", "tvd")} for name, scores in found.items()}
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        task = make_task(environments, common | {"in_distribution": False})
        found = anchors(task.sequences("test", folder=out / "data"))
        measured = {
            name: {key: round_digits(score, 4) for key, score in scores.items()} for name, scores in found.items()
        }
        write_results(file, measured)
        return measured


def tables(results: dict[str, Any]) -> str:
    """Return all tables that there are numbers for, in Markdown."""
    inside = [best for best in results["best"] if best["in_distribution"]]
    failed = [one for one in results["runs"] if one["status"] != "finished"]
    heads = [
        "chosen on validation loss",
        "environments",
        "chosen",
        "of",
        "epoch",
        "valid loss",
        "parameters",
        "minutes",
    ]
    known = ["new sequences of known languages", "environments", "accuracy / TVD", "published"]
    parts = [
        _out_of_distribution(results),
        _markdown(known, [_in_distribution(results, best) for best in inside]),
        _markdown(heads, [_chosen(results, best) for best in results["best"]]),
        _markdown(["failed", "why"], [[one["name"], one["reason"]] for one in failed]),
    ]
    return "\n\n".join(part for part in parts if part) or "No run is finished."


def _out_of_distribution(results: dict[str, Any]) -> str:
    """Architectures by environments, each with what was published of it below."""
    found: dict[str, dict[int, str]] = {}
    for best in results["best"]:
        if not best["in_distribution"]:
            found.setdefault(best["architecture"], {})[best["environments"]] = _pair(best["accuracy"], best["tvd"])
    columns, rows = sorted({number for cells in found.values() for number in cells}), []
    for name, cells in found.items():
        rows.append([results["labels"][name], *(cells.get(number, "") for number in columns)])
        published = results["published"].get(name, {})
        theirs = [_pair(*published[str(number)]) if str(number) in published else "" for number in columns]
        rows += [["*published*", *theirs]] if any(theirs) else []
    if rows:
        rows += [[name, *[_pair(**scores)] * len(columns)] for name, scores in results["anchors"].items()]
    return _markdown(["accuracy / TVD, new languages", *(f"{number:,}" for number in columns)], rows)


def _in_distribution(results: dict[str, Any], best: dict[str, Any]) -> list[str]:
    published = published_in_distribution(results, best)
    scores = [_pair(best["accuracy"], best["tvd"]), _pair(*published) if published else ""]
    return [results["labels"][best["architecture"]], f"{best['environments']:,}", *scores]


def _chosen(results: dict[str, Any], best: dict[str, Any]) -> list[str]:
    """Which configuration, and by what."""
    where = ", in distribution" * best["in_distribution"]
    case = f"{best['architecture']}-{best['environments']}{'-in' * best['in_distribution']}-"
    cells = [results["labels"][best["architecture"]], f"{best['environments']:,}{where}"]
    cells += [best["name"].removeprefix(case), f"{best['configurations']}", f"{best['tested']['loss']['epoch']}"]
    return [*cells, f"{best['valid_loss']:.4f}", f"{best['parameters']:,}", f"{best['seconds'] / 60:.1f}"]


def _pair(accuracy: float, tvd: float) -> str:
    return f"{accuracy:.3f} / {tvd:.3f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table; nothing of one without rows."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|---|{'---:|' * (len(head) - 1)}", *lines[1:]]) if rows else ""
