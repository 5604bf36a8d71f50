"""Runner of experiments: the runs of a `Grid`, trained in this process, in several, or on a Ray cluster.

An experiment is a function whose defaults are a file of recipes/. It describes its runs as a `Grid`; the runner decides
who trains the next one.

    OUT/recipe.yaml              the arguments of the command; `--recipe` takes it, or a changed copy
    OUT/setup.json               what all runs of the folder have in common
    OUT/trials/NAME              the folder of a run
    OUT/trials/NAME/outcome.json what was measured, written once, at the end; such a run is not trained again
    OUT/trials/NAME/error.txt    why it ended without an outcome, out of memory say; the next command trains it again
    OUT/journal.log              the trials of a search, for Optuna's own tools

After Ctrl-C or a kill the same command continues, and a command that is started several times shares the runs.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict
from math import inf
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from tqdm import tqdm

from memory_mosaics import checkpoint
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.grid import Grid, lock
from memory_mosaics.experiments.outcomes import Outcome, Settings, check_setup, merge_environments
from memory_mosaics.experiments.report import print_summary
from memory_mosaics.files import atomic_write, check_regular, read_text, remove_leftovers, write_text
from memory_mosaics.isolation import delayed_interrupts, signal_handler
from memory_mosaics.results import create_output_folder, environment_info, write_results
from memory_mosaics.runtime import RuntimeConfig, find_device
from memory_mosaics.training.checkpointing import read_run
from memory_mosaics.training.loggers import read_log
from memory_mosaics.training.trainer import Diverged

RECIPES = Path(__file__).parent / "recipes"

MIN_STEPS_TO_COMPILE = 2000  # a shorter run of a small model takes no longer than compiling it


def load_packaged(name: str) -> dict[str, Any]:
    """Return the content of a YAML file in recipes/."""
    return yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))


def prepare(out: Path, arguments: Settings, setup: Settings) -> None:
    """Make the folder of an experiment, refuse one whose runs have another setup, and write recipe.yaml."""
    create_output_folder(out)
    check_setup(out, setup)
    recipe = {name: value for name, value in arguments.items() if name not in ("data", "out")}
    plain = json.loads(json.dumps(recipe, default=asdict))
    with atomic_write(out / "recipe.yaml") as tmp:
        tmp.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def run_trial(grid: Grid, settings: Settings) -> Outcome | None:
    """Train a run or continue it, unless it has an outcome; None if it was told to stop.

    Two searches may have taken the same run: the second waits for the outcome of the first. An exception that is not
    a `UserError` or `OSError` concerns this run alone: it is kept in error.txt, and the others are trained.
    """
    folder = grid.folder(settings)
    with nullcontext() if "RANK" in os.environ else lock(grid.out, f"train-{folder.name}"):
        outcome = grid.outcome(folder)
        if outcome is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _output(folder / "output.txt") if grid.quiet else nullcontext():
                try:
                    measured = grid.train(settings, folder)
                except Diverged as error:
                    measured = {"status": "fail", "reason": one_line(error)}
                except (UserError, OSError):
                    raise
                except Exception as error:
                    if not grid.quiet or "RANK" in os.environ:  # it is seen, or the other processes wait for this one
                        raise
                    traceback.print_exc()
                    write_text(folder / "error.txt", reason := one_line(error))
                    measured = {"status": "error", "reason": reason}
            if measured is None:
                return None
            if measured.get("status") == "error":
                if torch.cuda.is_initialized():  # raises where the device can no longer be used: this process ends
                    torch.cuda.empty_cache()
                    torch.cuda.synchronize()
                return measured
            not_finite = [name for name, value in measured.items() if not _is_finite(value)]
            if not_finite:
                measured = {"status": "fail", "reason": f"{', '.join(not_finite)}: a number is NaN or Inf"}
            device = torch.device("cuda") if torch.cuda.is_initialized() else None
            outcome = {"status": "finished"} | settings | environment_info(device) | measured
            if is_first_process():
                write_results(folder / "outcome.json", outcome)
        if not grid.keep_checkpoints and is_first_process():
            discard_checkpoints(folder)
        return outcome


def _is_finite(value: Any) -> bool:
    """Return whether all numbers of a plain value are finite."""
    try:
        json.dumps(value, allow_nan=False)
        return True
    except ValueError:
        return False


def errors(grids: Sequence[Grid]) -> dict[str, str]:
    """Return by their folders why runs ended without an outcome."""
    folders = (folder for grid in grids for folder in grid.folders() if grid.outcome(folder) is None)
    return {str(folder): read_text(folder / "error.txt") for folder in folders if (folder / "error.txt").exists()}


def raise_errors(grids: Sequence[Grid]) -> None:
    """Raise an error that names the runs that ended without an outcome, if there are any."""
    if found := errors(grids):
        folder, reason = next(iter(found.items()))
        names = ", ".join(Path(name).name for name in found)
        remedy = f"see {folder}/output.txt; the same command trains them again"
        raise UserError(f"runs that ended with an error: {names}; the first with {reason[:200]}; {remedy}")


def discard_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run, and what a process that was killed has left of them."""
    for step in checkpoint.steps(folder):
        checkpoint.remove(step)
    remove_leftovers(folder)


@contextmanager
def _output(file: Path) -> Iterator[None]:
    """Redirect what is printed to the end of a file."""
    if file.exists():
        check_regular(file)  # a FIFO would wait for a reader
    with file.open("a", encoding="utf-8") as text, redirect_stdout(text), redirect_stderr(text):
        yield


def is_first_process() -> bool:
    """Return whether this is the process of torchrun that writes files, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def run_grids(
    grids: Sequence[Grid],
    *,
    processes: int = 1,
    cluster: str | None = None,
    save: Callable[[], Any] | None = None,
) -> bool:
    """Train all runs, `processes` at once, and wait for those that other commands train; False if told to stop.

    `save` is called whenever one has ended. SIGTERM is a Ctrl-C here. False also where runs ended with an error: the
    caller makes its report and calls `raise_errors`.
    """
    for folder in (folder for grid in grids for folder in grid.folders() if is_first_process()):
        (folder / "error.txt").unlink(missing_ok=True)  # of an earlier command
    with show_progress(grids, save), signal_handler(signal.default_int_handler, signal.SIGTERM):
        try:
            if cluster == "ray":
                done = run_on_ray(grids, processes)
            elif "RANK" in os.environ:  # all processes of torchrun train one model after the other
                done = run_together(grids)
            else:
                done = processes == 1 or run_in_processes(grids, processes)
                done = done and run_queues(grids)
        except KeyboardInterrupt:
            return False
    for grid in (grid for grid in grids if not grid.keep_checkpoints and is_first_process()):
        for folder in (folder for folder in grid.folders() if grid.outcome(folder)):
            discard_checkpoints(folder)  # a process may have been killed between its outcome and this
    return done and not errors(grids)


def train_and_collect(grid: Grid) -> tuple[dict[str, Any], list[Outcome]]:
    """Train the runs of a grid in this process; return what results.json has of all, and the outcomes that finished."""
    done = run_grids([grid])
    outcomes = [one for run in grid.runs if (one := grid.outcome(grid.folder(run)))]
    common = {"interrupted": not done, "failed": failures(grid)} | merge_environments(outcomes)
    common["seconds"] = round(sum(one.get("seconds", 0) for one in outcomes), 1)
    return common, [one for one in outcomes if one["status"] == "finished"]


def run_queues(grids: Sequence[Grid], *, wait: bool = True) -> bool:
    """Train runs until none is left; False if told to stop. Those of the first grids come first.

    `wait` for the runs that other processes train; in any case for those on whose outcomes further runs depend.
    """
    queues = [grid.queue() for grid in grids]
    while True:
        found = ((queue.grid, *trial) for queue in queues if (trial := queue.next_trial()))
        if (following := next(found, None)) is not None:
            grid, settings, trial_lock = following
            try:
                if run_trial(grid, settings) is None:
                    return False
            finally:
                trial_lock.release()
        elif any(queue.has_unfinished() for queue in queues if wait or callable(queue.grid.settings)):
            time.sleep(1)
        else:
            return True


def run_together(grids: Sequence[Grid]) -> bool:
    """Train one run after the other with all processes of torchrun; False if told to stop."""
    for grid in grids:
        trained: set[str] = set()
        while following := [settings for settings in grid.runs if grid.name_of(settings) not in trained]:
            if run_trial(grid, following[0]) is None:
                return False
            while grid.outcome(grid.folder(following[0])) is None:  # the first process writes it
                time.sleep(0.05)
            trained.add(grid.name_of(following[0]))
    return True


def run_in_processes(grids: Sequence[Grid], count: int) -> bool:
    """Train in `count` processes; False if one was told to stop. The others take the runs of one that crashed."""
    context = get_context("spawn")
    children: list[Any] = []
    try:
        for number in range(count):
            with delayed_interrupts():  # a child that is started is one that is told to stop
                child = context.Process(target=_worker, args=(grids, number, count))
                child.start()
                children.append(child)
        for child in children:
            child.join()
    finally:
        for child in children:
            child.terminate()  # SIGTERM: it saves first
        for child in children:
            child.join()
    return all(child.exitcode not in (130, -signal.SIGTERM) for child in children)


def _worker(grids: Sequence[Grid], number: int, count: int) -> NoReturn:
    """Train on a share of the cores and on one of the GPUs; stop when the parent process is gone."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the parent, which stops its children
    if (gpus := torch.cuda.device_count()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % gpus]
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else every process starts one per core of the machine

    def stop_when_orphaned() -> None:
        parent_process().join()  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_orphaned, daemon=True).start()
    try:
        raise SystemExit(0 if run_queues(grids, wait=False) else 130)
    except (UserError, OSError) as error:
        print(f"process {number}: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def check_devices(runtime: RuntimeConfig, cluster: str | None) -> Settings:
    """Refuse a device or a cluster that is not there; return the precision, unless other machines decide it."""
    if cluster == "ray":
        try:
            import ray  # noqa: F401  # type: ignore[import-not-found]
        except ImportError:
            raise UserError("--cluster ray needs Ray: pip install 'memory-mosaics[ray]'") from None
        return {}
    return {"precision": runtime.precision_on(find_device(runtime.device))}


def should_compile(runtime: RuntimeConfig, device: torch.device, steps: int, *, faster: bool) -> bool:
    """Return whether a small model is compiled: as the command says, or where it is `faster`, in long runs on CUDA."""
    if runtime.compile is not None:
        return runtime.compile
    return faster and device.type == "cuda" and steps >= MIN_STEPS_TO_COMPILE


def ray_share(nodes: Sequence[Mapping[str, float]], processes: int) -> tuple[int, float]:
    """Return the cores and GPUs of each of `processes`: no more than a node has, or Ray would wait for ever."""
    gpus = min(1.0, sum(node.get("GPU", 0.0) for node in nodes) / processes)
    largest = max(int(node.get("CPU", 0)) for node in nodes if node.get("GPU", 0.0) >= gpus)
    return max(1, min(largest, int(sum(node.get("CPU", 0.0) for node in nodes)) // processes)), gpus


def run_on_ray(grids: Sequence[Grid], processes: int) -> bool:
    """Train on a Ray cluster whose machines see the same folders, `processes` runs at once; False if told to stop."""
    import ray  # type: ignore[import-not-found]

    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    here = os.getcwd()
    cores, gpus = ray_share([node["Resources"] for node in ray.nodes() if node["Alive"]], processes)

    @ray.remote(num_cpus=cores, num_gpus=gpus)
    def work() -> bool:
        os.chdir(here)
        return run_queues(grids, wait=False)

    workers: list[Any] = [work.remote() for _ in range(processes)]  # type: ignore[attr-defined]
    try:
        return all(ray.get(workers))
    except ray.exceptions.RayError as error:
        raise UserError(f"a process on Ray ended with {one_line(error)}; the same command continues") from error
    finally:
        for worker in workers:  # after Ctrl-C or an error
            ray.cancel(worker)
        ray.wait(workers, num_returns=processes, timeout=60)


def progress(grids: Sequence[Grid]) -> tuple[float, dict[str, str], str]:
    """Read from the folders of the runs how many are done, fractions included; a line for each that ended, by name;
    and the state of the others. Names in several grids may be the same: then the folder of a grid precedes them.
    """
    done, lines, running = 0.0, {}, []
    several = len({grid.out for grid in grids}) > 1
    for grid in grids:
        ended = {}
        for folder in grid.folders():
            if outcome := grid.outcome(folder):
                ended[folder.name] = outcome
            elif (folder / "error.txt").exists():
                ended[folder.name] = {"status": "error", "reason": read_text(folder / "error.txt")}
            elif log := read_log(folder / "log.jsonl"):
                running.append({name: value for line in log for name, value in line.items()})
                done += running[-1]["step"] / _steps(folder)
        for name, outcome in ended.items():
            line = f"{outcome['status']}, {outcome.get('reason')}"
            if outcome["status"] == "finished":
                line = ", ".join(grid.summary_formats).format(**outcome)
            full_name = f"{grid.out.name}/{name}" if several else name
            lines[full_name] = f"{full_name}: {line}"
        done += len(ended)
    losses = " ".join(f"{line['valid_loss']:.3f}" for line in running if "valid_loss" in line)
    speed = sum(line.get("tokens_per_second", 0) for line in running)
    return done, lines, f"valid loss {losses}, {speed:,.0f} tokens/s" if running else ""


def _steps(folder: Path) -> float:
    """Return how many steps a run has; infinity where its run.yaml does not say so, as whoever trains it will say."""
    try:
        return max(1.0, float((read_run(folder) or {})["training"]["steps"]))
    except (UserError, LookupError, TypeError, ValueError):
        return inf


@contextmanager
def show_progress(grids: Sequence[Grid], save: Callable[[], Any] | None) -> Iterator[None]:
    """Within, a bar shows how far the runs are; each that ends has its own line, and `save` is called."""
    quiet = all(grid.quiet for grid in grids)
    if not is_first_process() or not (quiet or save):
        yield
        return
    over, screen = threading.Event(), sys.stderr
    form = "{desc}: {n:.1f} of {total} runs |{bar}| {elapsed}<{remaining}{postfix}"
    total, outs = sum(grid.count for grid in grids), list({grid.out for grid in grids})
    name = outs[0].name if len(outs) == 1 else outs[0].parent.name
    bar = tqdm(total=total, desc=name, bar_format=form, disable=None if quiet else True)
    known = set(progress(grids)[1])
    saved, reported = set(known), set[str]()

    def show() -> None:
        bar.n, lines, postfix = progress(grids)
        bar.total = sum(grid.count for grid in grids)
        for name in lines.keys() - known if quiet else ():
            tqdm.write(lines[name], file=screen)
        known.update(lines)
        bar.set_postfix_str(postfix)
        if save and lines.keys() - saved:
            save()
            saved.update(lines)

    def try_to_show() -> None:
        """A full disk, say, is no reason to stop: the next time may be better, and the caller writes at the end."""
        try:
            show()
        except (UserError, OSError) as error:
            if (line := one_line(error)) not in reported:
                tqdm.write(line, file=screen)
            reported.add(line)

    def watch() -> None:
        while not over.wait(1.0):
            try_to_show()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        try_to_show()
        bar.close()


def failures(grid: Grid) -> dict[str, str]:
    """Return by their names why runs failed, such as a loss that is NaN: the same command does not train them again."""
    outcomes = {folder.name: grid.outcome(folder) for folder in grid.folders()}
    return {name: one["reason"] for name, one in outcomes.items() if one and one["status"] == "fail"}


def report(results: dict[str, Any], out: Path, table: str, *, drawable: bool, also: str = "") -> None:
    """Write results.json, draw its figures if any run has finished, and print the table and the files."""
    write_results(out / "results.json", results)
    table = "\n".join([table, *(f"{name} failed: {reason}" for name, reason in results.get("failed", {}).items())])
    also = also if drawable else f"{also} No figures: no run has finished.".strip()
    print_summary(table, results, out, draw=drawable, also=also, if_stopped="the same command continues")
