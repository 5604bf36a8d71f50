"""The folder of a run: run.yaml, log.jsonl, samples.md, results.json, and the checkpoints of state.py."""

from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import written_whole
from memory_mosaics.training.parallel import World
from memory_mosaics.training.recipe import Run, plain


def claim(run: Run, fingerprint: str, world: World) -> None:
    """Write run.yaml, or make sure that the run which is there already is the same one."""
    error = world.agree(_claim(run, fingerprint) if world.first else None)
    if error:
        raise UserError(error)


def _claim(run: Run, fingerprint: str) -> str | None:
    """What stands in the way, for all processes to know."""
    import yaml

    file, mine = run.out / "run.yaml", plain(run) | {"corpus": fingerprint}
    try:
        run.out.mkdir(parents=True, exist_ok=True)
        theirs = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else mine
        for name in ("corpus", "model", "training"):
            if other := difference(name, theirs.get(name), mine[name]):
                return f"{run.out} holds a run with {other}; name another folder, or remove that one"
        with written_whole(file) as aside:
            aside.write_text(yaml.safe_dump(mine, sort_keys=False), encoding="utf-8")
    except (OSError, UserError, AttributeError, yaml.YAMLError) as error:
        return f"cannot use {run.out}: {one_line(error)}"
    return None


def difference(name: str, theirs: Any, mine: Any) -> str | None:
    """The first thing in which two runs differ, in words."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        found = (difference(f"{name}.{key}", theirs.get(key), value) for key, value in mine.items())
        return next((other for other in found if other), None)
    return None if theirs == mine else f"{name} {theirs}, not {mine}"


def closing(results: dict[str, Any]) -> str:
    """What the run came to, and where everything is."""
    step, steps, out = results["step"], results["training"]["steps"], results["out"]
    losses = [
        f"{split} loss {results[f'{split}_loss']:.4f}" for split in ("train", "valid") if f"{split}_loss" in results
    ]
    said = [f"{results['model']['name']}, {results['parameters']:,} parameters: step {step:,} of {steps:,}", *losses]
    where = f"Checkpoint: {out}/step-{step:08}. Beside it: log.jsonl, samples.md, results.json, run.yaml."
    go_on = " Stopped; the same command goes on from there." if results["interrupted"] else ""
    return f"{', '.join(said)}.{go_on}\n{where}"


def write_samples(file: Path, step: int, stories: list[tuple[str, str]]) -> None:
    """Append what the model writes at this step: each opening in bold, then how it goes on."""
    if stories:
        told = "".join(f"\n**{_flat(opening)}**{_flat(text)}\n" for opening, text in stories)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"## step {step}\n{told}\n")


def _flat(text: str) -> str:
    return text.replace("\n", "  \n")
