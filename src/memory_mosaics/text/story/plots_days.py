"""Plots of a few days or one: a picnic, a hurt animal, a thing to make, a locked one."""

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.pieces import close_story, detour, go, good_deed, lesson, open_story, own
from memory_mosaics.text.story.words import CHORES, MADE_OF
from memory_mosaics.text.story.world import Thing


def picnic(w: Stage) -> None:
    """A day out with food, and clouds that were there from the start."""
    a, b, o = w.hero, w.friend, w.thing("e")
    p = w.place(w.pick("TWO"))
    umbrella = w.named_thing("umbrella")
    open_story(w, friend=True)
    w.silently("a has o", a=a, o=o)
    w.do("plan_picnic", a=a, b=b, o=o, p=p)
    w.do("clouds", a=a, b=w.elder, o=umbrella)
    w.plant("clouds")
    w.want("o is eaten", o=o)
    wise = a.trait in ("careful", "clever", "patient", "gentle") or w.chance(0.4)
    if wise:
        w.silently("a has o", a=a, o=umbrella)
        w.do("take_umbrella", a=a, o=umbrella)
    else:
        w.do("leave_umbrella", a=a, o=umbrella)
    w.paragraph()
    go(w, p, b)
    detour(w, p)
    c, helped = good_deed(w, p) if w.chance(0.35) else (None, False)
    w.do("rain_starts", a=a, b=b, p=p)
    w.pay("clouds")
    w.paragraph()
    if wise:
        w.do("under_umbrella", a=a, b=b, o=umbrella)
        w.do("eat_together", a=a, b=b, o=o)
        lesson(w, "listen")
    elif c is not None and helped:
        w.do("helper_shelter", a=a, b=b, c=c)
        w.pay("deed")
        w.do("eat_together", a=a, b=b, o=o)
        lesson(w, "deed")
    elif w.chance(0.5):
        w.do("run_for_cover", a=a, b=b, o=o)
        w.do("eat_together", a=a, b=b, o=o)
        lesson(w, "together")
    else:
        w.do("food_wet", a=a, b=b, o=o)
        if w.chance(0.5):
            w.do("blame", a=a, b=b, o=umbrella)
            w.marks.add("Conflict")
        lesson(w, "listen_not")
    close_story(w, friend=b)


def hurt(w: Stage) -> None:
    """A hurt animal gets well in a box; then it wants to go home, and the hero wants it to stay."""
    a, e, c, o = w.hero, w.elder, w.stranger(), w.thing("s")
    p, s = w.place(), w.spot(fit="big")
    open_story(w)
    own(w, o)
    w.paragraph()
    go(w, p)
    w.silently("c at p", c=c, p=p)
    w.do("find_hurt", a=a, c=c, p=p)
    w.do("carry_home", a=a, c=c, p=w.home)
    w.do("bed_in_spot", a=a, c=c, s=s, b=e)
    w.plant("cared")
    w.want("c feels free", c=c)
    w.paragraph()
    w.do("feed_days", a=a, c=c)
    w.do("well_again", a=a, c=c)
    w.do("wants_to_keep", a=a, c=c, b=e)
    w.marks.add("Conflict")
    if a.trait in ("greedy", "proud") and w.chance(0.6):
        w.do("keeps_it", a=a, c=c, s=s)
        w.paragraph()
        w.do("sad_animal", a=a, c=c, s=s)
        lesson(w, "free_not")
        close_story(w)
        return
    w.do("sets_free", a=a, c=c, p=p)
    w.paragraph()
    if w.chance(0.6):
        w.do("loses_thing_there", a=a, o=o, p=p)
        w.do("animal_brings", a=a, c=c, o=o)
        w.pay("cared")
        lesson(w, "deed")
    else:
        w.do("animal_visits", a=a, c=c)
        w.pay("cared")
        lesson(w, "free")
    close_story(w)


def make(w: Stage) -> None:
    """Something is to be made by hand; one part lies in a known spot, one must be asked for, one is missing."""
    a, e, n = w.hero, w.elder, w.neighbour()
    o = w.thing("h")
    s = w.spot(inside=w.chance(0.7))
    p = w.place()
    part, second = MADE_OF[o.noun]
    open_story(w)
    w.do("wants_to_make", a=a, b=w.friend, o=o, x=part, y=second)
    w.want("b has o", b=w.friend, o=o)
    w.do("told_where", a=a, b=e, x=part, s=s)
    w.paragraph()
    w.do("first_ask", a=a, b=n, y=second, p=p)
    w.do("favour_first", a=a, b=n, y=second, x=w.pick(CHORES))
    if w.chance(0.4):
        detour(w, p)
    w.do("home", a=a, p=w.home)
    w.paragraph()
    w.do("where_was_it", a=a, x=part, s=s)
    w.do("work_hard", a=a, o=o, x=part, y=second)
    if a.trait in ("careless", "proud", "merry") and w.chance(0.6):
        w.do("made_badly", a=a, o=o)
        if w.chance(0.5):
            w.do("throws_away", a=a, o=o)
            lesson(w, "keep_trying_not")
            close_story(w)
            return
        w.do("try_again", a=a, o=o, b=e)
    else:
        w.do("made_well", a=a, o=o)
    w.paragraph()
    w.do("give_made", a=a, b=w.friend, o=o)
    lesson(w, "keep_trying" if w.chance(0.5) else "giving")
    close_story(w)


def locked(w: Stage) -> None:
    """A key is found. What does it open? Somebody once said it, and the hero listened or did not."""
    a, e, key, o = (
        w.hero,
        w.elder,
        Thing("key", w.pick(("silver", "golden", "black", "rusty", "tiny")), ""),
        w.thing("v"),
    )
    s, wrong = w.spot(fit="lock"), w.spot(fit="lock")
    p = w.place()
    open_story(w)
    w.do("locked_spot", a=a, b=e, s=s)
    w.silently("o at s", o=o, s=s)
    w.paragraph()
    go(w, p)
    c, helped = good_deed(w, p) if w.chance(0.5) else (None, False)
    if c is not None and helped:
        w.do("key_from", a=a, c=c, o=key)
        w.pay("deed")
    else:
        w.do("key_found", a=a, o=key, p=p)
    w.want("a has o", a=a, o=o)
    w.do("home", a=a, p=w.home)
    w.paragraph()
    w.do("try_wrong", a=a, s=wrong, o=key)
    w.do("remember_locked", a=a, b=e, s=s)
    if w.chance(0.8):
        w.do("opens", a=a, s=s, o=key, q=o)
        w.paragraph()
        w.do("elder_tells", a=a, b=e, o=o)
        lesson(w, "listen_good")
    else:
        w.do("key_breaks", a=a, s=s, o=key)
        w.do("never_known", a=a, s=s)
        lesson(w, "gentle_hands")
    close_story(w, o=o)
