"""The plots: in each, what the hero wants meets an obstacle, and chance and the hero's trait decide what comes of it.

A plot draws people, things and places, binds them to roles, and plays scripts of events (world.py). Roles that every
plot has: a the hero, b the friend, e somebody older, h home; d is somebody met on the way.
"""

from memory_mosaics.apps.story_world.cast import StoryWorld
from memory_mosaics.apps.story_world.words import table, words
from memory_mosaics.apps.story_world.world import ACTIONS, Person, Roles

DAYS, CHORES, LANDMARKS, LURES = words("days"), words("chores"), words("landmarks"), words("lures")
FLOWERS, FLOWER_COLOURS, KEY_LOOKS = words("flowers"), words("flower colours"), words("key looks")
MADE_OF = table("made of")
TROUBLES = ("thorn", "bush", "back", "thirst", "wet")
WORKS = {"stick": 0.7, "helper": 1.0, "climb": 0.5, "friend": 0.5, "wait": 0.3, "shake": 0.3}  # with this probability


def open_story(w: StoryWorld, _: str, __: Roles) -> None:
    """Who the hero is."""
    w.play("open", x=w.pick(DAYS))
    if w.chance(0.65):
        w.play(f"trait_{w.hero.trait}")


def own(w: StoryWorld, _: str, __: Roles) -> None:
    """The hero has a thing and loves it."""
    w.play("set a has o")
    w.play("gift_before b=e" if w.chance(0.4) else "own")


def detour(w: StoryWorld, _: str, roles: Roles) -> None:
    """Something small that may happen on the way, without consequence."""
    if w.chance(0.6):
        seen = [f"see_{flag}" for flag in "TWO" if flag in roles["p"].has] or ["see_any"]
        w.event(w.pick(seen), roles)


def close_story(w: StoryWorld, role: str, roles: Roles) -> None:
    """The last feelings, with a friend who is there or about a thing, and the moral where there is one to draw."""
    well, what = w.ends_well(), roles.get(role)
    kind = "end_well" if well else "end_badly"
    if isinstance(what, Person):
        w.play(f"{kind}_two" if what.where is w.hero.where else kind)
    elif what and well and what.where is w.hero and what.state == "whole" and w.chance(0.6):
        w.play("end_with", o=what)
    else:
        w.play(kind)
    if w.lesson and w.chance(0.55):
        w.play(f"moral_{w.lesson}; feature MoralValue")


ACTIONS |= {"begin": open_story, "owns": own, "detour": detour, "close": close_story}


def good_deed(w: StoryWorld) -> bool:
    """Somebody on the way needs help; whether the hero helps, or has no time for it."""
    w.bind(d=w.stranger())
    trouble = w.pick(TROUBLES)
    w.play(f"set d at p; trouble_{trouble} c=d")
    selfish = w.hero_is("greedy", "proud", "careless") and w.chance(0.5)
    w.play("pass_by c=d; plant deed" if selfish else f"help_{trouble} c=d; plant deed")
    return not selfish


# Things


def lost(w: StoryWorld) -> None:
    """Something is left behind on a walk. Only walking the same way again, in the mind or on foot, finds it."""
    w.bind(o=w.thing("s"))
    first, second = w.place(), w.place()
    with_friend = w.chance(0.5)
    go = "go_two" if with_friend else "go"
    w.play("begin; meet_friend; owns" if with_friend else "begin; owns")
    w.play(f"want a has o; paragraph; {go}", p=first)
    if w.chance(0.5):
        place, wrong = first, second
        w.play("set_down; plant left", p=first)
        w.play(f"{go}; detour", p=second)
    else:
        place, wrong = second, first
        w.play("detour", p=first)
        w.play(f"{go}; set_down; plant left", p=second)
    w.bind(p=place)
    w.play("paragraph; home p=h; notice_missing; sad_missing; ask_elder_where b=e; paragraph")
    if w.chance(0.45):
        w.play("go; search_nothing", p=wrong)
    w.play("remember_place; go_back")
    luck = w.random()
    if luck < 0.5:
        w.play("find_there; pay left")
    elif luck < 0.75:
        w.play("set c has o & c at p; kept_safe; pay left; lesson kind_others", c=w.neighbour())
    else:
        w.play("set not o at p; gone_for_good; lesson careful")
    if w.hero_is("careless") or w.chance(0.4):
        w.play("lesson careful")
    w.play("close o")


def hidden(w: StoryWorld) -> None:
    """A present is hidden so well that the hero forgets where; somebody saw it."""
    o = w.thing("keep" if w.chance(0.7) else "e")
    w.bind(o=o, s=w.spot(side="inside" if w.chance(0.6) else "outside"), r=w.spot())
    for_elder = w.chance(0.4)
    w.bind(b=w.elder if for_elder else w.friend, c=w.friend if for_elder else w.elder)
    w.play("begin; set a has o; birthday_soon; want b has o; hide")
    w.play("seen_hiding; paragraph" if w.chance(0.5) else "tell_secret; paragraph")
    w.bind(p=w.place())
    if w.chance(0.4):
        w.play("go")
        good_deed(w)
        w.play("home p=h")
    else:
        w.play("days_pass; prepare_party")
    w.play("paragraph; birthday_now")
    forgot = w.hero_is("careless", "proud", "merry", "greedy") or w.chance(0.6)
    w.play("forgot_where; look_wrong_spot s=r; ask_witness" if forgot else "remembered_where")
    if "e" in o.can and w.chance(0.5):
        w.play("mouse_ate; feature Twist; lesson careful")
    else:
        w.play(f"fetch_hidden; paragraph; give_present; lesson {'ask' if forgot else 'giving'}")
    w.play("close" if for_elder else "close b")


def _freed(w: StoryWorld, high: bool, helped: bool) -> bool:
    """Try what the state allows, one way after another; whether the thing is free before nothing is left to try."""
    ways = ["jump", "shake", "friend"] if high else ["reach", "friend", "wait"]
    if high:
        ways.append("climb" if w.hero_is("brave", "careless", "proud", "curious") else "afraid_climb")
    ways += ["stick"] * ("stick" in w.planted) + ["helper"] * helped
    tries = 2 if w.chance(0.7) else 3
    while ways and tries:
        way = ways.pop(int(w.random() * len(ways)))
        tries -= 1
        works = w.chance(WORKS.get(way, 0.0))
        w.play(f"{'high' if high else 'water'}_{way}_{'works' if works else 'fails'} c={'d' if helped else 'b'}")
        if way == "helper":
            w.play("pay deed; lesson deed")
        if way == "stick":
            w.play("pay stick")
        if way == "friend" and works:
            w.play("lesson together")
        if works:
            return True
    return False


def stuck(w: StoryWorld) -> None:
    """The wind takes a thing into a tree, or the water takes it; somebody thinks of a way."""
    high = w.chance(0.55)
    o = w.thing("k" if high or w.chance(0.4) else "r")
    w.bind(o=o, p=w.place("T" if high else "W"))
    w.play("begin; meet_friend; owns; want a has o; paragraph; go_two")
    if w.chance(0.4):
        w.play("see_stick; plant stick")
    met = w.chance(0.5)
    helped = met and good_deed(w)
    if not met:
        w.play("play_with")
    w.play("paragraph; blown_up; sad_stuck" if high else "paragraph; into_water; sad_afloat")
    if _freed(w, high, helped):
        w.play("paragraph; get_back")
        if w.chance(0.25) and "b" in o.can:
            w.play("a_little_broken")
    else:
        w.play("paragraph; give_up")
        w.play("nobody_helps c=d; pay deed; lesson deed_not" if met and not helped else "comfort")
    w.play("close b")


# What belongs to somebody else


def broken(w: StoryWorld) -> None:
    """A dear thing stands too near the edge. It breaks, and the hero has to choose between a lie and the truth."""
    o = w.thing("v")
    while "b" not in o.can:
        o = w.thing("v")
    by_pet = w.chance(0.5)
    w.bind(o=o, b=w.elder, c=w.pet() if by_pet else None)
    w.play("begin")
    if by_pet:
        w.play("meet_sibling b=c" if w.wild else "meet_pet b=c")
    w.play("set b has o; dear_thing; near_edge; plant edge; want b trusts a; set b trusts a; paragraph; play_inside")
    w.play(f"{'pet' if by_pet else 'hero'}_bumps; pay edge; look_at_pieces")
    honest = w.hero_is("brave", "kind", "gentle") or w.chance(0.5)
    w.play("paragraph")
    if honest:
        w.play("confess; forgive; lesson honest")
    else:
        w.bind(s=w.spot())
        w.play("hide_pieces; elder_asks; lie; feature Conflict; paragraph")
        if w.chance(0.6):
            w.play("bad_night; confess_late; forgive; lesson honest")
        else:
            w.play("found_pieces; no_trust; lesson lie")
    if w.ends_well():
        w.play("paragraph")
        if w.chance(0.6):
            w.play("mend_together")
        else:
            w.play("mended_by", c=w.neighbour())
    w.play("close")


def borrowed(w: StoryWorld) -> None:
    """A friend lends something and asks for one thing only: take care."""
    w.bind(o=w.thing("t" if w.chance(0.6) else "v"))
    p = w.place("W" if w.chance(0.6) else "")
    w.bind(p=p)
    danger = "wet" if "W" in p.has else "dirty"
    w.play("begin; meet_friend; set b has o; own a=b; set a trusts b & b trusts a; wish_borrow")
    w.play(f"lend_{danger}; plant warning; want b trusts a; paragraph; go")
    if not (w.hero_is("careless", "proud", "merry", "curious", "greedy") or w.chance(0.35)):
        w.play("take_care")
        if w.chance(0.5):
            good_deed(w)
        w.play("paragraph; give_back_whole; lend_again; lesson trust; close")
        return
    w.play(f"spoil_{danger}; pay warning; paragraph; give_back_spoiled; quarrel_{danger}; feature Conflict; paragraph")
    if w.chance(0.7):
        w.play("set a has q; clean_up; offer_own; make_up; lesson sorry", q=w.thing("t"))
    else:
        w.play("no_sorry; set not b at p; lesson sorry_not")
    w.play("close b")


def trade(w: StoryWorld) -> None:
    """The owner wants something else for it, and the owner of that wants something else again."""
    w.bind(o=w.thing("keep"), q=w.thing("keep"), b=w.neighbour())
    w.bind(c=w.neighbour() if w.chance(0.6) else w.friend)
    w.bind(t=w.thing("e" if w.chance(0.6) else "s"), p=w.place(), r=w.place())
    w.play("begin; set b has o & c has q & a has t & b at p & c at r; start_with o=t; want a has o; paragraph")
    w.play("see_for_trade; will_trade_for; paragraph; ask_around p=r; wants_yours b=c o=q q=t")
    if w.hero_is("greedy") and w.chance(0.7):
        w.play("will_not_trade b=c o=t; paragraph; keep_and_regret o=t q=o; lesson trade_not; close")
        return
    w.play("swap b=c o=q q=t; paragraph; back_to_trader")
    if w.chance(0.2):
        w.play("set c has o; too_late; feature Twist", c=w.child())
    else:
        w.play("last_swap; lesson patience")
    w.play("close o")


# Between two


def promise(w: StoryWorld) -> None:
    """The hero gives a word, and then something nicer turns up."""
    w.bind(o=w.thing("keep"), p=w.place(), r=w.place(), c=w.child())
    w.play("begin; meet_friend; owns; promise_bring; want b has o; paragraph; tempted")
    weak = w.hero_is("careless", "greedy", "proud", "merry", "curious")
    if w.chance(0.75 if weak else 0.3):
        w.play("give_in p=r; waiting; paragraph; remember_promise")
        if w.chance(0.55):
            w.play("run_late; quarrel_late; feature Conflict; paragraph; sorry_give; make_up; lesson sorry")
        else:
            w.play("too_late_promise; alone_with; lesson promise")
    else:
        w.play("say_no; go_on")
        if w.chance(0.4):
            good_deed(w)
        w.play("paragraph; set b at p; keep_promise")
        w.play("play_three" if w.chance(0.4) else "play_after")
        w.play("lesson promise")
    w.play("close b")


def newcomer(w: StoryWorld) -> None:
    """Somebody new stands alone. One of the friends says no, and later needs just this one."""
    w.bind(c=w.child(), o=w.thing("t"), p=w.place())
    w.play("begin; meet_friend; owns; paragraph; go_two; set c at p; see_newcomer; want c trusts a")
    skill = w.pick(("climb", "knots", "sing", "dig"))
    w.play(f"skill_{skill}; plant skill; paragraph")
    if w.hero_is("shy"):
        w.play("too_shy")
    mean = w.chance(0.5)
    if mean:
        w.play("friend_refuses; feature Conflict")
    if mean and w.hero_is("proud", "greedy", "shy") and w.chance(0.5):
        w.play("say_nothing; paragraph; newcomer_leaves; lesson kind_new_not")
    else:
        w.play(f"invite; paragraph; need_{skill}; use_{skill}; pay skill")
        w.play("friend_sorry; lesson kind_new" if mean else "lesson kind_new")
    w.play("close b" if w.chance(0.5) else "close")


def share(w: StoryWorld) -> None:
    """A treat, and somebody hungry beside it."""
    w.bind(o=w.thing("e"), p=w.place(), q=w.thing("e"))
    w.play("begin; meet_friend; set a has o & b has q; got_treat b=e; want a feels happy; paragraph; go_two; detour")
    w.play("friend_hungry")
    if w.hero_is("kind", "gentle", "brave", "patient") or (not w.hero_is("greedy") and w.chance(0.45)):
        w.play("share_half; paragraph; hero_needs; shared_back; lesson share")
    else:
        w.play("refuse_share; feature Conflict; paragraph")
        w.play(f"lose_treat_{w.pick(('drop', 'crow', 'dog'))}")
        if w.chance(0.55):
            w.play("paragraph; friend_shares_anyway; feature Twist; lesson share")
        else:
            w.play("hungry_home; lesson share_not")
    w.play("close b")


def race(w: StoryWorld) -> None:
    """Two want to win the same prize, and somebody falls."""
    w.bind(o=w.thing("v"), p=w.place(), c=w.neighbour())
    w.play(
        "begin; meet_friend; set c has o & c at p; race_called; set b trusts a; want a has o & b trusts a; both_want"
    )
    if w.chance(0.6):
        w.play("quarrel_race; feature Conflict")
    w.play("paragraph; go_two; see_root; plant root; race_starts; paragraph")
    kind = w.hero_is("kind", "gentle", "brave", "patient") or w.chance(0.5)
    if w.chance(0.6):
        w.play("rival_falls; pay root")
        if kind:
            w.play("stop_and_help; paragraph; judge_gives; feature Twist; lesson help_win")
        else:
            w.play("run_on; paragraph; win_alone; lesson win_not; set not b at p")
    elif w.hero_is("proud", "careless", "merry") or w.chance(0.3):
        w.play("hero_falls; pay root; paragraph; rival_wins; lesson proud")
    else:
        w.play("jump_root; pay root; paragraph; win_fair; prize_shared; lesson fair")
    w.play("close b")


def mystery(w: StoryWorld) -> None:
    """Treats vanish. The hero is sure who did it, and wrong."""
    w.bind(o=w.thing("baked"), c=w.stranger())
    clue = w.pick(("hair", "prints", "leaf"))
    w.bind(s=w.spot("big", side="outside"))
    w.play("begin; meet_friend; bakes b=e; set a has o & a trusts b & b trusts a")
    if w.chance(0.3):
        w.play("saw_near")
    w.play(f"paragraph; vanished; clue_{clue}; plant clue; suspect; want b trusts a; quarrel_accused; feature Conflict")
    w.play(f"paragraph; keep_watch; thief_{clue}; pay clue; feature Twist; thief_home; paragraph")
    if w.hero_is("proud") and w.chance(0.6):
        w.play("no_apology; set not b at h; lesson accuse_not")
    else:
        w.play("apology; make_up")
        w.play("feed_thief; lesson accuse" if w.chance(0.4) else "lesson accuse")
    w.play("close b")


def hide_and_seek(w: StoryWorld) -> None:
    """A game: two are found soon, and the third is nowhere to be seen."""
    c = w.child()
    c.relation = f"friend {c.name}" + (f" the {c.kind}" if w.wild else "")
    w.bind(c=c, d=w.pet(), s=w.spot("big", side="outside"), r=w.spot("big", side="outside"))
    w.play("begin; meet_friend; meet_sibling b=d" if w.wild else "begin; meet_friend; meet_pet b=d")
    w.play("game_starts; tired_early b=c; plant tired; want a feels happy; paragraph; count; find_first; not_found")
    if w.chance(0.5):
        w.play("worried")
    w.play("paragraph")
    if w.chance(0.8):
        w.play("pet_points b=d s=r; asleep s=r; pay tired; feature Twist; lesson keep_trying")
    else:
        w.play("went_home; feature Conflict; lesson tell")
    w.play("close b")


def seed(w: StoryWorld) -> None:
    """A seed needs water and time; the hero has one of them, and perhaps the other."""
    w.bind(c=w.neighbour(), o=w.named_thing(w.pick(FLOWERS), FLOWER_COLOURS), s=w.spot("earth", side="outside"))
    w.play("begin; get_seed; plant_seed; want o is whole; set o is seed; paragraph; nothing_grows")
    if w.hero_is("greedy", "careless", "proud", "merry") and w.chance(0.7):
        w.play("stop_watering")
        if w.chance(0.5):
            w.play("paragraph; friend_watered; feature Twist; lesson friend_care")
        else:
            w.play("paragraph; seed_died; lesson patience_not")
    else:
        w.play("go_on_watering")
        if w.chance(0.5):
            w.play("storm_night")
        w.play("paragraph; it_grew; show_grower b=c; lesson patience")
    w.play("close")


# Journeys


def woods(w: StoryWorld) -> None:
    """The hero follows something too far. The way home is the way out, told backwards."""
    marks = [w.unused(LANDMARKS) for _ in range(3)]
    lure = w.pick(LURES)
    lamp = w.thing("n") if w.chance(0.4) else None
    w.play("begin")
    if lamp:
        w.bind(o=lamp)
        w.play("owns; plant lamp")
    w.play("warned_far b=e; want a at h; paragraph")
    w.bind(p=w.place())
    w.play("set a at p; follow", x=lure)
    w.play("pass_marks; plant marks", x=marks[0], y=marks[1], z=marks[2])
    if w.chance(0.35):
        good_deed(w)
    w.play("paragraph; lure_gone; lost_afraid", x=lure)
    if lamp:
        w.play("light_lamp; pay lamp")
    if w.hero_is("careless", "merry", "proud") and w.chance(0.55):
        w.play("wrong_turn; paragraph; search_party b=e")
        if w.chance(0.5):
            w.play("found_by b=e p=h; lesson listen", c=w.neighbour())
        else:
            w.play("night_outside b=e; lesson listen")
    else:
        z, y, x = (f"the {mark.split(' ', 1)[1]}" for mark in marks)
        w.play("think_marks; paragraph; marks_back; pay marks; home_safe b=e p=h", x=x, y=y, z=z)
        w.play("lesson think" if w.chance(0.6) else "lesson listen")
    w.play("close")


def delivery(w: StoryWorld) -> None:
    """Something must get to somebody who lives behind a door of a certain colour."""
    w.bind(o=w.thing("e"), c=w.neighbour(), q=w.named_thing("door"), p=w.place(), t=w.named_thing("roof"))
    w.play("begin; set a has o; sent_with b=e; which_door b=e o=q; want c has o; paragraph; go; detour")
    if w.hero_is("greedy", "curious") and w.chance(0.6):
        w.play("smells_good; eats_it; paragraph; arrive_empty; says_hungry b=c; lesson greedy; close")
        return
    helped = w.chance(0.6) and good_deed(w)
    w.play("paragraph")
    if w.hero_is("careless", "merry", "proud") and w.chance(0.6):
        w.play("wrong_door q=t; right_door; deliver b=c")
    else:
        w.play("find_door; deliver b=c")
    if helped and w.chance(0.6):
        w.play("deed_was_friend b=c c=d; feature Twist; pay deed; lesson deed")
    else:
        w.play("reward b=c; lesson errand", o=w.thing("v"))
    w.play("home p=h; close")


def noise(w: StoryWorld) -> None:
    """A sound in the night. It has a cause, and the cause was there all the time."""
    w.bind(o=w.thing("n"), b=w.pet(), s=w.spot("big"))
    cause = w.pick(("pet", "shutter", "clock", "kitten"))
    hint = {"pet": "pet_not_seen", "shutter": "window_open b=e", "clock": "new_clock b=e", "kitten": "hungry_kitten"}
    w.play(f"begin; {'meet_sibling' if w.wild else 'meet_pet'}; {hint[cause]}; plant cause; owns; want a feels happy")
    w.play(f"paragraph; goes_to_bed; sound_{cause}; afraid_night")
    if w.hero_is("shy", "greedy", "proud") and w.chance(0.5):
        w.play("hides_under_blanket")
        if w.chance(0.5):
            w.play("paragraph; no_sleep; lesson fear_not; close")
            return
        w.play("elder_comes b=e")
    w.play(f"paragraph; takes_light; listen; cause_{cause} c=e; pay cause; feature Twist; paragraph")
    w.play("laugh_at_fear; lesson fear; close")


# A few days, or one


def picnic(w: StoryWorld) -> None:
    """A day out with food, and clouds that were there from the start."""
    w.bind(o=w.thing("e"), p=w.place(w.pick("TWO")), q=w.named_thing("umbrella"))
    w.play("begin; meet_friend; set a has o; plan_picnic; clouds b=e o=q; plant clouds; want o is eaten")
    wise = w.hero_is("careful", "clever", "patient", "gentle") or w.chance(0.4)
    w.play("set a has q; take_umbrella o=q" if wise else "leave_umbrella o=q")
    w.play("paragraph; go_two; detour")
    helped = w.chance(0.35) and good_deed(w)
    w.play("rain_starts; pay clouds; paragraph")
    if wise:
        w.play("under_umbrella o=q; eat_together; lesson listen")
    elif helped:
        w.play("helper_shelter c=d; pay deed; eat_together; lesson deed")
    elif w.chance(0.5):
        w.play("run_for_cover; eat_together; lesson together")
    else:
        w.play("food_wet")
        if w.chance(0.5):
            w.play("blame o=q; feature Conflict")
        w.play("lesson listen_not")
    w.play("close b")


def hurt(w: StoryWorld) -> None:
    """A hurt animal gets well in a box; then it wants to go home, and the hero wants it to stay."""
    w.bind(b=w.elder, c=w.stranger(), o=w.thing("s"), p=w.place(), s=w.spot("big"))
    w.play("begin; owns; paragraph; go; set c at p; find_hurt; carry_home p=h; bed_in_spot; plant cared")
    w.play("want c feels free; paragraph; feed_days; well_again; wants_to_keep; feature Conflict")
    if w.hero_is("greedy", "proud") and w.chance(0.6):
        w.play("keeps_it; paragraph; sad_animal; lesson free_not; close")
        return
    w.play("sets_free; paragraph")
    if w.chance(0.6):
        w.play("loses_thing_there; animal_brings; pay cared; lesson deed; close")
    else:
        w.play("animal_visits; pay cared; lesson free; close")


def make(w: StoryWorld) -> None:
    """Something is to be made by hand; one part lies in a known spot, one must be asked for, one is missing."""
    n, o = w.neighbour(), w.thing("h")
    s = w.spot(side="inside" if w.chance(0.7) else "outside")
    w.bind(n=n, o=o, s=s, p=w.place(), x=MADE_OF[o.noun][0], y=MADE_OF[o.noun][1])
    w.play("begin; wants_to_make; want b has o; told_where b=e; paragraph; first_ask b=n")
    w.play("favour_first b=n", x=w.pick(CHORES))
    if w.chance(0.4):
        w.play("detour")
    w.play("home p=h; paragraph; where_was_it; work_hard")
    if w.hero_is("careless", "proud", "merry") and w.chance(0.6):
        w.play("made_badly")
        if w.chance(0.5):
            w.play("throws_away; lesson keep_trying_not; close")
            return
        w.play("try_again b=e")
    else:
        w.play("made_well")
    w.play("paragraph; give_made")
    w.play("lesson keep_trying" if w.chance(0.5) else "lesson giving")
    w.play("close")


def locked(w: StoryWorld) -> None:
    """A key is found. What does it open? Somebody once said it, and the hero listened or did not."""
    w.bind(o=w.named_thing("key", KEY_LOOKS), q=w.thing("v"), s=w.spot("lock"), r=w.spot("lock"), p=w.place())
    w.play("begin; locked_spot b=e; set q at s; paragraph; go")
    if w.chance(0.5) and good_deed(w):
        w.play("key_from c=d; pay deed")
    else:
        w.play("key_found")
    w.play("want a has q; home p=h; paragraph; try_wrong s=r; remember_locked b=e")
    if w.chance(0.8):
        w.play("opens; paragraph; elder_tells b=e o=q; lesson listen_good")
    else:
        w.play("key_breaks; never_known; lesson gentle_hands")
    w.play("close q")


PLOTS = (
    lost, hidden, stuck, broken, borrowed, trade, promise, newcomer, share, race, mystery, hide_and_seek, seed, woods,
    delivery, noise, picnic, hurt, make, locked,
)  # fmt: skip
