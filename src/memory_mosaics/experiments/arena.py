"""The arena: architectures on the same tasks, each with the same budget of search and seeds.

For every task and contestant

    search    one run for each combination of values in the search space of the task; the best on the validation
              examples is chosen. A best value at the edge of its list is searched further, up to two values beyond,
              except for sizes such as heads.
    report    the chosen values are trained again with seeds that the search has not seen. These models alone read the
              test examples, once. The table has the mean of their scores and its 95 % interval, which is over the
              seeds of training: all have the same test examples, and the same training examples where these are given
              in number. A seed that diverged is counted as failed, beside the mean of the others.

The tasks are in a suite, a YAML file: suites/tiny.yaml ends in minutes on a CPU. Runs, and so contestants, seeds and
tasks, can be added to a folder later; nothing is trained twice. The table has the contestants and tasks of the last
command.

    OUT/suite.yaml           the suite
    OUT/TASK/trials/NAME     the folder of a run: runner.py
    OUT/results.json         the table, the figures and the page are made from this file alone
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml

from memory_mosaics.config import MAX_JOBS
from memory_mosaics.errors import UserError, check_range, did_you_mean, one_line
from memory_mosaics.experiments.contest import MAX_EXTENSIONS, Contest, is_extensible, settings
from memory_mosaics.experiments.figures.arena import why_untested
from memory_mosaics.experiments.outcomes import check_setup, export_outcomes, import_outcomes, merge_environments
from memory_mosaics.experiments.report import TEMPLATES, render, text_table, write_page
from memory_mosaics.experiments.runner import MIN_STEPS_TO_COMPILE, check_devices, raise_errors, report, run_grids
from memory_mosaics.experiments.suite import SEARCH_SEED, load_suite
from memory_mosaics.files import read_json, write_text
from memory_mosaics.results import create_output_folder, round_digits, write_results
from memory_mosaics.runtime import RuntimeConfig

ESTIMATE_STEPS = 30
RUNTIME = RuntimeConfig(samples=0)
SAVE_SECONDS = 60.0  # between checkpoints: most runs end sooner

TEXT_MEASURES = ("loss", "seen", "gain", "bits_per_byte", "disentanglement")  # of the third table


def run(
    out: Path = Path("runs/arena"),
    *,
    suite: str = "tiny",
    tasks: list[str] | None = None,
    contestants: list[str] | None = None,
    mine: list[str] | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    cluster: Literal["ray"] | None = None,
    outcomes: Path | None = None,
    merge: Path | None = None,
    estimate: bool = False,
    report_only: bool = False,
    prepare_only: bool = False,
    runtime: RuntimeConfig = RUNTIME,
) -> dict[str, Any]:
    """Compare architectures on tasks of in-context learning, with the same search and the same seeds for all.

    Ctrl-C keeps everything, and the same command continues. More contestants, tasks or seeds extend a folder: name
    those that are there as well, since the table has what the command names.

    Args:
        out: folder of the runs, results.json, the figures and the page
        suite: tiny, for a CPU; reduced or published, for a GPU; or a YAML file of your own tasks
        tasks: of the suite; all if none are named
        contestants: architectures such as memory-mosaic or mamba; those of the suite if none are named
        mine: further contestants: the configurations of your own mixers, such as my_module.MyMixerConfig
        seeds: models per task and contestant that are tested; null is the suite's
        jobs: runs at once, each in a process of its own, distributed over the GPUs
        cluster: ray trains on the Ray cluster of this machine or of RAY_ADDRESS, whose machines share `out`
        outcomes: folder with a file TASK.jsonl per task. Runs whose outcomes are there are not trained again, and the
            outcomes of all runs are added, whenever one has ended: all that another machine needs to continue
        merge: folder with further outcomes of these tasks, such as those of another machine; with --outcomes they are
            added there. Two different outcomes of the same run are refused
        estimate: train nothing; time some steps of each contestant and print how long everything would take
        report_only: train nothing; make the table, the figures and the page of the runs that have ended
        prepare_only: train nothing; write the corpora of texts, OUT/TASK/data, for a machine without the sources
        runtime: how it is computed
    """
    entries, plain = load_suite(suite)
    for name in tasks or ():
        if name not in entries:
            raise UserError(f"no task {name!r} in the suite {suite}; {did_you_mean(name, entries)}")
    names = list(dict.fromkeys([*(contestants or plain["contestants"]), *(mine or ())]))
    seeds = int(plain["seeds"] if seeds is None else seeds)
    check_range(1, MAX_JOBS, jobs=jobs)
    check_range(1, 10_000, seeds=seeds)
    modes = {"estimate": estimate, "report_only": report_only, "prepare_only": prepare_only, "merge": bool(merge)}
    check_modes([name for name, on in modes.items() if on], parallel=jobs > 1 or bool(cluster), outcomes=outcomes)
    common = {} if report_only or prepare_only else check_devices(runtime, cluster)  # a report is made on any machine
    if runtime.samples:
        raise UserError(f"--runtime.samples {runtime.samples}: the arena writes no samples; leave it out")
    runtime = replace(runtime, save_seconds=runtime.save_seconds or SAVE_SECONDS)
    chosen = [entries[name] for name in dict.fromkeys(tasks or entries)]
    contests = [
        Contest(out=out / task.name, task=task, contestants=names, seeds=seeds, runtime=runtime) for task in chosen
    ]
    alone = read_alone(out)  # before anything is trained: it may be damaged
    rows = [row for contest in contests for row in contest.rows()]
    if len({*rows}) < len(rows):
        raise UserError(f"two rows of the table would be called {max(rows, key=rows.count)!r}; rename a task or a text")
    for contest in contests:
        contest.check()
    folders = [folder for folder in (outcomes, merge) if folder]
    if merge:
        check_merged(merge, [task.name for task in chosen])
    create_output_folder(out)
    facts = {}
    for contest in contests:
        prepared = facts[contest.task.name] = contest.prepare()
        if not (estimate or prepare_only):
            contest.out.mkdir(exist_ok=True)
            check_setup(contest.out, contest.setup | prepared | common)
            for folder in folders:
                import_outcomes(folder / f"{contest.task.name}.jsonl", contest.out, contest.check_outcome)
    if prepare_only:
        prepared = [f"{contest.data_folder} is prepared" for contest in contests if facts[contest.task.name]]
        print("\n".join(prepared) or "There is nothing to prepare: these tasks draw their examples while they train.")
        return facts
    if estimate:
        return print_estimate(contests, out)
    if report_only and not any(contest.outcomes() for contest in contests):
        raise UserError(f"--report_only: no run of these tasks and contestants has ended in {out}")
    write_text(out / "suite.yaml", yaml.safe_dump(plain, sort_keys=False))
    grids = [grid for contest in contests for grid in (contest.search_grid, contest.report_grid)]

    def save() -> None:
        if outcomes is not None:
            for contest in contests:
                export_outcomes(contest.out, outcomes / f"{contest.task.name}.jsonl", contest.check_outcome)

    done = report_only or run_grids(grids, processes=jobs, cluster=cluster, save=save if outcomes else None)
    save()
    results = {"study": "arena", "interrupted": not done, "suite": suite, "seeds": seeds, "jobs": jobs}
    results |= merge_environments([outcome for contest in contests for outcome in contest.outcomes()])
    results["tasks"] = {
        name: record | facts[contest.task.name] for contest in contests for name, record in contest.results().items()
    }
    for task in results["tasks"].values():
        for name in task["contestants"].keys() & alone.get(task["task"], {}):
            task["contestants"][name]["alone"] = alone[task["task"]][name]
    tested = any("score" in one for task in results["tasks"].values() for one in task["contestants"].values())
    if tested:
        write_page(out / "arena.html", TEMPLATES / "arena.html", title="The arena", results=results)
        write_text(out / "tables.md", markdown(results))
    also = f"Page: {out / 'arena.html'}. Tables: {out / 'tables.md'}." if tested else ""
    report(results, out, table(results), drawable=tested, also=also)
    raise_errors(() if report_only else grids)
    return results


def check_modes(modes: Sequence[str], *, parallel: bool, outcomes: Path | None) -> None:
    """Refuse options that exclude each other or would be ignored."""
    if "prepare_only" in modes and (outcomes or "merge" in modes):
        raise UserError("--prepare_only trains nothing and reports nothing: leave out --outcomes and --merge")
    if len(modes) > 1 and {*modes} != {"report_only", "merge"}:
        raise UserError(f"{' and '.join(f'--{name}' for name in modes)} exclude each other; give one of them")
    if "estimate" in modes and (parallel or outcomes):
        raise UserError(
            "--estimate trains one model after the other and keeps none: leave out --jobs, --cluster and --outcomes"
        )


def check_merged(folder: Path, tasks: Sequence[str]) -> None:
    """Refuse a folder without files TASK.jsonl, and files of other tasks."""
    names = sorted(file.stem for file in folder.glob("[!.]*.jsonl"))
    if not names:
        raise UserError(f"--merge {folder}: it holds no file TASK.jsonl; name the folder that has them")
    if others := [name for name in names if name not in tasks]:
        raise UserError(f"--merge {folder}: {others[0]}.jsonl is of none of the tasks {', '.join(tasks)}; name it too")


def print_estimate(contests: Sequence[Contest], out: Path) -> dict[str, Any]:
    """Time some steps of every contestant, and print and write the minutes that the search and the report take.

    A later command in this folder adds the speed and the memory, which are those of one model alone, to its results.
    """
    rows, minutes, speeds = [], {}, {}
    for contest in contests:
        task = contest.task
        short = replace(task.training, steps=ESTIMATE_STEPS, warm_up=0, evaluate_every=ESTIMATE_STEPS)
        timed = replace(contest, task=replace(task, training=short), runtime=replace(contest.runtime, log_every=10))
        runs = len(task.combinations()) + contest.seeds
        edges = MAX_EXTENSIONS * sum(is_extensible(name, values) for name, values in task.search.items())
        for name in contest.contestants:
            folder = Path(tempfile.mkdtemp(prefix="estimate-", dir=out))
            try:
                found = timed.train(settings(name, task.combinations()[0], SEARCH_SEED), folder)
                if found is None:
                    raise KeyboardInterrupt
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            speed = found["tokens_per_second"]
            shown = ("tokens_per_second", "peak_gib", "hardware", "compiled")
            alone = {key: found[key] for key in shown if key in found}
            speeds.setdefault(task.name, {})[name] = alone
            seconds = task.training.steps * task.training.batch * task.data.length / speed
            least, most = runs * seconds / 60, (runs + edges) * seconds / 60
            minutes[f"{task.name} {name}"] = [round_digits(least, 3), round_digits(most, 3)]
            cells = [
                f"{speed:,.0f}",
                *([f"{found['peak_gib']:.2f}"] if "peak_gib" in found else [""]),
                f"{runs} to {runs + edges}",
                f"{seconds:.1f}",
                f"{least:.2f} to {most:.2f}",
            ]
            rows.append([f"{task.name}, {name}", *cells])
    least, most = (sum(column) for column in zip(*minutes.values(), strict=True))
    rows.append(["all, one after the other", "", "", "", "", f"{least:.1f} to {most:.1f}"])
    print(text_table(["task, contestant", "tokens/s", "GiB", "runs", "seconds each", "minutes"], rows))
    print(f"From {MIN_STEPS_TO_COMPILE:,} steps on runs are compiled on CUDA, these only with --runtime.compile true.")
    print("Training alone: validation and tests come on top. More runs are those beyond the edges of the search.")
    results = {"study": "arena-estimate", "minutes": [least, most], "runs": minutes, "alone": speeds}
    write_results(out / "estimate.json", results)
    return results


def read_alone(out: Path) -> dict[str, dict[str, Any]]:
    """Return the speed and the memory of contestants by task, if `--estimate` measured them in this folder."""
    file = out / "estimate.json"
    try:
        return dict(read_json(file).get("alone", {})) if file.exists() else {}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; remove it, or repeat --estimate") from error


def table(results: dict[str, Any]) -> str:
    """Return one line per task, with the scores of all contestants, of a guess and of the best anchor."""
    tasks, labels, rows = results["tasks"], labels_of(results), []
    for name, task in tasks.items():
        anchor = task["best_anchor"]
        cells = [_cell(task["contestants"].get(contestant, {}), task["seeds"]) for contestant in labels]
        guess = f"{task['anchors']['guess']:.3f}"
        rows.append([name, *cells, guess, f"{task['anchors'][anchor]:.3f} {anchor}" if anchor else "-"])
    parts = [text_table(["task", *labels.values(), "(guess)", "(best anchor)"], rows)]
    sizes = [
        [name, *(_size(task["contestants"].get(contestant, {})) for contestant in labels)]
        for name, task in tasks.items()
    ]
    parts.append(text_table(["parameters without embeddings, seconds per run", *labels.values()], sizes))
    texts = [[name, *row] for name, task in tasks.items() if "anchor_measures" in task for row in _text_rows(task)]
    if texts:
        parts.append(text_table(["text", "", *(name.replace("_", " ") for name in TEXT_MEASURES)], texts))
    notes = []
    for name, task in tasks.items():
        commits = {commit for one in task["contestants"].values() for commit in one.get("commits", ())}
        if len(commits) > 1:
            notes.append(f"{name}: its outcomes come from several commits: {', '.join(sorted(map(str, commits)))}")
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def labels_of(results: dict[str, Any]) -> dict[str, str]:
    """Return the labels of all contestants by name."""
    return {name: one["label"] for task in results["tasks"].values() for name, one in task["contestants"].items()}


def markdown(results: dict[str, Any]) -> str:
    """Return all tables in Markdown, with a line per contestant."""
    models: dict[str, list[Any]] = {}  # those of all rows of a task are the same
    for row in results["tasks"].values():
        models.setdefault(row["task"], [one for one in row["contestants"].values() if "chosen" in one])
    functions = {"cell": _cell, "text_rows": _text_rows, "measures": TEXT_MEASURES}
    values = {"results": results, "labels": labels_of(results), "models": models}
    return render(TEMPLATES / "arena.md", **values, **functions).strip() + "\n"


def _text_rows(task: dict[str, Any]) -> list[list[str]]:
    """Return the measures of the contestants on a text, and of the anchors in parentheses."""
    found = {one["label"]: one["measures"] for one in task["contestants"].values() if "measures" in one}
    found |= {f"({name})": one for name, one in task["anchor_measures"].items()}
    return [
        [label, *(_with_interval(*one[name]) if name in one else "" for name in TEXT_MEASURES)]
        for label, one in found.items()
    ]


def _with_interval(mean: float, within: float | None) -> str:
    return f"{mean:.3f}" + ("" if within is None else f" ± {within:.3f}")


def _cell(record: dict[str, Any], seeds: int) -> str:
    """Return a score, and whether seeds failed or are still to be trained."""
    if "score" not in record:
        return why_untested(record, seeds) if record else "-"
    ended = record["seeds"] + record["failed"]
    notes = [f"{record['failed']} failed"] if record["failed"] else []
    notes += [f"{ended} of {seeds} seeds"] if ended < seeds else []
    return ", ".join([_with_interval(record["score"], record["within"]), *notes])


def _size(record: dict[str, Any]) -> str:
    return f"{record['parameters_without_embeddings']:,}, {record['seconds']:.0f} s" if "chosen" in record else "-"
