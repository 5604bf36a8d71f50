"""Phrases of the plots about a picnic, a hurt animal, a thing to make and a locked one."""

TEXT = """
== plan_picnic
{a.who} and {b.who} wanted to have a picnic. {A} packed {o.a}. They would eat it {p.at}.
"Let us have a picnic {p.at}!" said {b.who}. {A} packed {o.a} right away.
[A blanket, two cups|A blanket and a jug] and {o.a}: {a} had [packed everything|it all ready]. {b.who} was coming, \
too, and they would go to {p}.
[Why eat inside|Who wants to eat inside]? {A} took {o.a}, {b.who} brought cups, and {p} was not far.
== clouds
{b} looked up at some gray clouds. "Take {o.a} with you," said {b.name}. "It may rain."
There were [dark|gray] clouds over the hills. {B} held out {o.a}, just in case.
{b} [sniffed the air|pointed at the sky]. [It smelled like rain|The clouds were low]. {B.he} [put|held] {o.a} in \
front of {a.obj}.
"[I feel it in my knee|The swallows fly low]," said {b.who}. "It may rain." And {b.he} pointed at {o.a}.
== take_umbrella
{a} took it, even if it was [heavy|a bit long].
"Good idea," said {a.who}, and took {o}.
== leave_umbrella
{a} laughed and left {o} at home.
"The sun is out!" said {a.who}, and left {o} at the door.
== rain_starts
[Suddenly|Then] a drop fell on {a.pos} nose. Then two, then a hundred. It rained [hard|cats and dogs]!
The clouds came [closer and closer|over the hill], and it began to pour.
[The birds went quiet|The wind turned cold]. Plip, plop, and then [the whole sky came down|it poured].
[One drop|A fat drop] hit the blanket. {b.who} looked up, {a.who} looked up, and [the rain came down|it poured].
== under_umbrella
But they had {o}! {A} opened it, and there was room for two.
"Come under here!" called {a.who} and opened the {o.adj*} umbrella. {B} [laughed|crept under it].
== eat_together
They [sat close together|sat down] and ate {o}. It had never tasted so good.
{a} shared {o} with {b.obj}, and they [listened to the rain|sang rain songs].
[Crumb by crumb|Bite by bite], {a.who} and {b.who} ate {o}, [while the drops drummed|with wet toes and warm hearts].
== helper_shelter
"This way!" somebody called. It was {c.name}! {C.he} [showed them|led them to] a dry place under a rock.
{c.name} had not forgotten who had helped {c.him}, and {c.he} [showed them|led them to] a dry cave.
== run_for_cover
They ran to [an old shed|a big tree|a barn] and held {o} under {a.pos} coat to keep it dry.
"Run!" called {b.who}. They ran into [an old shed|a barn], and {o} was still dry.
== food_wet
They had nothing to keep them dry. {O} got wet and fell apart before they could eat it.
{o} was [soaked|full of water] in no time. Nobody could eat that.
[No roof, no tree|There was no roof anywhere]. {O} [turned to mush|swam away in bits], and they [stayed hungry|had \
nothing to eat].
== blame
"We should have taken the umbrella!" said {b.who}. "You did not say so!" said {a.who}. They were both angry.
{b} was angry, because {a} had left the umbrella at home, and {a} was angry, too.
== find_hurt
There, in the grass, lay {c}. {C.he} [had hurt {c.his} leg|could not walk] and looked up with big eyes.
{a} heard a soft cry. Behind a stone lay {c}, and {c.his} leg was hurt.
Something [moved|whimpered] under a leaf. It was {c.who}, with a hurt leg.
{a} [almost stepped on somebody|stopped short]. It was {c.who}. One leg [was bent|was hurt], and {c.his} eyes were \
full of fear.
== carry_home
{a} [picked {c.him} up very gently|put {c.him} in {a.his} hat] and carried {c.him} home.
"Do not be afraid," said {a.who}. "I will take care of you." And {a.he} carried {c.him} home.
{a} made {a.his} [scarf|sweater] into a nest, laid {c.obj} in it, and [went home|carried it home] step by step.
== bed_in_spot
{b} helped to make a soft bed {s}, and there {c} could [sleep|rest].
"{c.name} needs a warm bed," said {b.who}. They made one {s}.
[A bit of hay|An old towel], a bowl of water: {c} got a bed {s}, and {b} [looked in every hour|found a bandage].
== feed_days
[Every day|Morning and evening], {a} brought food and water and [told stories|sang a song].
{a} [changed the bandage|brought fresh grass] each day and [sat there for hours|told long stories].
[Bread in milk|Grains and berries], a drop of water, [a kind word|a good night song]: so the days passed.
== well_again
[After a week|Little by little], {c} could stand, then walk, then [hop|run].
One morning, {c} stood up and walked [all around the room|to the door].
[First one step, then two|One day a step, the next day a jump]: {c} was [getting well|healthy again].
== wants_to_keep
"Now {c.name} wants to go home," said {b.who}. "No!" cried {a.who}. "I want to keep {c.him}!"
{c} looked out of the window [all day|again and again]. {B} said it was time, but {a} did not want to let {c.him} go.
{b} said that {c} belonged outside. {A} [did not want to hear that|put {a.his} hands over {a.his} ears]. They \
[argued|quarreled] about it all evening.
"Please, can {c.name} stay?" asked {a.who}. "No," said {b.who}. "Would you like to live in a box?" {A} did not want \
to hear it.
== keeps_it
"You are mine now," said {a.who}, and put {c.obj} back {s*}.
{a} closed the door and put {c.obj} back {s*}.
== sad_animal
But {c} did not eat anymore. {C} lay there {s} and looked at the wall, and {a} did not know what to do.
From then on, {c} was [sad and quiet|so sad] and never played again. And so {a} was not happy, either.
== sets_free
{a} [cried a little|swallowed hard]. Then {a.he} carried {c.obj} back to {p*} and opened {a.his} arms.
"You are right," said {a.who}. {A} took {c.obj} back to {p*}. "Run home, {c.name}!"
It was [hard|the hardest thing]. But {a} [did it|knew it was right]: at {p*}, {a.he} put {c.obj} down in the grass.
== loses_thing_there
On the way back, {a} lost {o} [in the high grass|among the leaves]. {A} looked for it until dark.
{a} went to that place again a month later and lost {o} there. {A} looked [under every leaf|everywhere], but it was \
gone.
== animal_brings
Then something [moved in the grass|rustled]. It was {c.name}, and {c.he} carried the {o.adj*} {o.noun}!
The next morning, somebody scratched at the door. There stood {c.name} with the {o.adj*} {o.noun}!
== animal_visits
A month later, somebody scratched at the door. It was {c.name}, with [a flower|two babies|a nut as a present]!
After that, {c} came to the fence [every Sunday|each evening] to say hello.
== wants_to_make
{a} wanted to make {o.a} for {b.obj}. For that, {a.he} needed {x} and {y}.
{b} [was sick|was moving away|had lost a tooth], and {a} wanted to make {o.a} for {b.him}. It took {x} and {y}.
[What could {a} give to|What would please] {b.who}? {o.a}, made by hand! Only {x} and {y} were missing.
{a} had a plan for {b.obj}: {o.a}! [But you need|It takes] {x} for that, and {y}.
== told_where
"The {x} is {s}," said {b.who}. "The rest you will have to find."
{b} told {a.obj} that the {x} was {s}. There was nothing else at home.
{b} [thought for a moment|knew the answer]. There was some {x}, {b.he} said, {s}.
"Look for the {x} {s}," said {b.who}. "I saw it there last week."
== first_ask
First, {a} went {p.to}, where {b} [worked|lived], to ask for {y}.
Who had {y}? {A} went to see {b.obj}, near {p}.
[The {y} had to come from somewhere|Nobody at home had any {y}]. {A} went {p.to} to see {b.who}.
[So {a} put on {a.his} cap|So {a} set off] and went {p.to}, to {b.who}, who [might have|was sure to have] {y}.
== favour_first
"You can have the {y}," said {b.who}, "if you help me to {x}." {A} did it [gladly|and did it well].
{b} needed somebody to {x}. {A} helped, and got the {y} for it.
{b} [scratched {b.his} ear|had plenty]. First, [though|please], {a} should {x}, and then the {y} would be {a.his}.
[Nothing is free|One hand washes the other]: {a} helped {b.obj} to {x}, and {b} [handed over|gave {a.him}] the {y}.
== where_was_it
Now {a} needed the {x}. It was {s*}, just as {a.he} had been told.
And where was the {x}? {A} remembered: it was {s*}.
[Next came|Now it was time for] the {x}. {A} [did not have to search|went right to it]: it was {s*}.
[Where to look|Where now]? {A} still knew it: the {x} was {s*}.
== work_hard
Then {a} [cut and glued|worked and worked|sat down to work] [all afternoon|for two hours], with the {x} and the {y}.
{a} rolled up {a.his} sleeves. [The table was full of bits|It was hard work], but {a.he} hummed a song.
[Snip, snap|Tap, tap], [bits flew|time flew]. The {x} and the {y} [slowly took shape|were used up bit by bit].
[Twice it went wrong|A thumb got hurt], but {a} [did not stop|went on] until the {x} and the {y} [fit|did what \
{a.he} wanted].
== made_badly
But {a} was in a hurry, and {o} [came out crooked|fell apart|looked like a potato].
"What is that?" said {a.who} at the end. {O} was [crooked|ugly]. {A} had not been careful.
== throws_away
{a} [got angry|stamped {a.his} foot] and threw it away. Now there was no present at all.
"I cannot do it!" {a} cried, and threw it away.
== try_again
{b} helped {a.obj} to take it apart and begin again, slowly this time. Now {o} was [fine|really pretty].
"Try again, and take your time," said {b.who}. {A} did, and the second {o.noun} was much better.
== made_well
At last it was done: {o.a}, [as nice as from a shop|all made by hand].
And then {o} was ready. {A} [held it up|looked at it from all sides]. It was [lovely|just right].
{a} [stepped back|put down {a.his} tools]. There it was: {o.a}, and it was [beautiful|better than {a.he} had hoped].
== give_made
{a} took it to {b.obj}. "Did you make this for me?" asked {b.name}. {A} nodded, and {b.he} hugged {a.him}.
{b} [laughed with joy|could not believe it] and said it was the best {o.noun} in the world.
{b} [turned it around and around|did not know what to say]. Nobody had ever made {b.obj} {o.a} before.
[Wrapped in newspaper|With a ribbon around it], it went to {b.who}, who [opened it at once|was speechless]. {A} had \
made it all alone!
== locked_spot
Nobody had ever opened {s.the}. "The key was lost long ago," {b} always said.
{b} once told {a.obj} [a secret|something]: {s.the} was [always locked|locked], and nobody had the key.
There was one thing in the house that was always locked: {s.the}. Even {b} [did not know what was in it|had no key].
[Who knew what was in {s.the}?|Nobody could look into {s.the}.] It was locked, and {b} [had lost the key|just shrugged].
== key_from
To say thank you, {c} [gave {a.obj} something|dug in the leaves]. It was {o.a}!
"Take this," said {c.who}. "I found it long ago." It was {o.a}.
== key_found
There, [between two stones|under a leaf|in the sand], something [shone|blinked]. It was {o.a}!
{a} [stepped on something hard|saw something in the grass]. It was {o.a}.
[Clink!|What was that?] {A.pos} shoe had hit something. {A} [dug it out|picked it up]: {o.a}!
== try_wrong
What did it open? {A} tried {s.the}, but {o} did not fit.
{a} tried {o} on {s.the}. No, [it was too small|it would not turn].
[First|At home], {a} tried {s.the}. [It did not turn|Too big]. {O} belonged somewhere else.
{a} went from lock to lock. {S.the}? No. {O} [did not even go in|got stuck].
== remember_locked
Then {a} remembered what {b} had said about {s.the*}.
"Wait!" cried {a.who}. "What about {s.the*}?"
[Always locked|No key]: {a} knew those words. {b.name} had said them about {s.the*}!
[What had {b} always said|Had {b} not talked about it]? Then it came back: {s.the*}!
== opens
{a} put {o} in the lock, [turned it slowly|held {a.his} breath], and click! Inside lay {q.a}.
The {o.adj*} key fit! Click! And there, under [the dust|an old cloth], was {q.a}.
{o} went in [as if it had never been away|like a foot into an old shoe]. [Click|Crack], and {a} [held|looked at] {q.a}.
== elder_tells
{b} [had to sit down|had tears in {b.his} eyes]. "That was mine when I was small," said {b.name}. "Now it is yours."
{b} [laughed|clapped]. {B} had looked for {o} for years, and now {a} could keep it.
{b} [looked at {o} for a long time|told a long story about {o}]. Then {b.he} put it [back into {a.pos} hands|in \
{a.pos} hands] for good.
== key_breaks
{a} [pushed|turned] too hard, and crack! {O} broke in the lock.
[One more push|One hard turn], snap, and half of {o} stayed in the lock.
== never_known
Now nobody could ever open it, and nobody would know what was {s}.
"{s} there is something," {a} sighed, "and now we will never see it."
"""
