"""Word lists as data: text files of sections, and the first names that stories and the judges of stories share."""

from collections.abc import Iterable
from importlib.resources import files


def read_sections(package: str, path: str) -> dict[str, list[str]]:
    """Return the sections of a data file of a package: a line `== name`, then its lines. `#` starts a comment line."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in map(str.rstrip, files(package).joinpath(path).read_text(encoding="utf-8").splitlines()):
        if line.startswith("== "):
            lines = sections.setdefault(line.removeprefix("== "), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


def items(lines: Iterable[str]) -> list[str]:
    """Return the items of a section, separated by commas or line ends."""
    return [item.strip() for line in lines for item in line.split(",") if item.strip()]


_NAMES = read_sections("memory_mosaics.text", "first_names.txt")
BOYS, GIRLS, TITLES = (items(_NAMES[name]) for name in ("boys", "girls", "titles"))
