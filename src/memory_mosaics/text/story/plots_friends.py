"""Plots between two: a promise, a newcomer, a treat to share, a race, a wrong suspicion, hide and seek, a seed."""

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.pieces import (
    close_story,
    detour,
    go,
    good_deed,
    lesson,
    make_up,
    open_story,
    own,
    quarrel,
)
from memory_mosaics.text.story.words import FLOWER_COLOURS


def promise(w: Stage) -> None:
    """The hero gives a word, and then something nicer turns up."""
    a, b, o = w.hero, w.friend, w.thing("keep")
    p, r = w.place(), w.place()
    c = w.child()
    open_story(w, friend=True)
    own(w, o)
    w.do("promise_bring", a=a, b=b, o=o, p=p)
    w.want("b has o", b=b, o=o)
    w.paragraph()
    w.do("tempted", a=a, c=c, r=r, p=p)
    weak = a.trait in ("careless", "greedy", "proud", "merry", "curious")
    if w.chance(0.75 if weak else 0.3):
        w.do("give_in", a=a, c=c, p=r)
        w.do("waiting", b=b, p=p, a=a)
        w.paragraph()
        w.do("remember_promise", a=a, b=b, p=p, o=o)
        if w.chance(0.55):
            w.do("run_late", a=a, b=b, p=p)
            quarrel(w, b, o, "late")
            w.paragraph()
            w.do("sorry_give", a=a, b=b, o=o)
            make_up(w, b)
            lesson(w, "sorry")
        else:
            w.do("too_late_promise", a=a, b=b, p=p)
            w.do("alone_with", a=a, o=o, b=b)
            lesson(w, "promise")
    else:
        w.do("say_no", a=a, c=c, b=b, p=p)
        w.do("go_on", a=a, p=p)
        if w.chance(0.4):
            good_deed(w, p)
        w.paragraph()
        w.silently("b at p", b=b, p=p)
        w.do("keep_promise", a=a, b=b, o=o, p=p)
        w.do("play_three" if w.chance(0.4) else "play_after", a=a, b=b, c=c)
        lesson(w, "promise")
    close_story(w, friend=b)


def newcomer(w: Stage) -> None:
    """Somebody new stands alone. One of the friends says no, and later needs just this one."""
    a, b, c, o = w.hero, w.friend, w.child(), w.thing("t")
    p = w.place()
    open_story(w, friend=True)
    own(w, o)
    w.paragraph()
    go(w, p, b)
    w.silently("c at p", c=c, p=p)
    w.do("see_newcomer", a=a, c=c, p=p)
    w.want("c trusts a", c=c, a=a)
    skill = w.pick(("climb", "knots", "sing", "dig"))
    w.do(f"skill_{skill}", a=a, c=c)
    w.plant("skill")
    w.paragraph()
    if a.trait == "shy":
        w.do("too_shy", a=a, c=c)
    mean = w.chance(0.5)
    if mean:
        w.do("friend_refuses", a=a, b=b, c=c)
        w.marks.add("Conflict")
    if mean and a.trait in ("proud", "greedy", "shy") and w.chance(0.5):
        w.do("say_nothing", a=a, b=b, c=c)
        w.paragraph()
        w.do("newcomer_leaves", a=a, c=c, p=p)
        lesson(w, "kind_new_not")
    else:
        w.do("invite", a=a, c=c, o=o)
        w.paragraph()
        w.do(f"need_{skill}", a=a, b=b, o=o, c=c)
        w.do(f"use_{skill}", a=a, b=b, o=o, c=c)
        w.pay("skill")
        if mean:
            w.do("friend_sorry", a=a, b=b, c=c)
        lesson(w, "kind_new")
    close_story(w, friend=b if w.chance(0.5) else None)


def share(w: Stage) -> None:
    """A treat, and somebody hungry beside it."""
    a, b, o = w.hero, w.friend, w.thing("e")
    p = w.place()
    q = w.thing("e")
    open_story(w, friend=True)
    w.silently("a has o & b has q", a=a, o=o, b=b, q=q)
    w.do("got_treat", a=a, b=w.elder, o=o)
    w.want("a feels happy", a=a)
    w.paragraph()
    go(w, p, b)
    detour(w, p)
    w.do("friend_hungry", a=a, b=b, o=o)
    generous = a.trait in ("kind", "gentle", "brave", "patient") or (a.trait != "greedy" and w.chance(0.45))
    if generous:
        w.do("share_half", a=a, b=b, o=o)
        w.paragraph()
        w.do("hero_needs", a=a, b=b, p=p)
        w.do("shared_back", a=a, b=b, q=q)
        lesson(w, "share")
    else:
        w.do("refuse_share", a=a, b=b, o=o)
        w.marks.add("Conflict")
        w.paragraph()
        thief = w.pick(("drop", "crow", "dog"))
        w.do(f"lose_treat_{thief}", a=a, o=o, p=p)
        if w.chance(0.55):
            w.paragraph()
            w.do("friend_shares_anyway", a=a, b=b, q=q)
            w.marks.add("Twist")
            lesson(w, "share")
        else:
            w.do("hungry_home", a=a, b=b)
            lesson(w, "share_not")
    close_story(w, friend=b)


def race(w: Stage) -> None:
    """Two want to win the same prize, and somebody falls."""
    a, b, o = w.hero, w.friend, w.thing("v")
    p = w.place()
    judge = w.neighbour()
    open_story(w, friend=True)
    w.silently("c has o & c at p", c=judge, o=o, p=p)
    w.do("race_called", a=a, c=judge, o=o, p=p)
    w.silently("b trusts a", a=a, b=b)
    w.want("a has o & b trusts a", a=a, b=b, o=o)
    w.do("both_want", a=a, b=b, o=o)
    if w.chance(0.6):
        quarrel(w, b, o, "race")
    w.paragraph()
    go(w, p, b)
    w.do("see_root", a=a, p=p)
    w.plant("root")
    w.do("race_starts", a=a, b=b)
    w.paragraph()
    kind = a.trait in ("kind", "gentle", "brave", "patient") or w.chance(0.5)
    if w.chance(0.6):
        w.do("rival_falls", a=a, b=b)
        w.pay("root")
        if kind:
            w.do("stop_and_help", a=a, b=b)
            w.paragraph()
            w.do("judge_gives", a=a, b=b, c=judge, o=o)
            w.marks.add("Twist")
            lesson(w, "help_win")
        else:
            w.do("run_on", a=a, b=b)
            w.paragraph()
            w.do("win_alone", a=a, b=b, c=judge, o=o)
            lesson(w, "win_not")
            b.where = None
    elif a.trait in ("proud", "careless", "merry") or w.chance(0.3):
        w.do("hero_falls", a=a, b=b)
        w.pay("root")
        w.paragraph()
        w.do("rival_wins", a=a, b=b, c=judge, o=o)
        lesson(w, "proud")
    else:
        w.do("jump_root", a=a, b=b)
        w.pay("root")
        w.paragraph()
        w.do("win_fair", a=a, b=b, c=judge, o=o)
        w.do("prize_shared", a=a, b=b, o=o)
        lesson(w, "fair")
    close_story(w, friend=b)


def mystery(w: Stage) -> None:
    """Treats vanish. The hero is sure who did it, and wrong."""
    a, b, o = w.hero, w.friend, w.thing("baked")
    thief = w.stranger()
    clue = w.pick(("hair", "prints", "leaf"))
    s = w.spot(inside=False, fit="big")
    open_story(w, friend=True)
    w.do("bakes", a=a, b=w.elder, o=o)
    w.silently("a has o & a trusts b & b trusts a", a=a, b=b, o=o)
    if w.chance(0.3):
        w.do("saw_near", a=a, b=b, o=o)
    w.paragraph()
    w.do("vanished", a=a, o=o)
    w.do(f"clue_{clue}", a=a)
    w.plant("clue")
    w.do("suspect", a=a, b=b, o=o)
    w.want("b trusts a", a=a, b=b)
    quarrel(w, b, o, "accused")
    w.paragraph()
    w.do("keep_watch", a=a)
    w.do(f"thief_{clue}", a=a, c=thief)
    w.pay("clue")
    w.marks.add("Twist")
    w.do("thief_home", a=a, c=thief, s=s, o=o)
    w.paragraph()
    if a.trait == "proud" and w.chance(0.6):
        w.do("no_apology", a=a, b=b)
        b.where = None
        lesson(w, "accuse_not")
    else:
        w.do("apology", a=a, b=b, c=thief)
        make_up(w, b)
        if w.chance(0.4):
            w.do("feed_thief", a=a, b=b, c=thief, s=s)
        lesson(w, "accuse")
    close_story(w, friend=b)


def hide_and_seek(w: Stage) -> None:
    """A game: two are found soon, and the third is nowhere to be seen."""
    a, b, c = w.hero, w.friend, w.child()
    c.relation = f"friend {c.name}" + (f" the {c.kind}" if w.wild else "")
    pet = w.pet
    s, s2 = w.spot(inside=False, fit="big"), w.spot(inside=False, fit="big")
    open_story(w, friend=True, pet=True)
    w.do("game_starts", a=a, b=b, c=c)
    w.do("tired_early", a=a, b=c)
    w.plant("tired")
    w.want("a feels happy", a=a)
    w.paragraph()
    w.do("count", a=a)
    w.do("find_first", a=a, b=b, s=s)
    w.do("not_found", a=a, b=b, c=c)
    if w.chance(0.5):
        w.do("worried", a=a, b=b, c=c)
    w.paragraph()
    if w.chance(0.8):
        w.do("pet_points", a=a, b=pet, s=s2)
        w.do("asleep", a=a, c=c, s=s2)
        w.pay("tired")
        w.marks.add("Twist")
        lesson(w, "keep_trying")
    else:
        w.do("went_home", a=a, b=b, c=c)
        w.marks.add("Conflict")
        lesson(w, "tell")
    close_story(w, friend=b)


def seed(w: Stage) -> None:
    """A seed needs water and time; the hero has one of them, and perhaps the other."""
    a, b, n = w.hero, w.friend, w.neighbour()
    o = w.named_thing(w.pick(("sunflower", "tulip", "rose bush", "lily", "poppy", "daisy")), FLOWER_COLOURS)
    s = w.spot(inside=False, fit="earth")
    open_story(w)
    w.do("get_seed", a=a, c=n, o=o)
    w.do("plant_seed", a=a, s=s, o=o)
    w.want("o is whole", o=o)
    o.state = "seed"
    w.paragraph()
    w.do("nothing_grows", a=a, o=o)
    if a.trait in ("greedy", "careless", "proud", "merry") and w.chance(0.7):
        w.do("stop_watering", a=a, b=b)
        if w.chance(0.5):
            w.paragraph()
            w.do("friend_watered", a=a, b=b, s=s, o=o)
            w.marks.add("Twist")
            lesson(w, "friend_care")
        else:
            w.paragraph()
            w.do("seed_died", a=a, o=o, s=s)
            lesson(w, "patience_not")
    else:
        w.do("go_on_watering", a=a, c=n, o=o)
        if w.chance(0.5):
            w.do("storm_night", a=a, s=s, o=o)
        w.paragraph()
        w.do("it_grew", a=a, o=o, s=s)
        w.do("show_grower", a=a, b=n, o=o)
        lesson(w, "patience")
    close_story(w)
