"""Trained models that come with the package: a checkpoint folder for each beside this file, which its name opens."""

from pathlib import Path

from memory_mosaics.errors import UserError

FOLDER = Path(__file__).parent
NAMES = MOSAIC, TWIN = "memory-mosaic-stories", "llama-stories"  # also the presets that trained them


def find(run: str | Path) -> Path:
    """Return the folder of a model of the package; any other path, and one that exists, as it is."""
    run = Path(run)
    if str(run) not in NAMES or run.exists():
        return run
    folder = FOLDER / run
    if not folder.exists():
        raise UserError(
            f"the weights of {run} are not in this installation; make a model with mosaics demo, or with mosaics train "
            "FILE.txt on a text of yours, and name its folder"
        )
    return folder
