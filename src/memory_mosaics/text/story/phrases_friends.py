"""Phrases of the plots between two."""

TEXT = """
== promise_bring
{a} promised {b.obj} to bring {o} to {p} [at noon|after lunch|before sunset].
"I will bring my {o.n} to {p} [at noon|after lunch|before sunset]," {a} said to {b.obj}. "I promise."
"Will you bring your {o.n} to {p}?" asked {b.who}. "Yes," said {a.who}. "I promise, {b.name}."
[It was a deal|They shook hands on it]: {a} would bring {o} to {p}, and {b} would be there.
== tempted
On the way to {p}, {a} met {c.obj}. {C.he} [invited {a.him} to come along|was on {c.his} way] to {r}, where [there \
was a show|a clown was giving out cake].
"Come with me to {r}!" called {c.who}. "[There is a puppet show|There are free pancakes|They have a new slide]!"
On the road stood {c.who} and [waved|grinned]. {C.he} was going to {r} to [fly lanterns|see a bear dance|ride a \
pony] and wanted company. {P} could wait.
{c} [came by on a cart|crossed {a.pos} way]. {C.he} had two tickets for a [magic show|boat ride] near {r}, and {p} \
was in the other direction.
== give_in
{a} forgot {a.his} promise and went [along|with {c.obj}] to {p}. It was [so much fun|great fun].
"Just for a minute," [thought|said] {a.who}, and went along to {p}. But a minute \
[became two hours|turned into an hour].
{a} [looked left, then right|bit {a.his} lip]. Then {a.he} followed {c.obj} to {p}, and the promise [flew out of \
{a.his} head|was forgotten].
== waiting
Meanwhile, {b} waited {p.at}. {B} [looked down the road|counted the birds|walked up and down], but nobody came.
{p.at}, {b} sat on a stone and waited and waited. [The shadows grew long|It got cold].
And {b}? {B} stood {p.at} and [looked at every face that came by|asked the birds if they had seen a friend]. \
[None|No friend] came.
== remember_promise
Then {a} saw {o} in {a.his} bag, and {a.he} [turned cold|jumped up]. The promise! {B} was waiting at {p*}!
When the fun was over, {a} [felt something in {a.his} bag|looked in {a.his} bag]. {O}! {A} had promised to bring it \
to {p*}.
"Oh no!" cried {a.who}. "I promised to bring my {o.n} to {p*}!"
[The bag felt heavy|Something in the bag bumped against {a.his} leg]. It was {o}! And {b} was still at {p*}, alone.
== run_late
{a} ran [as fast as {a.he} could|without stopping]. {B} was still there, but {b.he} did not smile.
{a} [ran and ran|did not stop once]. There sat {b.who}, with {b.his} back to the road.
== quarrel_late
"You promised!" said {b.who}. "I waited for so long!" "Do not be so angry," said {a.who}, and that made it worse.
{b} was [hurt|angry]. {B} had waited all that time, and {b.he} told {a.obj} so [in a loud voice|with tears in \
{b.his} eyes].
== sorry_give
{a} [took a deep breath|looked down] and said sorry. Then {a.he} gave {b.obj} {o}[, to keep for a week|, for as long \
as {b.he} wanted].
"You are right. I forgot, and I am sorry," said {a.who}. "Here is my {o.n}. You can keep it for a week."
== too_late_promise
{a} ran [as fast as {a.he} could|without stopping], but {p.at} there was nobody. {B} had gone home.
But when {a.he} got there, {a} found only footprints. {B} had [gone home sad|given up and left].
== alone_with
{a} stood there with {o} and nobody to show it to. [The next day, {b} did not want to play with {a.obj}|{B} did not \
come again].
Now {a} had {o} but no friend to share it with. {B} [was hurt|would not forget that day so soon].
== say_no
{a} would have loved to go along! But {a.he} thought of {b.obj} and shook {a.his} head.
"I cannot," said {a.who}. "I made a promise to {b.name}." {C} [was surprised|nodded].
== go_on
{a} [went on|walked on|ran on] to {p}.
[Without another look|Humming a tune|With quick steps], {a} went on to {p}.
[It was not far to|Only one hill stood between {a.obj} and] {p}, and {a} [ran the rest of the way|walked on].
== keep_promise
{b} was already waiting {p.at}. "I knew you would come!" said {b.name}, and {a} gave {b.him} {o}.
And there was {b.who}, right on time. {A} gave {b.obj} {o}, and {b.pos} [face was like the sun|eyes shone].
{b} [jumped off a wall|came running], and {a} [handed over|put down] {o}. A word is a word!
== play_three
After that, they went to find {c.obj}, and all three [played until it was dark|had fun together].
== play_after
After that, they [played|ran about|built a den] together [until it was dark|for hours|and forgot everything else].
== see_newcomer
There stood {c.who}, all alone. {C.he} was new [in town|here] and [watched the others|did not know anyone].
{a} noticed {c.obj}. {C.he} sat [under a tree|on a wall] by {c.himself} and [drew in the sand|looked sad].
"Who is that?" asked {a.who}. It was {c.who}, who was new and did not know anyone.
[At the edge|A bit apart], there was somebody {a} [did not know|had never seen before]: {c.who}. {C.he} [looked at \
{c.his} shoes|did not say a word].
== skill_climb
{c} looked up at the trees [and climbed one for fun|and swung from a branch], as [light|quick] as a monkey.
== skill_knots
{c} had a piece of string and tied [knots|one knot after another] with quick fingers.
== skill_sing
{c} hummed a little tune to {c.himself}. It was [soft and lovely|so pretty that the birds stopped to listen].
== skill_dig
{c} was digging a hole in the sand, faster than [anyone|a dog] could.
== too_shy
{a} wanted to say hello, but {a.his} [tongue|mouth] would not move. [{A} was too shy|It was hard to begin].
== friend_refuses
"We do not need anybody else," said {b.who}. "{c.name} cannot play with us." {A} did not like that.
{b} did not want {c.obj} to play with them. {A} [frowned|thought that was mean], and they [argued|quarreled] about it.
== say_nothing
{a} [said nothing|looked away]. {A} did not want {b.obj} to be angry.
"Maybe you are right," said {a.who} [slowly|quietly], and looked away.
== newcomer_leaves
{c} waited a little longer. Then {c.he} [stood up|turned around] and went away with {c.his} head down. {A} felt \
[bad|ashamed].
After a while, {c} went home. {A} [saw the tears|saw {c.his} sad face] and wanted to run after {c.him}, but {a.he} \
did not.
== invite
But {a} walked over [anyway|all the same] and held out {o}. "Do you want to play with us, {c.name}?" "Yes!" said \
{c.name}.
[Then {a} was brave|{A} made up {a.his} mind]. {A} went over to {c.obj} and [showed {c.him}|held out] {o}. {C.his} \
face lit up.
[Three steps|It was only three steps], and {a} stood in front of {c.obj}. {O} was [big enough for all|soon in \
{c.his} hands], and {c} [nodded and beamed|laughed for the first time].
== need_climb
They played until {o} flew [onto a roof|up into a tall tree], and nobody could reach it.
== use_climb
But {c} could climb! [In no time|Quick as a squirrel], {c.name*} was up there and [threw it down|brought it back].
"Leave it to me," said {c.who}. [One, two, three|Up and up {c.he} went], and soon {o} was back in {a.pos} hands.
== need_knots
They played until {o} [came apart|broke in two]. {A} held the two parts and was sad.
== use_knots
But {c} could tie knots! With {c.his} string, {c.he} tied it together, [as strong as before|good as new].
"Give it to me," said {c.who}. {C} took out {c.his} string and tied it so well that it held.
== need_sing
They played until {b} fell and [hurt {b.his} knee|scraped both hands]. {B} cried and nothing helped.
== use_sing
But {c} could sing! {C} sang {c.his} soft tune, and slowly {b} stopped crying and smiled.
"Listen," said {c.who}, and began to sing. After the second song, {b} [laughed again|forgot the pain].
== need_dig
They played until a pile of sand fell down and {o} was [deep under it|gone under it].
== use_dig
But {c} could dig! Sand flew left and right, and soon {c.he} held {o} in {c.his} hands.
"Step back," said {c.who}, and dug [so fast that sand flew|like a mole]. Soon {o} was there again.
== friend_sorry
{b} [turned red|looked at the ground]. "I was mean to you, {c.name}," said {b.name}. "Please stay and play with us."
{b} was ashamed and asked {c.obj} to come again the next day.
== got_treat
{b} gave {a.obj} {o.a} to take along.[| It smelled so good.]
"Here is {o.a} for you," said {b.who}. {A} put it in {a.his} bag.
{a} had {o.a}, fresh from the kitchen. {B} had packed it.
{a} [could hardly wait to eat|had waited all week for] {o.a}. It came from {b.who}.
== friend_hungry
"I am so hungry," said {b.who}. "May I have some of your {o.n}?"
{b} had not had breakfast and [looked at|could smell] {o}. {B.his} tummy [growled|made a funny noise].
[What was that noise?|Grrr!] It was {b.pos} empty tummy. {B} [looked at {o} with big eyes|had forgotten to bring food].
== share_half
{a} broke {o} in two and gave {b.obj} the bigger half. They ate [every crumb|and licked their fingers].
"Of course," said {a.who}. "Half for you, half for me." They [sat down|found a stone to sit on] and ate {o} together.
[One piece here, one piece there|It was easy]: {a} gave {b.obj} half, and {o} was gone [in a minute|before the birds \
could come].
== hero_needs
Later, {a} [hurt {a.his} foot|got very tired] and [could not go on|had to sit down]. {A} was weak and hungry.
They walked [far|for a long time], and {a} got so [hungry|tired] that {a.he} had to sit down.
== shared_back
{b} opened {b.his} bag. There was {q.a}! "You shared with me, so I share with you," said {b.name}.
{b} had {q.a} left and gave {a.obj} half, because {a} had shared, too. Soon {a} felt strong again.
== refuse_share
"No," said {a.who}. "It is all mine." {B} [was hurt|looked away] and said nothing more.
But {a} held it tight. {A} did not want to give away even a crumb, and {b} was [sad|hurt].
{a} [turned {a.his} back|put both hands over it]. [None for you|Not one bite], said {a.his} face. {B} [went \
quiet|swallowed].
== lose_treat_drop
{a} [walked ahead|climbed on a wall] to eat {o} alone. But {a.he} [stumbled|slipped], and it fell [into the mud|into \
a puddle].
== lose_treat_crow
{a} sat down alone to eat {o}. [Whoosh! A|But then a] black [crow|raven] [came down|flew by], grabbed it, and was gone.
== lose_treat_dog
{a} [hid behind a tree|turned away] to eat {o} alone. But a big dog [came from behind|was faster] and [snapped it \
up|ate it all].
== friend_shares_anyway
{b} could have laughed. But {b.he} took {q.a} out of {b.his} bag, broke it in two, and gave {a.obj} half.
"You can have some of mine," said {b.who}, and held out {q.a}. {A} [could not believe it|turned red]. "I am sorry, \
{b.name}," said {a.who}.
== hungry_home
{a} [was hungry now|had nothing left], and {a.he} did not dare to ask {b}.
Now {a} was hungry, too. {B} [had gone ahead|was not in the mood to talk].
"""
