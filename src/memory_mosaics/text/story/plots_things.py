"""Plots about things: lost, hidden, stuck."""

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.pieces import (
    close_story,
    detour,
    go,
    good_deed,
    lesson,
    open_story,
    own,
)
from memory_mosaics.text.story.world import Person, Place, Thing


def lost(w: Stage) -> None:
    """Something is left behind on a walk. Only walking the same way again, in the mind or on foot, finds it."""
    a, b, o = w.hero, w.friend, w.thing("s")
    first, second = w.place(), w.place()
    with_friend = w.chance(0.5)
    open_story(w, friend=with_friend)
    own(w, o)
    w.want("a has o", a=a, o=o)
    w.paragraph()
    go(w, first, *([b] if with_friend else []))
    left_first = w.chance(0.5)
    if left_first:
        w.do("set_down", a=a, o=o, p=first)
        w.plant("left")
        go(w, second, *([b] if with_friend else []))
        detour(w, second)
    else:
        detour(w, first)
        go(w, second, *([b] if with_friend else []))
        w.do("set_down", a=a, o=o, p=second)
        w.plant("left")
    place = first if left_first else second
    w.paragraph()
    w.do("home", a=a, p=w.home)
    w.do("notice_missing", a=a, o=o)
    w.do("sad_missing", a=a, o=o)
    w.do("ask_elder_where", a=a, b=w.elder, o=o)
    w.paragraph()
    if w.chance(0.45):
        wrong = second if left_first else first
        go(w, wrong)
        w.do("search_nothing", a=a, o=o, p=wrong)
    w.do("remember_place", a=a, o=o, p=place)
    w.do("go_back", a=a, p=place)
    luck = w.random()
    if luck < 0.5:
        w.do("find_there", a=a, o=o, p=place)
        w.pay("left")
    elif luck < 0.75:
        c = w.neighbour()
        w.silently("c has o & c at p", c=c, o=o, p=place)
        w.do("kept_safe", a=a, c=c, o=o, p=place)
        w.pay("left")
        lesson(w, "kind_others")
    else:
        w.silently("not o at p", o=o, p=place)
        w.do("gone_for_good", a=a, o=o, p=place)
        lesson(w, "careful")
    if a.trait == "careless" or w.chance(0.4):
        lesson(w, "careful")
    close_story(w, o=o)


def hidden(w: Stage) -> None:
    """A present is hidden so well that the hero forgets where; somebody saw it."""
    a, o, s, wrong = w.hero, w.thing("keep" if w.chance(0.7) else "e"), w.spot(inside=w.chance(0.6)), w.spot()
    b, c = (w.elder, w.friend) if w.chance(0.4) else (w.friend, w.elder)
    open_story(w)
    w.silently("a has o", a=a, o=o)
    w.do("birthday_soon", a=a, b=b, o=o)
    w.want("b has o", b=b, o=o)
    w.do("hide", a=a, o=o, s=s)
    if w.chance(0.5):
        w.do("seen_hiding", a=a, c=c, s=s)
    else:
        w.do("tell_secret", a=a, c=c, s=s)
    w.paragraph()
    p = w.place()
    if w.chance(0.4):
        go(w, p)
        good_deed(w, p)
        w.do("home", a=a, p=w.home)
    else:
        w.do("days_pass", a=a)
        w.do("prepare_party", a=a, b=b)
    w.paragraph()
    w.do("birthday_now", a=a, b=b, o=o)
    forgot = a.trait in ("careless", "proud", "merry", "greedy") or w.chance(0.6)
    if forgot:
        w.do("forgot_where", a=a, o=o)
        w.do("look_wrong_spot", a=a, s=wrong, o=o)
        w.do("ask_witness", a=a, c=c, s=s, o=o)
    else:
        w.do("remembered_where", a=a, s=s, o=o)
    if "e" in o.can and w.chance(0.5):
        w.do("mouse_ate", a=a, o=o, s=s)
        w.marks.add("Twist")
        lesson(w, "careful")
    else:
        w.do("fetch_hidden", a=a, o=o, s=s)
        w.paragraph()
        w.do("give_present", a=a, b=b, o=o)
        lesson(w, "ask" if forgot else "giving")
    close_story(w, friend=b if b is w.friend else None)


def _way_down(w: Stage, o: Thing, p: Place, helper: Person | None, b: Person) -> bool:
    """Try what the state allows, one way after another, until the thing is free or nothing is left to try."""
    a = w.hero
    high = o.state == "stuck"
    ways = ["jump", "shake", "friend"] if high else ["reach", "friend", "wait"]
    if high:
        ways.append("climb" if a.trait in ("brave", "careless", "proud", "curious") else "afraid_climb")
    if "stick" in w.planted:
        ways.append("stick")
    if helper is not None:
        ways.append("helper")
    tries = 2 if w.chance(0.7) else 3
    while ways and tries:
        way = ways.pop(int(w.random() * len(ways)))
        tries -= 1
        works = {"stick": 0.7, "helper": 1.0, "climb": 0.5, "friend": 0.5, "wait": 0.3, "shake": 0.3}.get(way, 0.0)
        ok = w.chance(works)
        kind = f"{'high' if high else 'water'}_{way}_{'works' if ok else 'fails'}"
        w.do(kind, a=a, b=b, c=helper or b, o=o, p=p)
        if way == "helper":
            w.pay("deed")
            lesson(w, "deed")
        if way == "stick":
            w.pay("stick")
        if way == "friend" and ok:
            lesson(w, "together")
        if ok:
            return True
    return False


def stuck(w: Stage) -> None:
    """The wind takes a thing into a tree, or the water takes it; somebody thinks of a way."""
    a, b = w.hero, w.friend
    high = w.chance(0.55)
    o = w.thing("k" if high or w.chance(0.4) else "r")
    p = w.place("T" if high else "W")
    open_story(w, friend=True)
    own(w, o)
    w.want("a has o", a=a, o=o)
    w.paragraph()
    go(w, p, b)
    if w.chance(0.4):
        w.do("see_stick", a=a, p=p)
        w.plant("stick")
    c, helped = good_deed(w, p) if w.chance(0.5) else (None, False)
    if c is None:
        w.do("play_with", a=a, b=b, o=o, p=p)
    w.paragraph()
    w.do("blown_up" if high else "into_water", a=a, o=o, p=p)
    w.do("sad_stuck" if high else "sad_afloat", a=a, b=b, o=o)
    free = _way_down(w, o, p, c if helped else None, b)
    w.paragraph()
    if free:
        w.do("get_back", a=a, b=b, o=o)
        if w.chance(0.25) and "b" in o.can:
            w.do("a_little_broken", a=a, o=o)
    else:
        w.do("give_up", a=a, b=b, o=o)
        if c is not None and not helped:
            w.do("nobody_helps", a=a, c=c, o=o)
            w.pay("deed")
            lesson(w, "deed_not")
        else:
            w.do("comfort", a=a, b=b)
    close_story(w, friend=b)
