"""Phrases of the plots about what belongs to somebody else: broken, borrowed, traded."""

TEXT = """
== dear_thing
{b} had {o.a}. It was [very old|a gift from long ago|the nicest thing in the house].
In the house there was {o.a}. It belonged to {b.who}, who [loved it dearly|was very proud of it].
{b} [loved|liked to look at] {b.his} {o.full}. [It came from far away|It was older than the house].
[Nobody was allowed to touch|Everybody walked softly around] {o.a} that belonged to {b.who}.
== near_edge
It stood [close to|very near|right at] the edge of the [table|shelf]. [Nobody thought about it|{B} always meant to \
move it].
That day, {a} [looked at it|took it down to look at it] and put it back a little too near the edge of the [shelf|table].
"Do not run near it," {b} had said, because it stood [so close to|right at] the edge of the [shelf|table].
[Somebody had dusted|Somebody had moved things], and since then it stood [much too near|right on] the edge of the \
[shelf|cupboard].
== play_inside
It [rained|was cold outside], so {a} [played in the living room|ran around in the house|built a tower of chairs].
{a} [jumped from chair to chair|pretended to be a horse|threw a ball at the wall] [inside|in the house].
{a} [was a pirate that day, and the sofa was the ship|danced through all the rooms|slid over the floor in socks].
[The rug became a lake|The stairs became a mountain] that day, and {a} [jumped from island to island|climbed it ten \
times].
== pet_bumps
{c} [chased a fly|wanted to play, too|came running], [bumped into the table|hit the table leg], and crash! {O} lay \
in pieces.
[Then|Suddenly], {c} ran [past|by] and bumped into something. {O} [fell|came down] from the edge and broke.
{c} [saw a moth|heard a bell] and [jumped|leaped]. [One paw|One tail] too many! {O} fell off the edge and [broke|burst].
== hero_bumps
[Then|Suddenly], {a.pos} [elbow|foot|arm] hit something. {O} [tipped|slid] over the edge and broke [with a \
crash|on the floor].
Crash! {A} [had bumped against it|turned around]. {O} had fallen from the edge and was broken.
[One step too far|One jump too many]! The [shelf|table] shook, {o} rocked on the edge, fell, and broke.
== look_at_pieces
{a} [looked at the pieces|stood very still]. {A.his} heart [beat fast|was heavy]. What now?
"Oh no," {a} [whispered|said]. "What will happen now?"
It was very quiet. {A} [picked up the pieces|could hear {a.his} own heart].
{a} [knelt down|touched the pieces]. [They would not fit together|A minute ago it was one thing], and {a.he} \
[swallowed|felt sick].
== confess
{a} went to {b.obj} [at once|with wet eyes|with red cheeks] and told {b.him} [everything|what had happened to {o}].
"I have to tell you something," {a} said to {b.obj}. "Your {o.n} is broken. I am so sorry."
{a} [did not wait|did not hide]. With a beating heart, {a.he} went to {b.obj} and said it: {o} was broken.
== forgive
{b} was quiet for a moment. Then {b.he} [hugged {a.obj}|took {a.pos} hand], because {a} had told the truth.
"I am sad about it," said {b.who}, "but I am glad that you told me the truth."
"Thank you for telling me, {a.name}," said {b.who}. "You are more important than any thing."
[First {b} sighed|{B} took a long breath]. Then {b.he} [said that people matter more than things|stroked {a.pos} \
hair], and all was good.
== hide_pieces
Nobody had seen it. {A} [quickly picked|picked] up the pieces and hid them {s}.
{a} was afraid. {A} put the pieces {s} and [closed it|walked away on tiptoe].
[Quick, before somebody comes|Nobody must see that]! {A} swept the pieces together and put them {s}.
== elder_asks
"Where is my {o.n}?" asked {b.who} [at dinner|in the evening|a little later].
[In the evening|Later], {b} came in and [saw the empty place|asked for {o}].
{b} [stopped in the door|looked at the empty place]. "Has anyone seen my {o.n}?"
== lie
"I do not know," said {a.who}, and [looked at the floor|{a.his} ears turned red].
{a} said that {a.he} knew nothing about it. That was a lie, and [it felt bad|{a.his} tummy hurt].
"Maybe somebody stole it," said {a.who}. {A.his} face was [hot|red].
{a} [shook {a.his} head|shrugged] and said nothing about the pieces. That was a lie without words.
== bad_night
[That night|All night], {a} could not sleep. {A} [saw the pieces in {a.his} mind|thought of {o} again and again].
{a} [did not want to eat|did not want to play]. The lie [sat in {a.his} tummy like a stone|would not go away].
[The pillow was too hot|The bed was too hard], [the night was too long|the clock was too loud]. It was the lie that \
kept {a.obj} awake.
== confess_late
[Then|At last] {a} went to {b.obj} and told the truth: the pieces of {o} were {s*}.
"I lied," {a} said to {b.obj}. "It is broken, and I put the pieces {s*}."
== found_pieces
The next day, {b} [was looking for a spoon|was cleaning up]. And what did {b.he} find {s*}? The pieces of {o}!
A day later, {b} [came across|found] the pieces {s*}. {B} knew right away who had put them there.
== no_trust
"You should have told me," said {b.who}. "How can I believe you now?" {A} had no answer.
{b} was not angry about {o}, but about the lie. [It took a long time until {b.he} trusted {a} again|{A} was ashamed].
{b} did not shout. {B} was only very sad about the lie, and that was worse.
== mend_together
Together {a.who} and {b.who} [glued it|put the pieces together], piece by piece, until {o} was whole again.
They got some glue. {A} held the pieces, {b} pressed them together, and {o} [was as good as new|stood there again].
[It took a whole evening|It took much glue and some time], but {a.who} and {b.who} [got it done|did it], and {o} \
[stood in its place|was whole] again.
== mended_by
They took {o} to {c.who}, who was good at fixing things. [The next day|By evening], it was whole again.
{c} had [strong glue|clever hands] and [fixed|mended] {o}. Only a thin line was left.
{c} [put on {c.his} glasses|said it would take a day], [and soon|and then] {o} was whole, [only a bit shorter|with \
one tiny crack].
== wish_borrow
{a} [wanted to play with it so much|had never seen anything so nice]. {A} asked [if {a.he} could have it for a \
day|to borrow it].
"May I borrow it?" asked {a.who}. "Only for one day! Please, {b.name}!"
{a} [looked at it from the left and from the right|held {a.his} breath]. [Could {a.he} have it, just until \
tomorrow?|To have it for only one day would be great!]
== lend_wet
{b} [thought about it|waited a moment] and gave {a.obj} {o}. There was only one rule: it must not get wet.
"All right, {a.name}," said {b.who}, "but keep it away from water. It must not get wet." And {a.who} took {o}.
{b} [held it a bit longer|gave it away slowly] and told {a.obj} the rule: it must not get wet. Then {a} had {o}.
== lend_dirty
{b} [thought about it|waited a moment] and gave {a.obj} {o}. There was only one rule: it must not get dirty.
"All right, {a.name}," said {b.who}, "but keep it out of the mud. It must stay clean." And {a.who} took {o}.
{b} [held it a bit longer|gave it away slowly] and told {a.obj} the rule: it must not get dirty. Then {a} had {o}.
== take_care
{a} [held it with both hands|wrapped it in a cloth|put it in a safe pocket] and [did not let it out of \
sight|remembered the rule].
When others ran and splashed, {a} [sat with {o} on a dry wall|held {o} high]. {A} had given {a.his} word.
{a} [carried {o} like an egg|looked after {o} like a hen after her chick] and [thought of the rule|kept far away \
from all trouble].
== give_back_whole
[The next day|In the evening], {a} gave {b.obj} {o} back, as clean as before.
"Here is your {o.n}," {a} said to {b.obj}. "I took good care of it." And it was true.
[Not a drop, not a spot|Not a scratch]: {a} put {o} back into {b.pos} hands.
== lend_again
"You can borrow it any time," said {b.who}. {A} was proud.
{b} looked at it [from all sides|closely] and smiled. Next time, {a} would not even have to ask.
== spoil_wet
{a} [forgot the rule|only wanted to see if it could swim|leaned over the water], and splash! {O} fell in. It was wet \
through and through.
[A big wave|A jumping dog] splashed water all over {o}. {A} had [held it too close to the water|not been careful].
== spoil_dirty
{a} [forgot the rule|ran too fast|did not look], and plop! {O} fell into the mud. It was dirty all over.
{a} [slipped|jumped over a puddle], and {o} landed in the mud. Nothing on it was clean anymore.
== give_back_spoiled
[Slowly|With a red face], {a} took {o} back to {b.obj}. {B} [stared at it|could not believe {b.his} eyes].
"I am back," {a} said [quietly|in a small voice]. {B} saw {o} and [stopped smiling|turned pale].
{a} [hid it behind {a.his} back|walked more and more slowly]. But {b} [saw it at once|asked for it], and there was \
{o}, [a sad sight|in a bad state].
== quarrel_wet
"I told you not to get it wet!" [shouted|cried] {b.who}. "You never listen!" "It was not my fault!" [shouted|said] \
{a.who}.
{b} was [angry|so angry], because {a} had been told to keep it dry. {A} got angry, too, and they [shouted|yelled] at \
each other.
== quarrel_dirty
"I told you to keep it clean!" [shouted|cried] {b.who}. "You never listen!" "It was not my fault!" [shouted|said] \
{a.who}.
{b} was [angry|so angry], because {a} had been told to keep it clean. {A} got angry, too, and they [shouted|yelled] \
at each other.
== clean_up
[At home, {a} thought about it|Then {a} felt sorry]. {A} [washed and dried|cleaned] {o} until it [looked new|was \
fine again].
{a} asked if {a.he} could try to fix it. {A} cleaned {o} [for two hours|until {a.his} hands hurt], and it was good \
again.
[Water, soap, a soft cloth|A brush and a lot of patience]: {a} [worked on {o} all evening|did not stop] until it was \
fine again.
== offer_own
And {a} gave {b.obj} something of {a.his} own: {q.a}. "This is for you, {b.name}. I am sorry."
"I am sorry," said {a.who}. "It was my fault. Please take my {q.n}." {B} [took it slowly|was surprised].
And because {a} was sorry, {a.he} gave {b.obj} {a.his} own {q.full}.
{a} [thought of what would hurt to give away|went to {a.his} room]. Then {a.he} put {q.a} in {b.pos} hands, as a way \
to say sorry.
== no_sorry
But {a} did not say sorry. {A} [turned around|shrugged] and [went away|kicked a stone]. {B} did not lend {a.obj} \
anything again.
"It is only a thing," said {a.who}. {B} [took it and left|shook {b.his} head]. {A} did not say sorry.
== start_with
[In {a.his} bag|With {a.obj}], {a} had {o.a}[| for lunch| from home].
{a} had {o.a}, [and nothing else|and {a.he} took it along].
{a.pos} [pockets were empty|purse was empty], but {a.he} had {o.a}.
[All|The only thing] {a} had that day was {o.a}.
== see_for_trade
{p.at}, {a} saw {b.obj} with {o.a}. {A} wanted it [at once|so much|more than anything].
{a} met {b.obj} {p.at}. {B.he} had {o.a}, and {a} [could not look away|wished for it with all {a.his} heart].
[What was that|What did {b.who} have there], {p.at}? It was {o.a}! {A} [knew|felt]: that was it.
{b} stood {p.at} with {o.a} [under {b.his} arm|in {b.his} hands]. {a.pos} heart [jumped|beat faster].
== will_trade_for
"You can have it," said {b.who}, "if you bring me {q.a}."
{b} did not want money. {B} wanted to trade {o} for {q.a}.
"I need {q.a}," said {b.who}. "Bring me one, and {o} is yours."
{b} [rubbed {b.his} chin|laughed]. [Not for money|Not for all the money], {b.he} said, but for {q.a}, yes.
== ask_around
{a} asked [here and there|everyone]. [At last|In the end], {p.at}, {a.he} found {c.who}, who had just that: {q}.
[Who had one|Where could {a.he} get one]? {A} went on to {p}. There was {c.who} with {q}!
[Not here, not there|Door after door], until {a} met {c.obj} {p.at}. And what did {c.he} have? {Q}, of all things!
== wants_yours
{b} would give it away, but {b.he} wanted {q} in return.
"I will give it to you for your {q.n}," said {b.who}.
"Mmm, what do you have there?" asked {b.who}. "I would trade it for your {q.n}."
"[Hm|Well|Let me see]," said {b.who}. "Not for nothing. But your {q.n}, that I would take."
== will_not_trade
But {a} did not want to give {o} away. {A} wanted to have everything [for {a.himself}|at once].
"No!" said {a.who}. "The {o.n} is mine, and I keep it!" {B} shrugged and turned away.
== keep_and_regret
So {a} kept {o} and got nothing else. All the way home {a.he} thought of the {q.adj*} {q.noun}.
[On the way home|In the evening], {a} looked at {o}. It was nice, but it was not the {q.adj*} {q.noun} {a.he} had \
wished for.
== swap
{a} [thought about it|nodded] and gave {b.obj} {q}. Now {a.he} had {o}.
"It is a deal," said {a.who}. [They shook hands|They traded], and {a} walked off with {o}.
[One hand gave, one hand took|It was quickly done]: {q} for {b.obj}, {o} for {a.obj}.
== back_to_trader
{a} ran back to {p*}, where {b} was. "Here is the {q.adj*} {q.noun} you wanted!" said {a.who}.
Quickly, {a} took {q} to {b.obj}, back to {p*}.
{a} did not lose time. Back at {p*}, {a.he} [put {q} in front of {b.obj}|showed {q} to {b.obj}].
== too_late
"Oh dear," said {b.who}. "{C.who} came by an hour ago, and I gave it away." {O} was gone.
But {b} [looked sad|shook {b.his} head]. Just before, {c} had come along and traded for {o}. {A} was too late.
== last_swap
{b} [laughed|was pleased] and kept {b.his} word. {A} gave away {q} and got {o} at last.
"A deal is a deal," said {b.who}, and gave {a.obj} {o}. {A} [shouted with joy|held it up to the sun].
[And so|Now] {o} [changed hands|got a new owner]. {A} [could hardly believe it|held it with both hands].
"""
