"""The rules of the story world: what must hold for an event to happen, and what holds after it.

Kinds of events that change nothing are not listed; how conditions are written is told in world.py.
"""

_RULES = """
go: -> a at p
go_two: -> a at p & b at p
go_back: -> a at p
go_on: -> a at p
home: -> a at p
own: a has o -> a feels happy
gift_before: a has o -> a feels happy
notice_missing: not a has o -> a feels sad
sad_missing: a feels sad -> a feels sad
set_down: a has o & a at p -> o at p
find_there: a at p & o at p -> a has o & a feels happy
kept_safe: a at p & c at p & c has o -> a has o & a feels happy
gone_for_good: a at p & not o at p & not a has o -> a feels sad
birthday_soon: a has o -> a feels happy
hide: a has o -> o at s & a knows s
seen_hiding: a knows s -> c knows s
tell_secret: a knows s -> c knows s
ask_witness: c knows s & o at s -> a knows s
remembered_where: a knows s & o at s -> a feels happy
fetch_hidden: a knows s & o at s -> a has o & a feels happy
mouse_ate: o at s -> o is eaten & not o at s & a feels sad
give_present: a has o -> b has o & a feels happy & b feels happy
play_with: a has o & a at p & b at p -> a feels happy
blown_up: a has o & a at p -> o at p & o is stuck & a feels sad
into_water: a has o & a at p -> o at p & o is afloat & a feels sad
sad_stuck: o is stuck & a feels sad ->
sad_afloat: o is afloat & a feels sad ->
high_climb_works: o is stuck & o at p -> o is whole & a has o
high_friend_works: o is stuck & o at p -> o is whole & a has o
high_shake_works: o is stuck & o at p -> o is whole & a has o
high_stick_works: o is stuck & o at p -> o is whole & a has o
high_helper_works: o is stuck & c owes a -> o is whole & a has o
water_friend_works: o is afloat & o at p -> o is whole & a has o
water_wait_works: o is afloat & o at p -> o is whole & a has o
water_stick_works: o is afloat & o at p -> o is whole & a has o
water_helper_works: o is afloat & c owes a -> o is whole & a has o
get_back: a has o & o is whole -> a feels happy
give_up: not a has o -> a feels sad
nobody_helps: not c owes a & not a has o -> a feels sad
trouble_thorn: c at p -> c feels hurt
trouble_bush: c at p -> c feels stuck
trouble_back: c at p -> c feels stuck
trouble_thirst: c at p -> c feels weak
trouble_wet: c at p -> c feels cold
help_thorn: c feels hurt -> c owes a & c feels happy
help_bush: c feels stuck -> c owes a & c feels happy
help_back: c feels stuck -> c owes a & c feels happy
help_thirst: c feels weak -> c owes a & c feels happy
help_wet: c feels cold -> c owes a & c feels happy
pass_by: not c owes a -> c feels sad
dear_thing: b has o -> b feels happy
pet_bumps: not o is broken -> o is broken & a feels afraid
hero_bumps: not o is broken -> o is broken & a feels afraid
look_at_pieces: o is broken & a feels afraid -> a feels sad
confess: o is broken -> b knows a & a feels brave
hide_pieces: o is broken -> o at s
lie: not b knows a & o is broken -> a feels bad
bad_night: a feels bad -> a feels sorry
confess_late: a feels sorry & o at s -> b knows a
found_pieces: o at s & not b knows a -> b knows a & not b trusts a
no_trust: not b trusts a -> a feels sad
forgive: b knows a -> b trusts a & a feels happy
mend_together: o is broken & b trusts a -> o is whole & a feels happy
mended_by: o is broken -> o is whole & a feels happy
wish_borrow: b has o & b trusts a -> a feels eager
lend_wet: b has o & b trusts a -> a has o & a owes b
lend_dirty: b has o & b trusts a -> a has o & a owes b
take_care: a has o -> a feels proud
give_back_whole: a has o & o is whole & a owes b -> b has o & not a owes b & a feels happy
spoil_wet: a has o & a owes b -> o is wet & a feels sad
spoil_dirty: a has o & a owes b -> o is dirty & a feels sad
give_back_spoiled: a has o & not o is whole -> b has o & b feels angry & not b trusts a
quarrel_wet: b feels angry -> a feels sad
quarrel_dirty: b feels angry -> a feels sad
clean_up: not o is whole -> o is whole
offer_own: a has q -> b has q & b feels happy
make_up: -> a feels happy & b feels happy & b trusts a & a trusts b
no_sorry: not b trusts a -> a feels sad
see_for_trade: b has o & b at p -> a at p
will_trade_for: b has o & not b has q -> a knows q
ask_around: c has q & a knows q & c at p -> a at p
wants_yours: b has o & a has q ->
swap: b has o & a has q -> a has o & b has q
last_swap: b has o & a has q -> a has o & b has q & a feels happy
will_not_trade: a has o & b has q -> a feels proud
keep_and_regret: a has o & not a has q -> a feels sad
back_to_trader: a has q & b at p -> a at p
too_late: c has o & not b has o -> a feels sad
promise_bring: a has o -> a owes b
give_in: -> a at p
waiting: a owes b -> b at p & b feels sad
remember_promise: a owes b & a has o -> a feels sorry
run_late: b at p & a owes b -> a at p & b feels angry
quarrel_late: b feels angry & a owes b -> a feels sad
sorry_give: a has o & a owes b -> b has o & not a owes b
too_late_promise: b at p & a owes b -> a at p & not b at p
alone_with: a has o & a owes b -> a feels sad & not b trusts a
keep_promise: a has o & a owes b & b at p -> b has o & not a owes b & a feels happy & b feels happy
see_newcomer: a at p & c at p -> c feels lonely
invite: c feels lonely -> c trusts a & c feels happy
newcomer_leaves: c feels lonely -> not c at p & a feels sad
need_climb: a has o & c trusts a -> o is stuck
use_climb: o is stuck & c trusts a -> o is whole & a feels happy
need_knots: a has o & c trusts a -> a feels sad
use_knots: a feels sad & c trusts a -> a feels happy
need_sing: c trusts a -> b feels sad
use_sing: b feels sad & c trusts a -> b feels happy & a feels happy
need_dig: a has o & c trusts a -> o is buried
use_dig: o is buried & c trusts a -> o is whole & a feels happy
got_treat: a has o -> a feels happy
friend_hungry: a has o -> b feels hungry
share_half: a has o & b feels hungry -> o is eaten & not a has o & b feels happy & b owes a
hero_needs: b owes a -> a feels weak
shared_back: b owes a & b has q & a feels weak -> q is eaten & not b has q & a feels happy
refuse_share: a has o & b feels hungry -> b feels sad
lose_treat_drop: a has o -> not a has o & o is dirty & a feels sad
lose_treat_crow: a has o -> not a has o & o is eaten & a feels sad
lose_treat_dog: a has o -> not a has o & o is eaten & a feels sad
friend_shares_anyway: a feels sad & b has q -> q is eaten & not b has q & a feels happy & b feels happy
hungry_home: a feels sad -> a feels sad
race_called: c has o & c at p ->
rival_falls: -> b feels hurt
stop_and_help: b feels hurt -> b feels happy & b owes a
judge_gives: c has o & b owes a -> a has o & a feels happy
run_on: b feels hurt -> b feels sad
win_alone: c has o & b feels sad -> a has o & a feels sad & not b trusts a
hero_falls: -> a feels hurt
rival_wins: c has o & a feels hurt -> b has o & a feels sad
win_fair: c has o -> a has o & a feels happy
prize_shared: a has o -> b feels happy
vanished: a has o -> not a has o & a feels angry
suspect: a feels angry -> not a trusts b
quarrel_accused: not a trusts b -> not b trusts a & b feels sad
thief_home: -> c has o & a feels sorry
no_apology: not b trusts a -> a feels sad
apology: not b trusts a & a feels sorry -> a feels sad
asleep: -> a feels happy & a knows c
went_home: not a knows c -> a feels sad
friend_watered: o is seed -> o is whole & a feels happy & a owes b
seed_died: o is seed -> o is dead & a feels sad
it_grew: o is seed -> o is whole & a feels happy
show_grower: o is whole -> b feels happy
lost_afraid: -> a feels afraid
light_lamp: a has o & a feels afraid ->
think_marks: a feels afraid -> a feels calm
marks_back: a feels calm -> a feels eager
home_safe: a feels eager -> a at p & a feels happy
found_by: -> a at p & a feels happy
night_outside: -> a feels sad
sent_with: a has o -> a owes c
smells_good: a has o -> a feels hungry
eats_it: a has o & a feels hungry -> o is eaten & not a has o
arrive_empty: -> a feels sorry
right_door: -> a feels happy
deliver: a has o & a owes b -> b has o & not a owes b & a feels happy
deed_was_friend: c owes a -> a feels happy
reward: -> a has o & a feels happy
says_hungry: o is eaten & a owes b -> a feels sad & b feels sad
afraid_night: -> a feels afraid
hides_under_blanket: a feels afraid -> a feels afraid
no_sleep: a feels afraid -> a feels sad
takes_light: a has o & a feels afraid -> a feels brave
laugh_at_fear: a feels brave -> a feels happy
take_umbrella: a has o ->
under_umbrella: a has o -> a feels happy
eat_together: a has o -> o is eaten & not a has o & a feels happy & b feels happy
food_wet: a has o -> o is wet & a feels sad
helper_shelter: c owes a -> a feels happy
find_hurt: c at p & a at p -> c feels hurt
carry_home: c feels hurt -> a at p & c at p
bed_in_spot: c feels hurt -> c at s
well_again: c feels hurt -> c feels well
wants_to_keep: c feels well -> a feels sad
keeps_it: c at s & c feels well -> c feels sad
sad_animal: c feels sad -> a feels sad
sets_free: c feels well -> c at p & c feels free & a at p & c owes a
loses_thing_there: a has o & a at p -> o at p & a feels sad
animal_brings: c owes a & not a has o -> a has o & a feels happy
animal_visits: c feels free & c owes a -> a feels happy
told_where: -> a knows s
first_ask: -> a at p
where_was_it: a knows s -> a feels happy
made_badly: -> o is ugly & a feels sad
throws_away: o is ugly -> not a has o & a feels sad
try_again: o is ugly -> o is whole & a has o & a feels happy
made_well: -> o is whole & a has o & a feels happy
give_made: a has o & o is whole -> b has o & a feels happy & b feels happy
locked_spot: -> a knows s
remember_locked: a knows s ->
opens: a knows s & q at s & a has o -> a has q & a feels happy
key_breaks: a knows s & a has o -> o is broken & a feels sad
key_from: c owes a -> a has o
key_found: a at p -> a has o
"""
RULES: dict[str, tuple[str, str]] = {}
for _line in _RULES.strip().splitlines():
    _kind, _, _rule = _line.partition(":")
    _needs, _, _makes = _rule.partition("->")
    RULES[_kind] = (_needs.strip(), _makes.strip())
