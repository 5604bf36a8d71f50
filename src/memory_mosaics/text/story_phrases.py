"""All phrases, by kind of event."""

from memory_mosaics.text import (
    story_phrases_common,
    story_phrases_days,
    story_phrases_details,
    story_phrases_friends,
    story_phrases_games,
    story_phrases_journeys,
    story_phrases_morals,
    story_phrases_owners,
    story_phrases_things,
)
from memory_mosaics.text.story_words import TRAITS


def _read(text: str) -> dict[str, str]:
    """A text of `== kind` lines, each followed by its phrases."""
    blocks = (block.partition("\n") for block in text.split("\n== ")[1:])
    return {kind.strip(): lines for kind, _, lines in blocks}


def _sentences(lines: str) -> str:
    """What somebody with a trait is like or does, as phrases."""
    return "\n".join(f"{{a}} {line.strip()}." for line in lines.strip().splitlines())


PHRASES: dict[str, str] = {
    **_read(story_phrases_common.TEXT),
    **_read(story_phrases_morals.TEXT),
    **_read(story_phrases_details.TEXT),
    **_read(story_phrases_things.TEXT),
    **_read(story_phrases_owners.TEXT),
    **_read(story_phrases_friends.TEXT),
    **_read(story_phrases_games.TEXT),
    **_read(story_phrases_journeys.TEXT),
    **_read(story_phrases_days.TEXT),
    **{f"trait_{trait}": _sentences(lines) for trait, lines in TRAITS.items()},
}
