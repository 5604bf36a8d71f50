"""All contestants of the arena on one task: the runs of the search, those of the report, and what they found.

A contestant has one run for each combination of values in the search space of the task, and further ones beyond the
edges at which the best are; then the best values are trained again with new seeds, and these models read the tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from memory_mosaics.config import to_plain
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.figures.arena import best_anchor, best_transformer, cell_text, verdict
from memory_mosaics.experiments.grid import Grid, is_at_edge, next_value
from memory_mosaics.experiments.outcomes import Outcome, Settings, check_outcome
from memory_mosaics.experiments.own_mixers import check_own_mixer, fingerprint
from memory_mosaics.experiments.runner import should_compile
from memory_mosaics.experiments.suite import SEARCH_SEED, SIZE_FIELDS, ArenaTask, architecture, is_own
from memory_mosaics.models import count_without_embeddings
from memory_mosaics.results import environment_info, mean_and_interval, round_digits
from memory_mosaics.runtime import Runtime, RuntimeConfig, start_runtime
from memory_mosaics.tasks.synthetic import SyntheticTest
from memory_mosaics.tasks.text import TextData, TextTest
from memory_mosaics.training.config import TaskRun
from memory_mosaics.training.trainer import Trainer

MAX_EXTENSIONS = 2  # values beyond the edge of a list
PERFECT = 0.999  # a score that no further value can improve


@dataclass(frozen=True, kw_only=True)
class Contest:
    """All contestants on one task."""

    out: Path
    task: ArenaTask
    contestants: list[str]
    seeds: int
    runtime: RuntimeConfig

    def check(self) -> None:
        """Find sizes that do not fit a contestant, and mixers that look ahead, before anything is trained."""
        for name in self.contestants:
            if is_own(name):
                sizes = self.task.sizes | {"vocabulary": 32, "context": 64}
                check_own_mixer(name, partial(architecture(name).config, **sizes))
            for values in self.task.model_combinations():
                try:
                    config = self.task.config(name, values)
                    to_plain(config)  # a mixer that cannot be saved is found here
                    with torch.device("meta"):
                        config.build()
                except (TypeError, ValueError) as error:
                    raise UserError(f"{name} on {self.task.name}: {one_line(error)}") from error

    def prepare(self) -> Settings:
        """Write the data that are read from files, and return what identifies them."""
        found = self.task.data.prepare(self.data_folder)
        training, data = self.task.training, self.task.data.open(self.data_folder)
        data.task(batch_size=training.batch, seed=0, steps=training.steps)
        for test in data.test_sets():
            test.check()
        return found

    def rows(self) -> dict[str, list[str]]:
        """Return the rows of the table that this task has, with the tests of each, by label.

        Texts have a row each, and so have the tests that are longer than the examples of the training together.
        """
        data = self.task.data
        if isinstance(data, TextData):
            return {f"{self.task.name}-{label}": [label] for label in data.labels}
        longer = [one.label for one in data.variants() if one.length > data.length]
        others = [one.label for one in data.variants() if one.label not in longer]
        return {self.task.name: others or longer} | ({f"{self.task.name}-longer": longer} if others and longer else {})

    @cached_property
    def _tests(self) -> int:
        return sum(map(len, self.rows().values()))

    @property
    def data_folder(self) -> Path:
        return self.out / "data"

    @property
    def setup(self) -> Settings:
        """What all runs of a folder have in common, and what those of each contestant have."""
        first = self.task.combinations()[0]
        configs = {name: to_plain(self.task.config(name, first)) for name in self.contestants}
        own = {name: fingerprint(name.split("+")[0]) for name in self.contestants if is_own(name)}
        return self.task.setup | configs | {f"{name} of a file with SHA-256": found for name, found in own.items()}

    @property
    def search_grid(self) -> Grid:
        """The runs of the search."""
        return self._grid(self._searched)

    def _searched(self) -> list[Settings]:
        return [run for name in self.contestants for run in self._search_runs(name)]

    @property
    def report_grid(self) -> Grid:
        """The runs with new seeds, with the values that the search has chosen."""
        return self._grid(self._reported, keep_checkpoints=True)

    def _reported(self) -> list[Settings]:
        """Those of all contestants whose search has ended."""
        values = {name: chosen for name in self.contestants if (chosen := self.chosen(name)) is not None}
        return [settings(name, values[name], seed) for seed in self.report_seeds for name in values]

    @property
    def report_seeds(self) -> range:
        return range(SEARCH_SEED + 1, SEARCH_SEED + 1 + self.seeds)

    def _grid(self, runs: list[Settings] | Callable[[], list[Settings]], *, keep_checkpoints: bool = False) -> Grid:
        metric = self.task.data.metric
        return Grid(
            out=self.out,
            name_of=name_of,
            train=self.train,
            settings=runs,
            required_fields=("valid_loss", "valid_score"),
            summary_formats=(f"{metric} {{valid_score:.3f}}",),
            keep_checkpoints=keep_checkpoints,
        )

    def _search_runs(self, contestant: str) -> list[Settings]:
        """All combinations, and those beyond the edges at which outcomes are the best."""
        runs = [settings(contestant, values, SEARCH_SEED) for values in self.task.combinations()]
        lists = {name: sorted(values) for name, values in self.task.search.items() if is_extensible(name, values)}
        for _ in range(MAX_EXTENSIONS):
            outcomes = [self._outcome(run) for run in runs]
            best = self._best([one for one in outcomes if one])
            if best is None or None in outcomes or self._is_solved(best):
                break
            for name, values in lists.items():
                changed = {field: best[field] for field in self.task.search} | {name: beyond(values, best[name])}
                if changed[name] is not None and self._is_possible(contestant, changed):
                    values.append(changed[name])
                    values.sort()
                    runs.append(settings(contestant, changed, SEARCH_SEED))
        return runs

    def _is_solved(self, outcome: Outcome) -> bool:
        """Whether no further value can improve the score."""
        stop_at = self.task.training.stop_at or PERFECT
        return self.task.data.higher_is_better and outcome["valid_score"] >= stop_at

    def _is_possible(self, contestant: str, values: Settings) -> bool:
        """Whether a model and a training have these values: a dropout must be below 1."""
        name = name_of(settings(contestant, values, SEARCH_SEED))
        if name not in self._possible:
            try:
                self.task.config(contestant, values)
                self.task.training_of(values, seed=SEARCH_SEED)
                self._possible[name] = True
            except (TypeError, ValueError):
                self._possible[name] = False
        return self._possible[name]

    @cached_property
    def _possible(self) -> dict[str, bool]:
        """What is known of runs, by name: building a model to find out takes a tenth of a second."""
        return {}

    def _outcome(self, run: Settings) -> Outcome | None:
        grid = self._grid([run])
        outcome = grid.outcome(grid.folder(run))
        try:
            self._check_tests(outcome or {})
        except ValueError as error:
            file = grid.folder(run) / "outcome.json"
            raise UserError(f"{file} is damaged: {one_line(error)}; remove it to train that run again") from error
        return outcome

    def _check_tests(self, outcome: Outcome) -> None:
        """Raise an error unless a run of the report that finished has a number, or None, for every test."""
        if outcome.get("status") != "finished" or outcome["seed"] == SEARCH_SEED:
            return
        count, metric = self._tests, self.task.data.metric
        tests = outcome.get("tests")
        found = tests if isinstance(tests, list) else []
        scores = [one.get(metric, "") if isinstance(one, dict) else one for one in found]
        if len(scores) != count or not all(score is None or type(score) is float for score in scores):
            raise ValueError(f"its tests are {tests!r:.80}, not {count} with a number for {metric}")

    def check_outcome(self, outcome: Outcome) -> str:
        """Return the name of the run that an outcome is of; an error for a damaged one."""
        run = {field: outcome[field] for field in ("contestant", *self.task.search, "seed")}
        check_outcome(outcome, self._grid([run]).required_fields)
        self._check_tests(outcome)
        return name_of(run)

    def outcomes(self) -> list[Outcome]:
        """Return those of all runs that have ended."""
        runs = [*self._searched(), *self._reported()]
        return [outcome for run in runs if (outcome := self._outcome(run))]

    def _rank(self, outcome: Outcome) -> tuple[float, float]:
        """What a better outcome has more of."""
        score = outcome["valid_score"]
        return (score if self.task.data.higher_is_better else -score), -outcome["valid_loss"]

    def _best(self, outcomes: list[Outcome]) -> Outcome | None:
        return max((one for one in outcomes if one["status"] == "finished"), key=self._rank, default=None)

    def chosen(self, contestant: str) -> Settings | None:
        """Return the values of the best run of the search; None before its end, and if no run ended well."""
        outcomes = [self._outcome(run) for run in self._search_runs(contestant)]
        ended = [one for one in outcomes if one]
        best = self._best(ended) if len(ended) == len(outcomes) else None
        return {name: best[name] for name in self.task.search} if best else None

    def train(self, settings: Settings, folder: Path) -> Outcome | None:
        """Train one model, or continue it; test it unless it is of the search; None if it was told to stop."""
        task, values = self.task, {name: settings[name] for name in self.task.search}
        config, training = task.config(settings["contestant"], values), task.training_of(values, seed=settings["seed"])
        runtime = replace(self.runtime, log_every=min(self.runtime.log_every, training.evaluate_every))
        spec = TaskRun(out=folder, name=folder.name, task=task.data, model=config, training=training, runtime=runtime)
        with start_runtime(runtime) as here:
            data = task.data.open(self.data_folder)
            source = data.task(batch_size=training.batch, seed=training.seed, steps=training.steps)
            faster = architecture(settings["contestant"]).compiles
            compiled = should_compile(runtime, here.device, training.steps, faster=faster)
            trainer = Trainer(spec, source, config, here, compiled=compiled)
            if here.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(here.device)
            results = trainer.run()
            if results["interrupted"]:
                return None
            peak = torch.cuda.max_memory_allocated(here.device) if here.device.type == "cuda" else None
            tests = [] if settings["seed"] == SEARCH_SEED else test(data.test_sets(), trainer.model.eval(), here)
        progress = trainer.progress
        return {
            "parameters": results["parameters"],
            "valid_loss": round_digits(progress["valid_loss"], 5),
            "valid_score": round_digits(progress.get(task.data.metric, progress["valid_loss"]), 5),
            "seconds": round(progress["seconds"], 1),
            "tokens_per_second": round_digits(results["tokens_per_second"] or 0.0),
            **({} if peak is None else {"peak_gib": round_digits(peak / 2**30)}),
            "parameters_without_embeddings": count_without_embeddings(task.body(settings["contestant"], values)),
            "steps": progress["step"],
            "reached": progress["reached"],
            "compiled": compiled,
            "curve": [[step, round_digits(score)] for step, *_, score in progress["curve"]],
            **environment_info(here.device),
            **({"tests": tests} if tests else {}),
        }

    def results(self) -> dict[str, dict[str, Any]]:
        """Return what results.json has of this task: a record for each row of the table."""
        tests = self.task.data.open(self.data_folder).test_sets()
        numbers = {test.label: number for number, test in enumerate(tests)}
        return {row: self._row(tests, [numbers[label] for label in labels]) for row, labels in self.rows().items()}

    def _row(self, tests: "Sequence[SyntheticTest | TextTest]", chosen: list[int]) -> dict[str, Any]:
        """Return a record over the tests of these numbers."""
        data = self.task.data
        found = {name: one for name in self.contestants if (one := self._record(name, chosen))}
        anchors = [tests[at].anchors() for at in chosen]
        shared = [name for name in anchors[0] if all(name in one for one in anchors)]
        means = round_digits({name: fmean(one[name][data.metric] for one in anchors) for name in shared})
        record: dict[str, Any] = {"task": self.task.name, "metric": data.metric}
        record["higher_is_better"] = data.higher_is_better
        record |= {"tests": [tests[at].label for at in chosen], "anchors": means, "seeds": self.seeds}
        record["perfect"] = 1.0 if data.higher_is_better else 0.0
        if isinstance(data, TextData):  # nobody knows the entropy of a text: the best of the row stands for it
            record["perfect"] = min([*means.values(), *(one["score"] for one in found.values() if "score" in one)])
            record["anchor_measures"] = {name: _summarize([anchors[0][name]]) for name in shared}
        record |= tests[chosen[0]].describe() | {"examples": sum(tests[at].describe()["examples"] for at in chosen)}
        record |= {"setup": self.task.setup, "contestants": found}
        record |= {"reference": best_transformer(record), "best_anchor": best_anchor(record)}
        for name, one in found.items():
            one["verdict"] = verdict(record, name)
            one["cell"] = cell_text(record, name)
        return record

    def _record(self, contestant: str, tests: list[int]) -> dict[str, Any] | None:
        searched = [one for run in self._search_runs(contestant) if (one := self._outcome(run))]
        if not searched:
            return None
        fields = (*self.task.search, "status", "valid_loss", "valid_score")
        record: dict[str, Any] = {"label": architecture(contestant).label}
        record["searched"] = [{name: one.get(name) for name in fields} for one in searched]
        best = self._best(searched)
        if best is None:
            return record
        values = {name: best[name] for name in self.task.search}
        ended = [one for seed in self.report_seeds if (one := self._outcome(settings(contestant, values, seed)))]
        runs = [one for one in ended if one["status"] == "finished"]
        record |= {"parameters": best["parameters"], "chosen": values}
        record["parameters_without_embeddings"] = best["parameters_without_embeddings"]
        record["at_edge"] = [name for name in values if is_at_edge(values[name], [one[name] for one in searched])]
        record |= {"valid_score": best["valid_score"], "failed": len(ended) - len(runs), "seeds": len(runs)}
        record["reached"] = sum(one.get("reached", False) is True for one in runs)
        record |= {"seconds": best["seconds"], "hardware": best["hardware"]}
        measures = [[one["tests"][at] for at in tests] for one in runs]
        scores = [[test and test[self.task.data.metric] for test in run] for run in measures]
        if any(None in run for run in scores):
            return record | {"unreadable": True}  # longer than its table of positions
        if runs:
            means = [fmean(run) for run in scores]
            record["score"], record["within"] = mean_and_interval(means, digits=4)
            record["by_test"] = [[*mean_and_interval(values, digits=4)] for values in zip(*scores, strict=True)]
            record |= {"scores": round_digits(means), "curves": [one["curve"] for one in runs]}
            record["seconds"] = round_digits(fmean(one["seconds"] for one in runs), 3)
            record["hardware"] = "; ".join(sorted({one["hardware"] for one in runs}))
            trained = [*runs, *(one for one in searched if one["status"] == "finished")]
            record["commits"] = sorted({one.get("commit") for one in trained}, key=str)
            if isinstance(self.task.data, TextData):
                record["measures"] = _summarize([run[0] for run in measures])
        return record


def test(tests: "Sequence[SyntheticTest | TextTest]", model: Any, here: Runtime) -> list[dict[str, Any] | None]:
    """Return the measures of all tests; None where a model has too few positions to read one."""
    limit = getattr(model, "max_positions", None) or inf
    measures = [one.measure(model, here) if one.length <= limit else None for one in tests]
    return round_digits(measures, 5)


def _summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and 95 % interval over runs of every measure; those by position are [first, end, mean, interval]."""
    spans = zip(*(one["by_position"] for one in runs), strict=True)
    by_position = [
        [int(cells[0][0]), int(cells[0][1]), *mean_and_interval([loss for _, _, loss in cells], digits=4)]
        for cells in spans
    ]
    names = [name for name in runs[0] if name != "by_position" and all(name in one for one in runs)]
    return {name: [*mean_and_interval([one[name] for one in runs], digits=4)] for name in names} | {
        "by_position": by_position
    }


def settings(contestant: str, values: Settings, seed: int) -> Settings:
    """Return the settings of a run."""
    return {"contestant": contestant} | values | {"seed": seed}


def name_of(settings: Settings) -> str:
    """Name the fields: another suite may search others, or the same in another order."""
    values = sorted((name, value) for name, value in settings.items() if name not in ("contestant", "seed"))
    return "-".join([settings["contestant"], *(f"{name}{value}" for name, value in values), f"seed{settings['seed']}"])


def is_extensible(field: str, values: Sequence[Any]) -> bool:
    """Whether values are numbers from 0 on, of which a list can be continued.

    Sizes are not: 16 heads would follow 4, and nothing 1, so that those who need many heads had more runs.
    """
    return (
        field not in SIZE_FIELDS
        and len(values) > 1
        and all(type(value) in (int, float) and value >= 0 for value in values)
    )


def beyond(values: Sequence[float], best: float) -> float | None:
    """Return the next value of a sorted list beyond the best one, to three digits; None if that is not at an edge."""
    found = next_value(values, best)
    return None if found is None else type(best)(float(f"{found:.3g}"))
