"""Which figures each study has."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_mosaics.errors import UserError
from memory_mosaics.experiments.figures import evaluation, language, regbench, speed, tasks
from memory_mosaics.experiments.figures.style import STYLE, available, check, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWINGS: dict[str, dict[str, "Callable[[dict[str, Any]], Figure | None]"]] = {
    "induction": {"induction.png": tasks.induction},
    "moons": {
        "error.png": tasks.moons_error,
        "weights.png": tasks.moons_weights,
        "attention.png": tasks.moons_attention,
        "training.png": tasks.moons_training,
        "astronomers.png": tasks.moons_astronomers,
    },
    "regbench": {"regbench.png": regbench.regbench, "in_distribution.png": regbench.in_distribution},
    "curves": {"curves.png": language.training_curves, "step_sizes.png": language.step_sizes},
    "sweep": {"sweep.png": language.sweep},
    "runs": {"runs.png": language.runs},
    "evaluate": {"loss_by_position.png": evaluation.loss_by_position},
    "attention": {
        "attention.png": evaluation.attention,
        "heads.png": evaluation.heads,
        "width.png": evaluation.widths,
    },
    "bench": {"speed.png": speed.speed, "memory.png": speed.memory, "profile.png": speed.profile},
}


def names(study: str) -> list[str]:
    """The files that a study's figures are drawn into; none of one that has no figures."""
    return list(DRAWINGS.get(study, ()))


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """All figures of a study, from what its results.json holds; returns their files.

    What was not run is not drawn, and its figure of an earlier run does not stay beside the others.
    """
    check()
    from matplotlib import rc_context

    study = results.get("study")
    if study not in DRAWINGS:
        raise UserError(f"no figures are known of a study {study!r}; there are {', '.join(DRAWINGS)}")
    if study in ("curves", "sweep") and not any(
        row["valid_loss"] for row in results.get("runs", results.get("rows", ()))
    ):
        raise UserError("there is nothing to draw: no run came to an end")
    if study in ("evaluate", "attention") and not results["models"]:
        raise UserError("there is nothing to draw: the study was stopped before its first model was measured")
    with rc_context(STYLE):
        drawn = {folder / name: drawing(results) for name, drawing in DRAWINGS[study].items()}
        for file, figure in drawn.items():
            if figure is None:
                file.unlink(missing_ok=True)
            else:
                save(figure, file)
    return [file for file, figure in drawn.items() if figure is not None]


def draw_if_possible(results: dict[str, Any], folder: Path) -> str:
    """Draw all figures of a study, and return a sentence that names them, or says why there are none."""
    if not available():
        return "No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    return f"Figures: {', '.join(file.name for file in draw(results, folder)) or 'none'}."
