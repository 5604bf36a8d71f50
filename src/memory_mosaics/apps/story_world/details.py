"""Details that make people real: a favorite food, a song, a roof, a word for bad moments; and things seen on the way.

A detail is told at the beginning and comes back where it belongs: the song when the hero is afraid, the roof on the way
home, the food at dinner. So each is one more thing that a reader can know before it is said.
"""

from memory_mosaics.apps.story_world.cast import StoryWorld
from memory_mosaics.apps.story_world.words import COLOURS, table, words
from memory_mosaics.apps.story_world.world import Roles

DETAILS = {kind: words(section) for kind, (section, _) in table("details").items()}
RECALLED = {
    when: [kind for kind, (_, then) in table("details").items() if then == when]
    for when in ("trouble", "home", "away", "well")
}
TROUBLE, ARRIVALS = set(words("troubling events")), set(words("arrivals"))
MOST_EVENTS = 17  # in a story that still has room for more
SIGHTS, DOING, CLOTHES = words("sight looks"), words("what they do"), words("clothes")
SMALL, LARGE = ((words(f"{size} animals"), words(f"where {size} animals are")) for size in ("small", "large"))


def add_details(w: StoryWorld) -> None:
    """Put details and what is seen on the way into the trace of a story, as far as it leaves room for them."""
    trace = w.trace
    room = MOST_EVENTS - sum(1 for kind, _ in trace if kind)
    arrivals = [at for at, (kind, _) in enumerate(trace) if kind in ARRIVALS]
    if room > 0 and arrivals and w.chance(0.6):
        trace.insert(w.pick(arrivals) + 1, ("sight", {"a": w.hero, "x": _sight(w)}))
        room -= 1
    end = next(at for at, (kind, _) in enumerate(trace) if kind.startswith("end_"))
    troubles = [at for at, (kind, _) in enumerate(trace) if kind in TROUBLE]
    introduced = []
    if room >= 2 and w.chance(0.6):
        when = "well" if w.ends_well() and w.chance(0.2) else ("home" if w.hero.where is w.home else "away")
        introduced.append(_recall(w, when, end))
        room -= 2
    if room >= 2 and troubles and w.chance(0.8):
        introduced.append(_recall(w, "trouble", w.pick(troubles) + 1))
        room -= 2
    first = 2 if trace[1][0].startswith("trait_") else 1
    trace[first:first] = introduced
    meeting = next((at for at, (kind, _) in enumerate(trace) if kind == "meet_friend"), None)
    if room >= 2 and meeting is not None and any(kind.endswith("_two") for kind, _ in trace[-2:]) and w.chance(0.5):
        roles = {"b": w.friend, "x": w.pick(COLOURS), "y": w.pick(CLOTHES)}
        trace.insert(meeting + 1, ("has_wear", roles))
        trace.insert(len(trace) - (1 if trace[-1][0].endswith("_two") else 2), ("recall_wear", roles))


def _sight(w: StoryWorld) -> str:
    """Something small to be seen by the way."""
    animals, where = SMALL if w.chance(0.6) else LARGE
    text = f"{w.pick(SIGHTS)} {w.pick(animals)} {w.pick(where)}"
    return f"{text}, {w.pick(DOING)}" if w.chance(0.3) else text


def _recall(w: StoryWorld, when: str, at: int) -> tuple[str, Roles]:
    """Put the return of a detail into the trace, and give the event that tells it first."""
    kind = w.pick(RECALLED[when])
    roles = {"a": w.hero, "x": w.pick(DETAILS[kind])}
    w.trace.insert(at, (f"recall_{kind}", roles))
    return f"has_{kind.partition('_')[0]}", roles
