"""Shapes in signatures: `Float[Tensor, "B T H D"]`.

Where jaxtyping is installed the annotations are its own, and the tests check them on every call. Elsewhere they are
plain documentation, so that importing the package needs torch and numpy only.

The letters, everywhere: B batch, T time, N stored pairs, H heads, D head width, V value width, W model width.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what jaxtyping is for type checkers, where it is not installed too
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class Float:
            def __class_getitem__(cls, item: tuple[type, str]) -> Any:
                return item[0]

        Bool = Int = Float

__all__ = ["Bool", "Float", "Int"]
