"""Phrases of the plots about a race, a missing treat, hide and seek, and a seed."""

TEXT = """
== race_called
{c} had a plan: a race {p.at}, and the winner would get {o.a}.
"There will be a race {p.at}," said {c.who}. "The winner gets {o.a}!"
[A piece of paper hung on every tree|Everybody talked about it]: {c.who} was holding a race {p.at}, with {o.a} for \
the winner.
[A race|A race, said the sign], {p.at}! {c.who} had put up a prize: {o.a}.
== both_want
{a} wanted to win. {B} wanted to win, too.
Both {a.who} and {b.who} wished for {o}, and there was [only one|just one].
[One prize, two friends|There was one prize and two who wanted it]. {a.who} and {b.who} [looked at each other|both \
rolled up their sleeves].
== quarrel_race
"I am faster than you," said {a.who}. "No, I am!" said {b.who}. Soon they were [both angry|shouting].
They [argued|quarreled] about who was faster, and neither would [give in|stop].
== see_root
{a} saw a thick root across the path. [It was easy to trip over|"Somebody could fall over that," {a.he} thought].
There was a [deep hole|big root] in the path. {A} [saw it|walked around it] before the start and thought no more of it.
{p.at}, a [loose stone|puddle of ice|big bump] lay [right in|in the middle of] the way. {A} [made a note of it|saw \
it just in time] before the start.
== race_starts
One, two, three, go! They [ran like the wind|ran side by side|ran as fast as they could].
"Ready, steady, go!" Off they went. First {b.who} was ahead, then {a.who}.
[A whistle blew|A flag went down], and [dust flew|feet pounded]. {b.who} and {a.who} were [nose to nose|in front].
[Three, two, one|On your marks]! They [shot off|flew over the ground], and nobody could say who was [faster|ahead].
== rival_falls
Then {b} [did not look down|looked back] and fell [hard|flat on the ground]. {B.his} knee [hurt|was red].
[Thump|Bump]! {b.who} lay on the ground and held {b.his} [foot|knee].
== stop_and_help
{a} could have won now. But {a.he} stopped, [ran back|turned around], and helped {b.obj} up.
"Are you hurt?" asked {a.who}. {A} [forgot the race|put an arm around {b.obj}], and they walked to the end together.
== judge_gives
They were last. But {c} smiled and gave {a.obj} {o}. "This is for the one with the biggest heart," said {c.name}.
Everyone else was faster. Still, {c} called {a.obj} up and gave {a.him} the {o.adj*} {o.noun}, because {a.he} had \
helped.
== run_on
{a} saw it, but {a.he} [ran on|did not stop]. {A} wanted to win.
"Too bad!" called {a.who}, and ran on.
== win_alone
{a} won, and {c} gave {a.obj} {o}. But nobody clapped. {B} [limped home|would not look at {a.him}].
{a} was first. {C} gave {a.obj} {o}, [but without a smile|and said nothing]. {B} [sat and cried|had gone home alone].
== hero_falls
{a} was ahead. {A} turned around to [wave|laugh at {b.obj}|see who was behind], forgot to look down, and fell [flat \
on {a.his} tummy|hard].
== rival_wins
{b} ran past and won. {C} gave {b.him} the {o.adj*} {o.noun}, and {a} [looked at {a.his} feet|had to watch].
== jump_root
{a} remembered what {a.he} had seen and jumped [over it|high]. That brought {a.obj} [ahead|to the front].
== win_fair
{a} was first! {C} gave {a.obj} {o}, and everyone [clapped|cheered].
"We have a winner!" called {c.who}, and gave {a.obj} the {o.adj*} {o.noun}.
== prize_shared
{a} let {b.obj} hold it, too. "You ran so well," said {a.who}.
{b} was sad at first, but {a} said they could [share it|both have it, one day each].
== bakes
{b} made {o.a} and put it on the window sill to cool.[| It smelled so good.]
{a.who} and {b.who} made {o.a}. They put it on a plate by the open window.
[All morning|For hours] there was a good smell in the house. Then {b} put {o.a} on the sill, and {a} [could not \
wait|had to wait until it cooled].
{o.a} [cooled|stood] at the open window. {B} had made it, and {a} had [stirred|licked the spoon].
== saw_near
{b} [walked by|came in] and said it smelled [great|wonderful].
"That looks good!" said {b.who}. "I could eat it all."
== vanished
[A little later|An hour later|When {a} came back], the plate was empty. {O} was gone!
{a} came to get a piece. But [there was nothing left|somebody had taken {o}]!
[No cake thief leaves a name|There was only the plate]. {O} had [vanished|disappeared]!
[First {a} thought it was a joke|{A} looked under the table]. But {o} was [really gone|nowhere].
== clue_hair
On the plate lay [a few brown hairs|a tuft of gray hair]. {A} [looked at it closely|did not know what to think of it].
== clue_prints
On the sill there were tiny muddy footprints. {A} [bent down to see them|counted five].
== clue_leaf
A green leaf lay on the plate. [How did it get there?|That was odd.]
== suspect
"It was {b.name}!" [thought|said] {a.who}. {A} was sure of it.
Who had done it? {A} thought of {b.obj} at once, because {b.he} [was always hungry|liked sweets so much].
{a} [narrowed {a.his} eyes|did not think long]. Who had been here? Who liked to eat? It could only be {b.who}!
[Everything spoke against|There was only one who could have done it:] {b.who}[|, thought {a}].
== quarrel_accused
"You took it!" {a} [shouted|said] to {b.obj}. "I did not!" said {b.name}, and [ran off|began to cry].
{a} told {b.obj} to give it back. {B} had not done it, and {b.he} was so hurt that {b.he} went away.
"Thief!" {a} [called|said]. {B} [opened {b.his} mouth and closed it again|turned pale]. "I never touched it," {b.he} \
said, and walked away.
== keep_watch
The next day, {a} put out a [bun|cookie] and hid behind the curtain. [It was very quiet|{A} waited and waited].
{a} set a trap: [a bun|a piece of bread] on a plate, and {a.himself} behind the [door|curtain], as quiet as a mouse.
[This time|The next morning], {a} left [a roll|a piece of pie] on the sill and crawled under the table. [Minutes \
passed|A fly buzzed].
[To catch a thief, you must be still|A good hunter waits]. {A} put out [a bun|some cheese] and sat [in the \
cupboard|behind a chair].
== thief_hair
And who came? It was {c.who}, with hair just like that!
== thief_prints
And who came, with mud on {c.his} feet? It was {c.who}! The footprints fit.
== thief_leaf
And who came, with a leaf on {c.his} back? It was {c.who}! So that was where the leaf came from.
== thief_home
{a} followed {c.him} on tiptoe. {S} there were four hungry babies. They had eaten {o}!
{c} ran off, and {a} ran after {c.him}. {S}, {a.he} found a nest with hungry little ones.
The trail led to a place in the yard. {S}, [little mouths|tiny mouths] were wide open. That was where {o} had gone!
== no_apology
{a} knew now that {b} had told the truth. But {a.he} was too proud to say so, and {b} did not come back.
{a} should have said sorry to {b.obj}. "Maybe tomorrow," {a.he} said. But tomorrow came, and {a.he} said nothing.
== apology
{a} went to {b.obj} [right away|at once]. "I was wrong," {a.he} said. "It was not you, it was {c.name}. I am sorry."
{a} ran to {b.obj}, told {b.him} about {c.obj}, and said sorry.
{a} [swallowed {a.his} pride|had to do it] and knocked at {b.pos} door. It had been {c.name}, {a.he} said, and \
{a.he} was sorry.
[It is hard to say sorry|The words were hard], but {a} said them to {b.obj}: {c.name} had done it, and {a} had been \
wrong.
== feed_thief
From then on, they [brought|took] some bread to the babies of {c.name*} every day.
Together they took a bowl of milk to the place {s*}, and {c} [was thankful|was not afraid anymore].
== game_starts
{c} came, too, and they wanted to play hide and seek. {A} had to [count|look for the others].
"Let us play hide and seek!" said {b.who}. {C} came, too. {A} had to count.
{c} [joined them|came over], and [soon|then] all three [agreed on a game|had an idea]: hide and seek, with {a.who} \
as the seeker.
[One, two, three players|Three players]: {c} made it just right for hide and seek. [The lot fell on|First to seek \
was] {a.who}.
== tired_early
{b} yawned. {B} had [slept badly|been up too late] the night before.
"I am so tired today," said {b.who}, and yawned.
{b} [rubbed {b.his} eyes|could hardly keep {b.his} eyes open], for {b.he} had [danced at a wedding|read a book] \
until late.
== count
{a} [closed {a.his} eyes|put {a.his} hands over {a.his} eyes] and counted to [ten|twenty]. Everybody ran.
"One, two, three," counted {a.who}, [up to ten|very slowly]. Then {a.he} [opened {a.his} eyes|began to look].
{a} [leaned against a tree|turned to the wall] and counted. [Feet pattered|Somebody giggled], then all was still.
{a} counted, [a little too fast|and peeked only once], and [shouted|called] that {a.he} was coming.
== find_first
Soon {a} [saw a foot|heard somebody giggle]. {B} sat {s}!
{a} looked {s}. "Found you, {b.name}!"
[A shoe stuck out|Something sneezed]. {b.who} was {s}!
[Who breathes so loudly?|What a bad place to hide!] {b.who} was {s}.
== not_found
But where was {c.who}? They looked [behind every bush|everywhere] and [called|shouted]. No answer.
"Come out, {c.name}! You win!" called {a.who}. But nobody came.
[Not behind the shed, not in the tree|Not left, not right]: {c} was nowhere. {A} [called until {a.his} throat \
hurt|looked at everything twice].
"[I give up|You win], {c.name}!" {a} called [three times|loudly]. [Only the birds answered|It stayed quiet].
== worried
{b} got worried. {A} [felt a little sick|did not think it was funny anymore].
"What if something happened?" asked {b.who}. {A} [did not want to think of it|held {b.his} hand].
== pet_points
Then {b} [ran ahead|pulled at {a.pos} sleeve] and stopped by {s.the}.
{b} sniffed, ran off, and [stood still|made a noise] by {s.the}.
[Who found the way|Who helped]? It was {b.who}. {B} [ran in circles|would not stop] until {a} looked at {s.the}.
== asleep
{a} looked inside. There lay {c.name*}, fast asleep! {C} had been so tired.
{c} was in there, [curled up like a cat|snoring softly]. {C} had fallen asleep! Everybody laughed.
And what was that sound? [Snoring|A soft snore]! {c.name} slept like a [stone|bear] in there, too tired to hear \
anything.
== went_home
In the evening they heard the news: {c} had been tired and had gone home without a word. {A} was [angry|hurt].
"{c.name} is at home, in bed," somebody told them. {A} was hurt. [A whole hour of worry|All that fear], and for nothing!
== get_seed
{c} gave {a.obj} a seed. One day it would be {o.a}.
"This seed will be {o.a}," said {c.who}, "if you give it water every day." {A} took it home.
{c} [put something tiny in {a.pos} hand|opened a paper bag]. It was a seed. [With water and time|If all went well], \
it would be {o.a}.
{a} [found out|heard] that {c} had seeds to give away. One of them would grow into {o.a}, and that one {a.he} took.
== plant_seed
{a} put the seed in some earth {s} and gave it water.[| "Grow, please," {a.he} whispered.]
{a} found a good place {s}. There {a.he} planted the seed and watered it.
[One finger deep|Not too deep], {a} pressed the seed into the earth {s} [and watered it|and gave it a drink].
With [a spoon|bare hands], {a} dug a little hole in the earth {s}. In went the seed, [and water on top|and then some \
water].
== nothing_grows
[One week passed|Day after day went by], and nothing [happened|came up]. {A} [looked every morning|sighed].
"Why is there nothing to see?" asked {a.who} after a week.
[Monday, nothing|Day one, nothing]. [Tuesday, nothing|Day two, nothing]. {A} [talked to the earth|looked so close \
that {a.his} nose got dirty].
The earth [stayed brown|stayed bare]. {A} [began to worry|asked everyone how long it takes], but no green came.
== stop_watering
{a} lost interest. [It was more fun to play with {b.obj}|{A} went to visit {b.obj} for two weeks], and the seed was \
left alone.
"It will never grow," said {a.who}, and went to play with {b.obj} instead.
== friend_watered
One day, {a} came by and stood still. {S*} there was {o.a}! {B} had watered it [in secret|every day].
"Come and see!" called {b.who}. {S*} stood {o.a}. "I gave it water when you forgot," said {b.name}.
== seed_died
When {a} looked again, the earth {s*} was dry and hard. [The little plant had dried up|There was only a brown leaf].
A month later, {a} remembered the seed {s*}. But there was only dust. It never became {o.a}.
== go_on_watering
But {a} did not give up. {A} watered it [each morning|every day] and [sang to it|pulled out the weeds].
"Be patient," said {c.who}. So {a} went on and watered it [each morning|every day].
[Others laughed|It was a lot of work], but {a} came [with {a.his} little can|with water] every day.
== storm_night
One night there was a storm. {A} ran out in {a.his} pajamas and [covered the earth with a cloth|put a pot over it].
[Thunder rolled one night|The wind howled one night], and {a} [held an umbrella over the earth|put stones around it] \
until it was over.
== it_grew
And then, one morning, there was [something green|a tiny green tip] {s*}. It grew and grew and became {o.a}.
One sunny morning, {a} [shouted|cried out] with joy. {S*} stood {o.a}!
[First a dot|First a thread of green], then a stem, then a [bud|leaf]: {s*}, there was {o.a}!
== show_grower
{a} showed it to {b.obj}. "You did that all by yourself," said {b.name}. {A} was proud.
{b} came to see it and [nodded|smiled]. [Good work|That was good work] and a lot of patience!
{b} [bent down|took off {b.his} hat] and [looked at it closely|smelled it]. [Well done|That was well done]!
"""
