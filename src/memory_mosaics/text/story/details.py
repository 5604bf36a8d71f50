"""Details that make people real: a favorite food, a song, a roof, a word for bad moments; and things seen on the way.

A detail is told at the beginning and comes back where it belongs: the song when the hero is afraid, the roof on the way
home, the food at dinner. So each is one more thing that a reader can know before it is said.
"""

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.words import COLOURS, choices, words
from memory_mosaics.text.story.world import Roles


def _pairs(first: list[str], second: list[str]) -> list[str]:
    return [f"{a} {b}" for a in first for b in second]


_SONGS = _pairs(
    choices("a king|a whale|a frog|a snail|a baker|three geese|seven mice|a pirate|a donkey|two bears|a cloud"),
    choices("""
        in a boat|on the moon|with cold feet|under a hat|in the rain|with no shoes|on a ladder|who could not sleep
        who loved cheese|at the end of the world|in a teapot|on the way to town
    """),
)
_FOODS = _pairs(
    words("plum carrot pumpkin berry apple cherry honey onion tomato cheese potato noodle pea corn nut lemon"),
    words("soup pie bread stew cake pudding porridge salad"),
)
_CRIES = _pairs(
    choices("Oh my|Holy|Jumping|Hot|Great big"),
    words("buttons pancakes noodles beans turnips crickets feathers pickles mittens"),
)
_TREASURES = _pairs(
    words("round flat red old blue funny shiny"),
    choices("stones|leaves|stamps|bottle caps|shells|buttons|corks|coins|feathers|postcards"),
)

# What a detail can be: the words it is made with, and when it is recalled: in trouble, at home, away, after a good end.
DETAILS: dict[str, tuple[list[str], str]] = {
    "food": (_FOODS, "home"),
    "food_later": (_FOODS, "away"),
    "song": (_SONGS, "trouble"),
    "job": (
        choices("a sailor|a pilot|a doctor|a cook|a singer|a dancer|a teacher|a painter|a firefighter|a clown"),
        "trouble",
    ),
    "cry": (_CRIES, "trouble"),
    "number": (words("three four five six seven eight nine eleven twelve"), "trouble"),
    "fear": (
        choices("thunder|big dogs|deep water|loud drums|geese|the barber|spiders|high stairs|bees|crows"),
        "trouble",
    ),
    "roof": (COLOURS, "home"),
    "roof_far": (COLOURS, "away"),
    "treasure": (_TREASURES, "home"),
    "age": (words("four five six seven eight"), "well"),
}
_KINDS = {
    when: [kind for kind, (_, then) in DETAILS.items() if then == when] for when in ("trouble", "home", "away", "well")
}

# After these events the hero is in trouble, and needs the song, the number or the word.
TROUBLE = set(
    words("""
    sad_missing forgot_where sad_stuck sad_afloat look_at_pieces spoil_wet spoil_dirty vanished lost_afraid afraid_night
    not_found nothing_grows food_wet too_late made_badly remember_promise hero_falls too_shy find_hurt mouse_ate
    key_breaks elder_asks friend_refuses rain_starts wrong_door rival_falls
    """)
)
_WEAR = words("vest shirt jacket bow raincoat backpack")
ARRIVALS = {"go", "go_two", "first_ask"}
MOST_EVENTS = 17  # in a story that still has room for more

_LOOKS = words("fat thin sleepy busy lonely funny noisy muddy proud tiny huge lazy wet round brave hungry dusty")
_SMALL = words("pigeon snail beetle lizard bee spider sparrow worm cricket ladybug toad mouse frog cat")
_SMALL_WHERE = choices("""
    on a chimney|under a leaf|in a puddle|on a roof|in a tall hedge|on a milk can|under an umbrella|in a wheelbarrow
    on a mossy log|next to a boot|on a window sill|in a flower pot|between two stones|on top of a wall|on a mailbox
""")
_LARGE = words("goat cow donkey horse swan goose sheep pig calf turkey")
_LARGE_WHERE = choices("""
    by a gate|behind a cart|beside a ladder|near a haystack|in the middle of the road|under a bridge|in a muddy field
    next to a bicycle|in front of a church|between two trees
""")
_DOING = choices("looking up at the sky|fast asleep|all alone|in no hurry|as still as a stone|having a rest")


def sight(w: Stage) -> str:
    """Something small to be seen by the way."""
    seen, where = (_SMALL, _SMALL_WHERE) if w.chance(0.6) else (_LARGE, _LARGE_WHERE)
    text = f"{w.pick(_LOOKS)} {w.pick(seen)} {w.pick(where)}"
    return f"{text}, {w.pick(_DOING)}" if w.chance(0.3) else text


def weave(w: Stage) -> None:
    """Put details and what is seen on the way into the trace of a story, as far as it leaves room for them."""
    trace = w.trace
    room = MOST_EVENTS - sum(1 for kind, _ in trace if kind)
    arrivals = [at for at, (kind, _) in enumerate(trace) if kind in ARRIVALS]
    if room > 0 and arrivals and w.chance(0.6):
        trace.insert(w.pick(arrivals) + 1, ("sight", {"a": w.hero, "x": sight(w)}))
        room -= 1
    end = next(at for at, (kind, _) in enumerate(trace) if kind.startswith("end_"))
    troubles = [at for at, (kind, _) in enumerate(trace) if kind in TROUBLE]
    told = []
    if room >= 2 and w.chance(0.6):
        when = "well" if w.ends_well() and w.chance(0.2) else ("home" if w.hero.where is w.home else "away")
        told.append(_recall(w, when, end))
        room -= 2
    if room >= 2 and troubles and w.chance(0.8):
        told.append(_recall(w, "trouble", w.pick(troubles) + 1))
        room -= 2
    first = 2 if trace[1][0].startswith("trait_") else 1
    trace[first:first] = told
    meeting = next((at for at, (kind, _) in enumerate(trace) if kind == "meet_friend"), None)
    if room >= 2 and meeting is not None and any(kind.endswith("_two") for kind, _ in trace[-2:]) and w.chance(0.5):
        roles = {"b": w.friend, "x": w.pick(COLOURS), "y": w.pick(_WEAR)}
        trace.insert(meeting + 1, ("has_wear", roles))
        trace.insert(len(trace) - (1 if trace[-1][0].endswith("_two") else 2), ("recall_wear", roles))


def _recall(w: Stage, when: str, at: int) -> tuple[str, Roles]:
    """Put the return of a detail into the trace, and give the event that tells it first."""
    kind = w.pick(_KINDS[when])
    roles = {"a": w.hero, "x": w.pick(DETAILS[kind][0])}
    w.trace.insert(at, (f"recall_{kind}", roles))
    return f"has_{kind.partition('_')[0]}", roles
