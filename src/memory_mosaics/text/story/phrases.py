"""All phrases, by kind of event."""

from memory_mosaics.text.story import (
    phrases_common,
    phrases_days,
    phrases_details,
    phrases_friends,
    phrases_games,
    phrases_journeys,
    phrases_morals,
    phrases_owners,
    phrases_things,
)
from memory_mosaics.text.story.words import TRAITS


def _read(text: str) -> dict[str, str]:
    """A text of `== kind` lines, each followed by its phrases."""
    blocks = (block.partition("\n") for block in text.split("\n== ")[1:])
    return {kind.strip(): lines for kind, _, lines in blocks}


def _sentences(lines: str) -> str:
    """What somebody with a trait is like or does, as phrases."""
    return "\n".join(f"{{a}} {line.strip()}." for line in lines.strip().splitlines())


PHRASES: dict[str, str] = {
    **_read(phrases_common.TEXT),
    **_read(phrases_morals.TEXT),
    **_read(phrases_details.TEXT),
    **_read(phrases_things.TEXT),
    **_read(phrases_owners.TEXT),
    **_read(phrases_friends.TEXT),
    **_read(phrases_games.TEXT),
    **_read(phrases_journeys.TEXT),
    **_read(phrases_days.TEXT),
    **{f"trait_{trait}": _sentences(lines) for trait, lines in TRAITS.items()},
}
