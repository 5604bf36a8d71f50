"""Phrases of the plots that go somewhere."""

TEXT = """
== warned_far
"Do not go too far," said {b.who} [every day|that morning].
{b} had told {a.obj} [many times|again and again] not to go too far from home.
There was one rule [in the house|at home], and it came from {b.who}: never go where you cannot see the chimney.
"Stay where I can hear you," {b} [always said|had said], [and {a} had promised|more than once].
== follow
{a} saw a {x} and [ran after it|followed it]. It was [so quick|so pretty] that {a.he} forgot [everything else|the time].
A {x} went by. "Wait for me!" called {a.who}, and ran after it.
What a [lovely|funny] {x}! {A} [had to see where it went|left everything and went after it], [left and right|on and on].
[First three steps, then thirty|Just a little way], {a} went after a {x}. It always stayed [a bit ahead|just out of \
reach].
== pass_marks
They went past {x}, then past {y}, and then past {z}.
First {a.he} came to {x}. Then there was {y}, and at last {z}.
Past {x} they went, around {y}, and over to {z}.
On the left was {x}. A bit further on stood {y}, and behind that {z}.
{a} ran by {x}, turned at {y}, and came to {z}.
== lure_gone
Then the {x} was gone. {A} [looked around|turned in a circle]. Where was home?
[Suddenly|All at once] {a} could not see the {x} anymore. It was [getting dark|very quiet], and {a} did not know \
this place.
[A flash, a rustle|One blink], and the {x} was away. {A} [stopped|stood still]. [Everything looked strange|No house, \
no smoke, no voice].
[Gone|Away it was]! The {x} [had slipped away|was nowhere to be seen], and with it the way home.
== lost_afraid
{a} was lost. [An owl called|A branch cracked|The wind was cold], and {a} was afraid.
"I am lost," {a} whispered, and [a tear ran down {a.his} cheek|{a.his} voice shook].
[Which way|Where now]? {A} [did not know|had no idea]. [The trees looked taller|The shadows got longer], and {a.his} \
legs got weak.
{a} [called|shouted], but [only the wind answered|no one answered]. {A} was lost, and [so small|all alone].
== light_lamp
But {a} had {o} with {a.him}. In its light, everything looked less dark.
{a} took out {o}. [What luck to have it|How good that {a.he} had brought it]! Now {a.he} could see the path.
== wrong_turn
{a} [ran left, then right|just ran], without thinking, and got [deeper and deeper into the woods|even more lost].
{a} had not looked at the way at all, so {a.he} [ran in circles|walked the wrong way].
== search_party
At home, {b} [was worried|looked at the clock]. {B} took a lamp and called {a.pos} name.
"Where is {a.name}?" asked {b.who}, and went out to look for {a.him}.
== found_by
{c} heard [somebody cry|a voice] and found {a.obj} [under a tree|behind a rock]. [Together they walked|{C} took \
{a.him} by the hand and brought {a.him}] home to {b.obj}.
"There you are, {a.name}!" said {c.who}, and carried {a.obj} home to {b.obj}.
== night_outside
But the woods were too big. {A} had to sleep under a tree, cold and alone, until the morning.
Nobody found {a.obj} that night. {A} lay on wet leaves, [hungry and cold|far from {a.his} warm bed], and wished \
{a.he} had listened.
== think_marks
Then {a} [took a deep breath|sat down] and thought of the way {a.he} had come, only backwards.
"Stop crying and think," {a} said to {a.himself}. "What did I pass? I only have to go back."
[Panic does not help|Running does not help], [thought|said] {a.who}. What was the last thing on the way here? And \
what was before that?
== marks_back
First {a.he} looked for {x*}. Yes! After that came {y*}, and then {z*}.
There was {x}! From there {a.he} went on to {y*}, and then to {z*}.
The last thing {a.he} had passed was {x*}. Before that there was {y*}, and before that {z*}.
{a} looked and looked, and yes, there was {x*}! Then {y*} came into view, and at last {z*}.
== home_safe
And behind it was home! {B} [stood at the door|ran to meet {a.him}] and hugged {a.obj} [tight|for a long time].
Now {a} knew the way. At home, {b} [was waiting with hot soup|put a blanket around {a.him}].
"I am home!" {a} [called|shouted]. {B} [hugged {a.obj}|ran out to meet {a.him}]. "I was so worried, {a.name}!"
[A light|Smoke from the chimney], a door, a warm room: home! {B} [did not scold|held {a.obj} and would not let go].
== sent_with
{b} gave {a.obj} {o.a} to take to {c.who}, who was [sick|alone that day].
"Please take this {o.full} to {c.name}," said {b.who}. That was {c.who}, who was sick in bed.
{c} [had a cold|could not go out], so {b} packed {o.a}, and {a} was to take it there.
[An errand|A job] for {a.obj}: {o.a} had to go to {c.who}. {B} [wrapped it up|put it in a bag].
== which_door
"Look for {o.a} near {p}," said {b.who}. "And do not eat any of it."
{c.name} lived near {p}, in the house with {o.a}. "Nowhere else," {b} had said.
The house was near {p}. It was the one with {o.a}.
[How would {a} find it|Which house]? {b.name} [drew a picture|told {a.obj}]: it was near {p}, behind {o.a}.
== smells_good
{o} smelled so good. {A} [opened the bag just a little|took a tiny bite|only wanted to taste it].
"Just one bite," said {a.who}, and [opened the bag|looked at {o}].
== eats_it
One bite became two, and two became three. [Soon|In the end] there was nothing left [but crumbs|at all].
{a} took [another bite|a little more], and another, until {o} was gone.
== arrive_empty
With an empty bag, {a} came to the house with the {q.adj*} door and knocked. {C} opened it [slowly|with a weak smile].
Then {a} stood at the {q.adj*} door with nothing in {a.his} hands. {C} opened.
== says_hungry
"Did you bring me something?" asked {b.who}. "I have not eaten all day." {A} [turned red|did not know what to say].
{b} had hoped for something to eat. {A} had to say that {a.he} had eaten it, and {b} went back to bed hungry.
== wrong_door
{a} did not think and knocked at a house with {q.a}. A [stranger|big dog] [opened|barked]. That was wrong!
== right_door
Then {a} remembered what to look for: the {q.adj*} door. And there it was, with {c.obj} behind it.
"It was the {q.adj*} door!" {a} remembered. And there it was. {C} [opened|was at home].
== find_door
There were many doors, but {a} remembered well and knocked at the {q.adj*} one. {C} opened.
{a} walked past all the other houses to the one with the {q.adj*} door. {C} [opened|looked out].
[Left, right|One house, two houses], and there it was: the {q.adj*} door. {A} [rang the bell|knocked three times], \
and {c} opened.
== deliver
{a} gave {b.obj} {o}. {B} [was so glad|sat down and ate at once|had tears in {b.his} eyes].
"This is for you," said {a.who}. "Oh, {o.a}!" said {b.who}. "Now I feel better already."
{b} [lifted the cloth|sniffed the air]. [Could it be|Was it true]? Yes, {o}! {B} [hugged|kissed] {a.obj} on the spot.
== deed_was_friend
And who sat there at the table? It was {c.name}! {C.name} was an old friend of {b.name}, and had told {b.him} about \
{a.obj}.
Then {c.name} came in at the back door. "That is the one who helped me!" {c.name} said. {B} laughed with joy.
== reward
To say thank you, {b} gave {a.obj} {o.a}.
"You are a good helper," said {b.who}, and gave {a.obj} {o.a}.
{b} [opened a drawer|went to a shelf] and [came back with|took out] {o.a}. It was for {a.obj}!
== pet_not_seen
That evening, nobody had seen {b.name}. [{A} thought nothing of it|{B.his} dinner was still there].
"Have you seen {b.name}?" somebody asked at dinner. Nobody had.
== window_open
It was warm, so {b} left a window open upstairs. [A light wind blew|The curtain moved a little].
== new_clock
{b} had brought home an old cuckoo clock that day. It did not work yet, so {b} put it {s}.
== hungry_kitten
That day, a thin gray kitten had [sat at the gate|looked in at the window]. [Nobody knew where it lived|Then it was \
gone].
== goes_to_bed
Night came, and {a} [lay in bed|went to bed]. [The house was dark|The moon was behind a cloud].
Soon it was bedtime. {A} [pulled up the blanket|closed {a.his} eyes].
[Teeth were brushed|The lamp was put out], [a story was read|good night was said], and {a} lay in the dark.
[One candle, one yawn|A yawn, a stretch], and {a} was [in bed|under the covers]. [Outside, the wind blew|The night \
was black].
== sound_pet
Scratch, scratch! [Something moved in the dark.|What was that?]
== sound_shutter
Bang! Bang! [Something hit the wall.|What was that?]
== sound_clock
Tick, tick, tick, and then a [strange|hoarse] cry! [What was that|Who was there]?
== sound_kitten
Eee, eee! [Something cried in the dark.|What was that?]
== afraid_night
{a} sat up. {A.his} heart beat like a drum.
"Who is there?" {a} whispered. Nobody answered. {A} was afraid.
{a} thought of [monsters|ghosts|robbers] and [held {a.his} breath|shook].
{a} [did not breathe|pulled up {a.his} knees]. It was [close|in the house]! [Every hair stood up|{A.his} mouth was dry].
== hides_under_blanket
{a} pulled the blanket over {a.his} head and did not move.
"Go away," {a} whispered from under the blanket.
== no_sleep
The noise went on and on. {A} did not dare to look and lay awake until the sun came up. {A} never found out what it was.
== elder_comes
{b} came in and sat down on the bed. Now {a} was a little less afraid.
"Let us look together," said {b.who}. "Most noises are only small things."
== takes_light
{a} took {o} [in one hand|from the chair] and [tiptoed|went] into the dark hall.
Then {a} [was brave|made up {a.his} mind] and took {o}. Step by step, {a.he} went into the dark.
[A monster would not wait|Lying there was even worse]. So {a} took {o}, and [the floor creaked|the shadows jumped] \
at each step.
== listen
{a} listened. The noise came from inside {s.the}.
It was loudest near {s.the}. {A} [took a deep breath|counted to three].
{a} [stood still|put {a.his} ear to the wood]. It was in there, in {s.the}!
== cause_pet
{a} looked inside, and two bright eyes looked back. It was {b.name*}! That was why nobody had seen {b.him}.
== cause_shutter
But it was not in there. Above it was the open window, and the wind was banging the shutter. {c.name} had left it open.
== cause_clock
{a} looked inside and laughed. It was the old cuckoo clock! It worked again, all by itself.
== cause_kitten
{a} looked inside. There sat the thin gray kitten from the day, and it was hungry.
== laugh_at_fear
{a} [laughed at {a.himself}|had to laugh]. No monster, no ghost, just that!
"And I was so afraid!" said {a.who}, and laughed.
{a} felt [silly|brave] and [proud|glad], and {a.his} knees stopped shaking.
[All that fear for such a small thing|So that was the monster]! {A} [let out a long breath|laughed until {a.his} \
tummy hurt].
"""
