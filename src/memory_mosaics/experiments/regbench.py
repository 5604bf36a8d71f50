"""RegBench: who learns a new language from its context? Eleven architectures, by one recipe (figure 9 and table 2).

Every model is trained on some number of languages, its environments, one sequence each, and tested on sequences of
others; or, in distribution, on new sequences of the same. Of each run the epoch, and of each architecture the run, is
the one with the lowest validation loss: the test is looked at once they are chosen (regbench_training.py). Which models
there are is in regbench_models.py.

Each run has a folder, OUT/trials/NAME, where the name says everything about it. What is finished stays, whatever is
asked next: results.json, the tables and the figures are of all that the folder holds.
"""

from math import inf
from pathlib import Path
from typing import Any, Literal

from memory_mosaics import results as files
from memory_mosaics.config import MAX_JOBS, MAX_SIZE
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.experiments import figures
from memory_mosaics.experiments import regbench_tables as tables
from memory_mosaics.experiments.journal import optuna
from memory_mosaics.experiments.regbench_models import ARCHITECTURES, ELEVEN
from memory_mosaics.experiments.regbench_own import fingerprint
from memory_mosaics.experiments.regbench_plan import Choices, Plan, make
from memory_mosaics.experiments.regbench_training import task_of
from memory_mosaics.experiments.sweep_ray import need_ray, on_ray
from memory_mosaics.experiments.trials import News, Outcome, Settings, carry_out, outcome_of, watched
from memory_mosaics.files import atomic_write, read_json
from memory_mosaics.runtime import RuntimeConfig, find_device, precision_of
from memory_mosaics.tasks.regbench_anchors import anchors
from memory_mosaics.training.folder import read_run
from memory_mosaics.training.log import read

ENVIRONMENTS = [100, 500, 1000, 2500, 40_000]
CHOICES = Choices()
NOT_SAID = {
    "distinct": False,
    "data_seed": 0,
    "patience": None,
    "most_steps": None,
}  # by a folder that is older than the option


def run(
    out: Path = Path("runs/regbench"),
    *,
    architectures: list[str] | None = None,
    environments: list[int] | None = None,
    in_distribution: bool = False,
    sweep: bool = False,
    trials: int | None = None,
    choices: Choices = CHOICES,
    epochs: int = 200,
    most_steps: int | None = None,
    patience: int | None = None,
    held_out: int = 500,
    distinct: bool = False,
    data_seed: int = 0,
    processes: int = 1,
    cluster: Literal["ray"] | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    compile: bool | None = None,
) -> dict[str, Any]:
    """Train architectures to learn new languages in context, test them, and draw accuracy and distance to the truth.

    After Ctrl-C, or a kill, the same command goes on. Started several times, it shares the runs.

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
        processes: runs at once, dealt out to the GPUs there are
        cluster: ray trains on the Ray cluster of this machine or of RAY_ADDRESS, whose machines share the folder
        device: cuda, mps or cpu; auto takes the first that is there
        precision: of the products; auto is bfloat16 on CUDA, and float32 elsewhere
        compile: with torch.compile; null compiles on CUDA where a run is long enough
    """
    numbers = environments or ([100] if in_distribution else ENVIRONMENTS)
    lasting = {"epochs": epochs, "most_steps": most_steps, "patience": patience}
    check_range(1, MAX_SIZE, **lasting, trials=trials)
    check_range(1, MAX_JOBS, processes=processes)
    if trials is not None and not sweep:
        raise UserError(f"--trials {trials} draws from a sweep; give --sweep too, or leave it out")
    same = lasting | {"held_out": held_out, "distinct": distinct, "data_seed": data_seed}
    common = same | {"in_distribution": in_distribution}
    cases = [(name, number) for number in dict.fromkeys(numbers) for name in dict.fromkeys(architectures or ELEVEN)]
    machine = RuntimeConfig(device=device, precision=precision, compile=compile)
    plans = make(out, machine, common, cases, choices, sweep=sweep, trials=trials)
    if sweep:
        optuna()
    if cluster == "ray":
        need_ray()
    else:
        same["precision"] = precision_of(machine, find_device(device))
    files.prepare(out)
    same_setup(out, same, {name: fingerprint(name) for name, _ in cases if name not in ARCHITECTURES})
    for number in dict.fromkeys(numbers):  # once, and not by every process
        for split in ("train", "validation", "test"):
            task_of(number, common).sequences(split, folder=out / "data")
    try:
        with watched(out.name, sum(plan.count for plan in plans), Watch(plans, held_out)):
            done = on_ray(plans, processes) if cluster == "ray" else carry_out(plans, processes)
    except KeyboardInterrupt:
        done = False
    results: dict[str, Any] = collect(out, held_out) | {"interrupted": not done}
    text = keep(results, out)
    where = f"Results: {out / 'results.json'}. Tables: {out / 'tables.md'}."
    if not figures.available():
        where += " No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    elif results["best"]:
        where += f" Figures: {', '.join(map(str, figures.draw(results, out)))}."
    print(f"{text}\n\n{'' if done else 'Stopped; the same command goes on. '}{where}")
    runs: list[Outcome] = results["runs"]
    if done and not results["best"]:
        raise UserError(f"none of {len(runs)} runs finished; {runs[-1]['reason']}")
    return results


def same_setup(out: Path, setup: Settings, mixers: dict[str, str]) -> None:
    """All runs of a folder are measured alike, and those of a mixer of your own are of what it is now."""
    theirs = setup | setup_of(out)
    for name, value in setup.items():
        if theirs.get(name) != value:
            raise UserError(f"{out} holds runs with {name} {theirs.get(name)}, not {value}; name another with --out")
    known = theirs.get("mixers", {})
    for name, now in mixers.items():
        if known.get(name, now) != now and any(out.glob(f"trials/{name}-*")):
            raise UserError(f"{out} holds runs of {name} as it was before its file changed; name another with --out")
    files.write(out / "setup.json", theirs | ({"mixers": known | mixers} if known or mixers else {}))


def setup_of(out: Path) -> Settings:
    """What all runs of a folder have in common; nothing of a new one."""
    file = out / "setup.json"
    try:
        return NOT_SAID | dict(read_json(file))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; name another folder with --out") from error


class Watch:
    """How far the runs are, and how those under way are doing. When one has ended, all is written down again."""

    def __init__(self, plans: list[Plan], held_out: int):
        self.out, self.held_out, self.known = plans[0].out, held_out, -1
        self.steps: dict[str, int] = {}  # of each run under way
        self.asked = {plan.name_of(settings) for plan in plans for settings in plan.listed}
        self.drawn = tuple(f"{plan.case}-l" for plan in plans if not plan.listed)

    def is_asked(self, name: str) -> bool:
        return name in self.asked or name.startswith(self.drawn)

    def __call__(self) -> News:
        ended, going = {}, []
        best: dict[tuple[Any, ...], float] = {}
        for folder in sorted(self.out.glob("trials/*")):
            if outcome := _outcome(folder):
                ended[folder.name] = outcome
                best[case_of(outcome)] = min(best.get(case_of(outcome), inf), outcome.get("valid_loss", inf))
            elif self.is_asked(folder.name) and (lines := read(folder / "log.jsonl")):
                if folder.name not in self.steps:
                    self.steps[folder.name] = (read_run(folder) or {"training": {"steps": 1}})["training"]["steps"]
                newest = {name: value for line in lines for name, value in line.items()}
                going.append(newest | {"steps": self.steps[folder.name]})
        if len(ended) != self.known:
            self.known = len(ended)
            keep(collect(self.out, self.held_out) | {"interrupted": True}, self.out)
        done = sum(map(self.is_asked, ended)) + sum(line["step"] / line["steps"] for line in going)
        losses = " ".join(f"{line['valid_loss']:.3f}" for line in going if "valid_loss" in line)
        speed = sum(line["tokens_per_second"] for line in going)
        beside = f"valid loss {losses}, {speed:,.0f} tokens/s" if going else ""
        return News(done, {name: tables.line(name, outcome, best) for name, outcome in ended.items()}, beside)


def _outcome(folder: Path) -> Outcome | None:
    return outcome_of(folder, ("architecture", "environments", "in_distribution", "label"), finished=tables.KEPT[1:])


def case_of(outcome: Outcome) -> tuple[Any, ...]:
    return outcome["architecture"], outcome["environments"], outcome["in_distribution"]


def collect(out: Path, held_out: int) -> dict[str, Any]:
    """What results.json says: all runs of the folder, and of each case the one with the lowest validation loss."""
    outcomes = [(folder.name, _outcome(folder)) for folder in sorted(out.glob("trials/*"))]
    runs = [{"name": name, **outcome} for name, outcome in outcomes if outcome]
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in runs:
        before = best.get(case_of(one), {"valid_loss": inf})
        if one["status"] == "finished" and one["valid_loss"] < before["valid_loss"]:
            best[case_of(one)] = one
    shared = files.environment_info()
    hardware = sorted({one.pop("hardware") for one in runs if "hardware" in one})
    for one in runs:
        for name in ("versions", "commit"):
            if one.get(name) == shared[name]:
                del one[name]
    return {
        "study": "regbench",
        "interrupted": False,
        **shared,
        **({"hardware": "; ".join(hardware)} if hardware else {}),
        "held_out": held_out,
        "labels": {one["architecture"]: one["label"] for one in runs},
        "anchors": _anchors(out, held_out, min((one["environments"] for one in runs), default=1)),
        "published": tables.PUBLISHED,
        "published_in_distribution": tables.PUBLISHED_IN_DISTRIBUTION,
        "best": [tables.row(one, runs) for one in sorted(best.values(), key=tables.place)],
        "runs": runs,
    }


def _anchors(out: Path, held_out: int, environments: int) -> dict[str, dict[str, float]]:
    """What predictors reach that need no training; measured once. All sizes share the test, unless it avoids the
    languages of the training: then it is the smallest's.
    """
    file = out / "anchors.json"
    try:
        found = read_json(file)
        return {name: {key: float(scores[key]) for key in ("accuracy", "tvd")} for name, scores in found.items()}
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        common = NOT_SAID | setup_of(out) | {"held_out": held_out, "in_distribution": False}
        found = anchors(task_of(environments, common).sequences("test", folder=out / "data"))
        measured = {
            name: {"accuracy": files.rounded(scores.accuracy, 4), "tvd": files.rounded(scores.tvd, 4)}
            for name, scores in found.items()
        }
        files.write(file, measured)
        return measured


def keep(results: dict[str, Any], out: Path) -> str:
    """Write everything down; gives the tables."""
    text = tables.markdown(results)
    files.write(out / "results.json", results)
    with atomic_write(out / "tables.md") as tmp:
        tmp.write_text(text + "\n", encoding="utf-8")
    return text
