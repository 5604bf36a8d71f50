"""Plots about what belongs to somebody else: broken, borrowed, traded."""

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.pieces import (
    close_story,
    go,
    good_deed,
    lesson,
    make_up,
    open_story,
    own,
    quarrel,
)


def broken(w: Stage) -> None:
    """A dear thing stands too near the edge. It breaks, and the hero has to choose between a lie and the truth."""
    a, e, o = w.hero, w.elder, w.thing("v")
    while "b" not in o.can:
        o = w.thing("v")
    culprit = w.pet if w.chance(0.5) else None
    open_story(w, pet=culprit is not None)
    w.silently("b has o", b=e, o=o)
    w.do("dear_thing", a=a, b=e, o=o)
    w.do("near_edge", a=a, b=e, o=o)
    w.plant("edge")
    w.want("e trusts a", e=e, a=a)
    w.silently("e trusts a", e=e, a=a)
    w.paragraph()
    w.do("play_inside", a=a)
    if culprit:
        w.do("pet_bumps", a=a, c=culprit, o=o)
    else:
        w.do("hero_bumps", a=a, o=o)
    w.pay("edge")
    w.do("look_at_pieces", a=a, o=o)
    honest = a.trait in ("brave", "kind", "gentle") or w.chance(0.5)
    w.paragraph()
    if honest:
        w.do("confess", a=a, b=e, o=o)
        w.do("forgive", a=a, b=e)
        lesson(w, "honest")
    else:
        s = w.spot()
        w.do("hide_pieces", a=a, o=o, s=s)
        w.do("elder_asks", a=a, b=e, o=o)
        w.do("lie", a=a, b=e, o=o)
        w.marks.add("Conflict")
        w.paragraph()
        if w.chance(0.6):
            w.do("bad_night", a=a, o=o)
            w.do("confess_late", a=a, b=e, o=o, s=s)
            w.do("forgive", a=a, b=e)
            lesson(w, "honest")
        else:
            w.do("found_pieces", a=a, b=e, s=s, o=o)
            w.do("no_trust", a=a, b=e, o=o)
            lesson(w, "lie")
    if w.ends_well():
        w.paragraph()
        if w.chance(0.6):
            w.do("mend_together", a=a, b=e, o=o)
        else:
            c = w.neighbour()
            w.do("mended_by", a=a, c=c, o=o)
    close_story(w)


def borrowed(w: Stage) -> None:
    """A friend lends something and asks for one thing only: take care."""
    a, b, o = w.hero, w.friend, w.thing("t" if w.chance(0.6) else "v")
    p = w.place("W" if w.chance(0.6) else "")
    danger = "wet" if "W" in p.has else "dirty"
    open_story(w, friend=True)
    own(w, o, b)
    w.silently("a trusts b & b trusts a", a=a, b=b)
    w.do("wish_borrow", a=a, b=b, o=o)
    w.do(f"lend_{danger}", a=a, b=b, o=o)
    w.plant("warning")
    w.want("b trusts a", a=a, b=b)
    w.paragraph()
    go(w, p)
    careless = a.trait in ("careless", "proud", "merry", "curious", "greedy") or w.chance(0.35)
    if not careless:
        w.do("take_care", a=a, o=o, p=p)
        if w.chance(0.5):
            good_deed(w, p)
        w.paragraph()
        w.do("give_back_whole", a=a, b=b, o=o)
        w.do("lend_again", a=a, b=b, o=o)
        lesson(w, "trust")
        close_story(w, friend=None)
        return
    w.do(f"spoil_{danger}", a=a, b=b, o=o, p=p)
    w.pay("warning")
    w.paragraph()
    w.do("give_back_spoiled", a=a, b=b, o=o)
    quarrel(w, b, o, danger)
    w.paragraph()
    if w.chance(0.7):
        q = w.thing("t")
        w.silently("a has q", a=a, q=q)
        w.do("clean_up", a=a, o=o)
        w.do("offer_own", a=a, b=b, q=q, o=o)
        make_up(w, b)
        lesson(w, "sorry")
    else:
        w.do("no_sorry", a=a, b=b)
        b.where = None
        lesson(w, "sorry_not")
    close_story(w, friend=b)


def trade(w: Stage) -> None:
    """The owner wants something else for it, and the owner of that wants something else again."""
    a, o, q = w.hero, w.thing("keep"), w.thing("keep")
    n1, n2 = w.neighbour(), w.neighbour() if w.chance(0.6) else w.friend
    t = w.thing("e" if w.chance(0.6) else "s")
    p1, p2 = w.place(), w.place()
    open_story(w)
    w.silently("b has o & c has q & a has t & b at p & c at r", a=a, b=n1, c=n2, o=o, q=q, t=t, p=p1, r=p2)
    w.do("start_with", a=a, o=t)
    w.want("a has o", a=a, o=o)
    w.paragraph()
    w.do("see_for_trade", a=a, b=n1, o=o, p=p1)
    w.do("will_trade_for", a=a, b=n1, o=o, q=q)
    w.paragraph()
    w.do("ask_around", a=a, c=n2, q=q, p=p2)
    w.do("wants_yours", a=a, b=n2, o=q, q=t)
    stingy = a.trait == "greedy" and w.chance(0.7)
    if stingy:
        w.do("will_not_trade", a=a, b=n2, o=t, q=q)
        w.paragraph()
        w.do("keep_and_regret", a=a, o=t, q=o)
        lesson(w, "trade_not")
        close_story(w)
        return
    w.do("swap", a=a, b=n2, o=q, q=t)
    w.paragraph()
    w.do("back_to_trader", a=a, b=n1, q=q, p=p1, o=o)
    if w.chance(0.2):
        d = w.child()
        w.silently("d has o", d=d, o=o)
        w.do("too_late", a=a, b=n1, c=d, o=o)
        w.marks.add("Twist")
    else:
        w.do("last_swap", a=a, b=n1, o=o, q=q)
        lesson(w, "patience")
    close_story(w, o=o)
