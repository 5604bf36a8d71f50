"""Plots that go somewhere: the way home, a delivery, a noise in the night."""

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.pieces import close_story, detour, go, good_deed, lesson, open_story, own
from memory_mosaics.text.story.words import LANDMARKS


def woods(w: Stage) -> None:
    """The hero follows something too far. The way home is the way out, told backwards."""
    a = w.hero
    first, second, third = w.fresh(LANDMARKS), w.fresh(LANDMARKS), w.fresh(LANDMARKS)
    lure = w.pick(("butterfly", "squirrel", "blue bird", "rolling leaf", "hopping frog", "dragonfly", "baby rabbit"))
    lamp = w.thing("n") if w.chance(0.4) else None
    open_story(w)
    if lamp:
        own(w, lamp)
        w.plant("lamp")
    w.do("warned_far", a=a, b=w.elder)
    w.want("a at p", a=a, p=w.home)
    w.paragraph()
    far = w.place()
    w.silently("a at p", a=a, p=far)
    w.do("follow", a=a, x=lure)
    w.do("pass_marks", a=a, x=first, y=second, z=third)
    w.plant("marks")
    if w.chance(0.35):
        good_deed(w, far)
    w.paragraph()
    w.do("lure_gone", a=a, x=lure)
    w.do("lost_afraid", a=a)
    if lamp:
        w.do("light_lamp", a=a, o=lamp)
        w.pay("lamp")
    careless = a.trait in ("careless", "merry", "proud") and w.chance(0.55)
    if careless:
        w.do("wrong_turn", a=a)
        w.paragraph()
        w.do("search_party", a=a, b=w.elder)
        if w.chance(0.5):
            c = w.neighbour()
            w.do("found_by", a=a, c=c, b=w.elder, p=w.home)
        else:
            w.do("night_outside", a=a, b=w.elder)
        lesson(w, "listen")
    else:
        w.do("think_marks", a=a)
        w.paragraph()
        w.do("marks_back", a=a, x=_the(third), y=_the(second), z=_the(first))
        w.pay("marks")
        w.do("home_safe", a=a, b=w.elder, p=w.home)
        lesson(w, "think" if w.chance(0.6) else "listen")
    close_story(w)


def _the(landmark: str) -> str:
    return "the " + landmark.split(" ", 1)[1]


def delivery(w: Stage) -> None:
    """Something must get to somebody who lives behind a door of a certain colour."""
    a, e, o, n = w.hero, w.elder, w.thing("e"), w.neighbour()
    door, p = w.named_thing("door"), w.place()
    other = w.named_thing("roof")
    open_story(w)
    w.silently("a has o", a=a, o=o)
    w.do("sent_with", a=a, b=e, c=n, o=o)
    w.do("which_door", a=a, b=e, c=n, o=door, p=p)
    w.want("c has o", c=n, o=o)
    w.paragraph()
    go(w, p)
    detour(w, p)
    if a.trait in ("greedy", "curious") and w.chance(0.6):
        w.do("smells_good", a=a, o=o)
        w.do("eats_it", a=a, o=o)
        w.paragraph()
        w.do("arrive_empty", a=a, c=n, q=door)
        w.do("says_hungry", a=a, b=n, o=o)
        lesson(w, "greedy")
        close_story(w)
        return
    c, helped = good_deed(w, p) if w.chance(0.6) else (None, False)
    w.paragraph()
    if a.trait in ("careless", "merry", "proud") and w.chance(0.6):
        w.do("wrong_door", a=a, q=other)
        w.do("right_door", a=a, q=door, c=n)
    else:
        w.do("find_door", a=a, q=door, c=n)
    w.do("deliver", a=a, b=n, o=o)
    if c is not None and helped and w.chance(0.6):
        w.do("deed_was_friend", a=a, b=n, c=c)
        w.marks.add("Twist")
        w.pay("deed")
        lesson(w, "deed")
    else:
        w.do("reward", a=a, b=n, o=w.thing("v"))
        lesson(w, "errand")
    w.do("home", a=a, p=w.home)
    close_story(w)


def noise(w: Stage) -> None:
    """A sound in the night. It has a cause, and the cause was there all the time."""
    a, o, pet = w.hero, w.thing("n"), w.pet
    s = w.spot(fit="big")
    cause = w.pick(("pet", "shutter", "clock", "kitten"))
    open_story(w, pet=True)
    if cause == "pet":
        w.do("pet_not_seen", a=a, b=pet)
    elif cause == "shutter":
        w.do("window_open", a=a, b=w.elder)
    elif cause == "clock":
        w.do("new_clock", a=a, b=w.elder, s=s)
    else:
        w.do("hungry_kitten", a=a)
    w.plant("cause")
    own(w, o)
    w.want("a feels happy", a=a)
    w.paragraph()
    w.do("goes_to_bed", a=a)
    w.do(f"sound_{cause}", a=a)
    w.do("afraid_night", a=a)
    flees = a.trait in ("shy", "greedy", "proud") and w.chance(0.5)
    if flees:
        w.do("hides_under_blanket", a=a)
        if w.chance(0.5):
            w.paragraph()
            w.do("no_sleep", a=a)
            lesson(w, "fear_not")
            close_story(w)
            return
        w.do("elder_comes", a=a, b=w.elder)
    w.paragraph()
    w.do("takes_light", a=a, o=o)
    w.do("listen", a=a, s=s)
    w.do(f"cause_{cause}", a=a, b=pet, s=s, c=w.elder)
    w.pay("cause")
    w.marks.add("Twist")
    w.paragraph()
    w.do("laugh_at_fear", a=a)
    lesson(w, "fear")
    close_story(w)
