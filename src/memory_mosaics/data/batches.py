"""A batch: what every data set gives and every training loop takes."""

from dataclasses import dataclass

from torch import Tensor

from memory_mosaics.shapes import Bool, Float, Int


@dataclass(frozen=True)
class Batch:
    """Inputs, what follows each of them, and where the measure of the task is taken.

    All positions are trained on; `counted` marks those at which an answer tells whether the task is solved, such as
    the last symbol of an example, or a word that the context has defined.
    """

    inputs: Int[Tensor, "B T"] | Float[Tensor, "B T W"]  # tokens or observations
    targets: Int[Tensor, "B T"] | Float[Tensor, "B T W"]
    counted: Bool[Tensor, "B T"]
