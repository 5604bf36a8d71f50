"""Phrases of the plots about things."""

TEXT = """
== set_down
{a} [put {o} down|laid {o} on the ground] [to tie {a.his} shoe|to pick a flower|to pet a snail] {p.at}.
{p.at}, {a} [needed both hands to climb a wall|wanted to wash {a.his} hands] and [put|laid|set] {o} [aside|on a big \
stone].
{a} [sat down on a bench|stopped for a rest] {p.at} and put {o} [beside {a.him}|on the seat].[| Then {a.he} saw a \
bird and jumped up.]
{p.at}, a [frog|puppy|beetle] [crossed|sat on] the path. To [get a closer look|pet it], {a} put {o} [on a tree \
stump|down in the grass].
{p.at}, {a} got [a stone in {a.his} shoe|sticky hands]. {A} put {o} [on a low wall|on a step] and [took care of \
that|forgot everything else].
== notice_missing
[There|At the door|In {a.his} room], {a} [looked into {a.his} bag|reached into {a.his} pocket]. The {o.n} was gone!
[But something was wrong|Then {a} stood still]. Where was {a.his} {o.n}?
"My {o.n}!" cried {a.who}. "It is gone!"
{a} wanted to [show|put away] {a.his} {o.n}. {A} [felt in every pocket|turned the bag upside down]. It was not there!
[At bedtime|Before dinner], {a} reached for {a.his} {o.n}, and {a.his} hand [found nothing|stayed empty].
== sad_missing
{a} [began to cry|had tears in {a.his} eyes|felt a lump in {a.his} throat].
[How could that happen|Where could it be]? {A} [turned everything over|looked under every chair|emptied {a.his} bag] \
[twice|two times].
{a} was [very|so] sad, because [it was {a.his} favorite thing|nothing could take its place].
[Not in the bag|Not in the coat], [not under the hat|not in the boots]. {A} [sat down on the floor|felt cold all over].
== ask_elder_where
"Where did you have it last?" asked {b.who}. {A} [closed {a.his} eyes and thought|thought hard].
"Think of the places you went to today," said {b.who}. "Start with the first one."
{b} told {a.obj} to [think back|walk the whole way again in {a.his} head]. {A} [tried|thought hard].
"[Do not cry|Calm down], {a.name}," said {b.who}. "Things do not walk away. Where were you today?"
"[One thing at a time|First take a breath]," said {b.who}. "Where did you go first, and where after that?"
{b} sat down next to {a.obj}, and together they [went over the whole day|thought about the whole day].
== search_nothing
{a} [looked|searched] [in the grass|behind every tree|everywhere], but {o} was not there.
[No luck|Nothing]. {A} [asked everyone|looked high and low] {p.at}, but nobody had seen {o}.
[Grass, stones, a bottle cap|Leaves, twigs, an old glove], but not {o}. {A} [sighed|had to go on].
== remember_place
Then {a} [remembered|knew]. "I put it down when I was {p.at}!"
[Suddenly|All at once|Then], {a} remembered putting it down. It had to be back at {p*}.
{a} thought of [every step|each stop on the way]. Of course! The last time {a.he} held it was at {p*}.
[One picture came to {a.his} mind|{A} could see it clearly now]: {a.his} own hands, putting it down. That was at {p*}!
== find_there
And there it was, [just where {a.he} had left it|in the very same place]! {A} [picked up|hugged|kissed] the {o.adj*} \
{o.noun}.
{o} was [still there|waiting for {a.obj}], [a little dusty|a bit cold|with a ladybug on it]. {A} [laughed out \
loud|jumped for joy].
"There you are!" [cried|called] {a.who}, and {a.he} [picked up|held up] the {o.adj*} {o.noun}.
[Yes|Hurray]! [Nobody had touched it|It had waited all that time]: the {o.adj*} {o.noun}. {A} [pressed it to {a.his} \
chest|did a little dance].
== kept_safe
[There stood|There was] {c}, holding the {o.adj*} {o.noun}. "Is this yours? I kept it safe for you," said {c.name}.
{c} had [found it and kept it safe|seen it and waited]. With a smile, {c.he} gave {a.obj} the {o.adj*} {o.noun}.
"I was hoping you would come back," said {c.who}, and held out the {o.adj*} {o.noun}.
== gone_for_good
But the place was empty. [Somebody had taken it|The wind had carried it off|It was too late], and {a} never saw {o} \
again.
{a} [looked until dark|searched and searched], but {o} was [gone|not there anymore]. [Nobody knew where it was|It \
never came back].
[Only a dry leaf lay there|Only an ant walked there now]. {O} was gone, and it [stayed gone|was never found].
== birthday_soon
[Soon it would be|In three days it was] the birthday of {b.who}, and {a} had a [present|gift] ready: {o.a}.
{a} had [found|bought|saved up for] {o.a}. It was [a secret|a birthday present] for {b.obj}.
{b} [would have a birthday soon|was about to have a birthday]. {A} [wanted to give {b.him}|had] {o.a} as a present.
[A secret made {a.his} cheeks red|{A} had a secret]: {o.a}, for the birthday of {b.who}!
== hide
{a} hid {o} {s}[|, where nobody would look|, and told no one].
[To keep it secret|So that nobody would see it], {a} put {o} {s}.
"Nobody will look here," {a} [said|whispered], and put {o} {s}.
{a} [went on tiptoe|looked left and right] and hid {o} {s}.
It was not easy to find a good [place|hiding place]. [In the end|At last], {a} put {o} {s}[| and covered it with a \
towel].
== seen_hiding
{c} [saw it|was watching] [from the door|through the window], but [said nothing|only smiled].
Only {c} [had seen it|knew about it], and {c.he} could keep a secret.
== tell_secret
{a} told only {c} where it was. [Two can keep a secret|{C} promised not to tell].
"Do you want to hear a secret?" {a} asked {c.obj}, and told {c.him} where it was.
== days_pass
[Three days went by|Then there was a lot to do|A whole week passed]. {A} [was sick in bed|visited a cousin|learned \
to whistle] and thought of other things.
[It rained and rained|The days were full]. {A} [drew pictures|helped in the kitchen|read a long book] and had no \
time to think.
== prepare_party
[There was a cake to bake|There were balloons to blow up|The table had to be set], and {a} [helped|did {a.his} part].
{a} [made paper stars|hung up ribbons|practiced a birthday song] for {b.obj}.
{a} [folded napkins|washed the big plates|tied balloons to the chairs], [and the house smelled of cake|all for {b}].
== birthday_now
[At last|Then] the big day came. Everyone [sang|clapped], and {a} [wanted to get|went to get] the present.
[On the morning of the birthday|When all the guests were there], {a} [jumped up|ran off] to get the present.
"Happy birthday, {b.name}!" everyone [sang|called]. {A} [ran to get|wanted to get] the present.
[Candles were lit|The candles burned], [songs were sung|the cake was cut], and [now|then] it was time for presents. \
{A} [got up|slipped out of the room].
== forgot_where
But where was it? {A} [could not remember|had forgotten where it was|scratched {a.his} head].
Oh no! {A} [had hidden it too well|did not know anymore where it was].
"Where did I put it?" {a} [asked {a.himself}|thought]. {A.his} head was empty.
{a} [stopped in the middle of the room|stood there with empty hands]. [Left or right|Up or down]? It was as if \
[somebody had wiped {a.his} head clean|the place had run away].
== look_wrong_spot
{a} looked {s}, but there [were only old socks|was only dust|was just a spider].
Was it {s}? No, [nothing was there|that was empty].
[Maybe|Could it be] {s}? {A} [looked|checked]. [Two old gloves and a cobweb|A broken umbrella], nothing else.
== ask_witness
[Luckily|Then] {a} asked {c.obj}. "You put it {s*}!" said {c.name}.
"You hid it {s*}. Do you not remember?" said {c.who}.
{c} remembered. {C} [pointed the way|took {a.him} by the hand]. It was {s*}.
[It was good that|How lucky that] {c} had [good eyes|a good memory]. It was {s*}, {c.he} [said|told {a.obj}].
== remembered_where
{a} remembered it well. It was {s*}.
{a} did not have to think long. The present was {s*}.
== fetch_hidden
{a} [ran there|went there at once], and there was {o}, safe and [clean|sound].
And there it was! {A} [took out|pulled out] the {o.adj*} {o.noun} and [blew off the dust|tied a bow around it].
[A bit of dust|A cobweb] was on it, that was all. {A} [wiped it off|blew it off] and held the {o.adj*} {o.noun} in \
{a.his} hands.
== mouse_ate
But a [hungry|little] mouse had been there first. Of {o}, only [crumbs were|a tiny bit was] left. {A} [was \
shocked|sat down and cried].
{a} looked inside. Oh no! [A mouse|A family of mice] had eaten {o}, and there was no present anymore.
== give_present
{a} gave {b.obj} {o}. {B.his} [face lit up|eyes grew wide]. [It was just what {b.he} had wished for|What a surprise].
"This is for you, {b.name}!" said {a.who}. {B} [opened|unwrapped] it and [hugged {a.him}|danced around the table] \
with {o}.
{b} [held|looked at] {o} and [could not speak for joy|laughed with joy]. "Thank you, {a.name}!"
{b} [held|looked at] {o} and was so happy that {b.he} hugged everyone in the room.
{b} [shook it|felt it] first, then [opened one eye|looked inside]. [Such joy|What joy]! {O} was [just right|the best \
gift of all].
== play_with
{a.who} and {b.who} [played with {o}|took turns with {o}] and [laughed|had a lot of fun|forgot the time].
"My turn!" [called|said] {b.who}. They played with {o} [all morning|for an hour|until their faces were red].
[First {a} had it, then {b}|{B} tried it, then {a}], and {o} was [never still|in the air more than in their hands].
== blown_up
[Suddenly|All at once|Then] a [strong wind came|gust of wind blew] and [carried|blew] {o} [high up|right up] into a \
tree.
{a} let go for just a moment. [Whoosh!|Oh no!] The wind took {o} and [it got stuck|it hung] at the top of a tall tree.
The wind [had waited for this|was stronger than {a}]. It [tore|pulled] {o} away and hung it on [the highest branch|a \
branch no one could reach].
== into_water
[Suddenly|All at once|Then], {o} [slipped|fell] out of {a.pos} hand and [into the water|landed in the water with a \
splash].
{a} [stumbled|tripped] over a root, and {o} [fell into the water|flew into the water]. It [floated away|drifted off] \
from the shore.
[It happened fast|One wrong step], and {o} was [in the water|floating on the water], [out of reach|three steps from \
the shore].
== sad_stuck
"My {o.n}!" cried {a.who}. "How will I get it down?"
{a} [looked up and felt like crying|was sad, because it was so high up].[| {B} was sad, too.]
"It is too high," said {b.who}. {A} [bit {a.his} lip|felt sad and small].
[It looked so small up there|Up there it looked tiny]. {A} [swallowed|pressed {a.his} lips together], and {b} \
[scratched {b.his} head|looked up, too].
== sad_afloat
"My {o.n}!" cried {a.who}. "It is swimming away!"
{a} [stood at the edge and felt like crying|was sad, because the water was deep].[| {B} was sad, too.]
"The water is too deep," said {b.who}. {A} [bit {a.his} lip|felt sad and small].
[A little wave rocked it|It turned around and around]. {A} [swallowed|pressed {a.his} lips together], and {b} \
[scratched {b.his} head|looked on].
== high_climb_works
{a} [took a deep breath|was not afraid] and climbed up, branch by branch, until {a.he} could [reach|grab] {o}.
"I can do it," said {a.who}. Up and up {a.he} went, and {a.he} [got|reached] {o}.
== high_climb_fails
{a} tried to climb the tree, but [a branch broke|the trunk was too smooth], and {a.he} [slid down again|landed on \
{a.his} bottom].
"I can do it," said {a.who}. But halfway up, [a branch broke|{a.he} slipped], and {a.he} had to come down.
== high_afraid_climb_fails
{a} put one foot on the tree and looked up. It was so high that {a.his} knees shook, and {a.he} [stepped back|gave up].
"I am afraid to climb," said {a.who}. [Nobody laughed|{B} understood].
== high_jump_fails
{a} jumped [as high as {a.he} could|three times], but {a.he} [was too small|did not even touch the lowest branch].
First {a.he} [tried to jump|jumped and jumped]. It was no use.
== high_shake_works
They shook the tree [with all their strength|together], and [down came leaves|plop], down came {o}!
{a} [shook the trunk|kicked the trunk], and after a while {o} fell [right on {a.his} head|into the grass].
== high_shake_fails
They shook the tree [as hard as they could|together], but only [leaves|nuts|two sleepy beetles] came down.
{a} shook the trunk. [Leaves fell, nothing else|A bird scolded, and that was all].
== high_friend_works
{b} [had an idea|thought for a moment]. {A} climbed on {b.pos} shoulders, stretched, and [got|caught] {o}.
"Stand on my shoulders!" said {b.who}. {A} [did it|climbed up], and {a.he} could just reach {o}.
== high_friend_fails
{a} stood on {b.pos} shoulders, but [they fell over|it was still too high].
"Stand on my shoulders!" said {b.who}. But they [wobbled|swayed] and [fell into the grass|came tumbling down].
== high_stick_works
Then {a} remembered the long stick. {A} [got it|ran to get it] and [poked|pushed] until {o} came down.
"The stick!" cried {b.who}. "The long one we saw!" {A} [got it|fetched it] and [poked|pushed] until {o} fell down.
== high_stick_fails
{a} got the long stick and poked and poked, but the stick broke.
== high_helper_works
Just then, {c.name} came by. "You helped me, {a.name}, so now I help you." {c.name} [called a big bird|whistled for \
a jay], and it brought {o} down.
Who came along? It was {c.name}! {C.he} had not forgotten {a.obj}, and {c.he} [knew a bird|asked a jay] that flew up \
and got {o}.
== water_reach_fails
{a} [lay down and reached out|stretched {a.his} arm], but {o} was too far away.
First {a.he} tried to reach it from the shore. [It was no use|{A.his} sleeve got wet, and that was all].
== water_friend_works
{b} [had an idea|thought for a moment]. {B} held {a.pos} hand tight, and {a} leaned out and [caught|grabbed] {o}.
"Hold my hand!" said {b.who}. {A} leaned out over the water and [caught|got] {o}.
== water_friend_fails
{b} [threw stones behind it|made waves] to push it back, but it only floated further away.
"I will blow it back!" said {b.who}. {B} [blew and blew|blew until {b.his} cheeks were red], but it did not work.
== water_wait_works
"Let us wait," said {b.who}. They waited, and [the wind turned|a little wave came], and {o} floated back to the shore.
They sat down and waited. After a while, [the wind turned|a wave came] and brought {o} back.
== water_wait_fails
They [sat down and waited|waited and waited], but {o} only floated further out.
== water_stick_works
Then {a} remembered the long stick. {A} [got it|ran to get it] and [pulled|fished] {o} out of the water.
"The stick!" cried {b.who}. "The long one we saw!" {A} [got it|fetched it] and pulled {o} to the shore.
== water_stick_fails
{a} got the long stick, but it was just a little too short.
== water_helper_works
Just then, {c.name} came by. "You helped me, {a.name}, so now I help you." {c.name} [called a swan|whistled for a \
beaver], and it brought {o} back.
Who came along? It was {c.name}! {C.he} had not forgotten {a.obj}, and {c.he} [asked a swan|knew a big fish] that \
pushed {o} to the shore.
== get_back
{a} [hugged|held] {o} [tight|with both arms]. "Thank you!" {a.he} said.[| {B} clapped.]
Now {a} had {o} again, and {a.he} [jumped for joy|danced in a circle|did not let go of it].
{a} [laughed|beamed] and showed {o} to {b.obj}. [Not even a scratch|It was as good as before]!
[Wet or dry|Dusty or not], {o} was [back|in the right hands again]. {A} [kissed it|turned in a circle] and [thanked \
{b.obj}|took {b.pos} hand].
== a_little_broken
There was a small crack in it, but {a} [did not mind|loved it all the same].
== give_up
[Nothing worked|It was no use|They had to give up]. [The sun went down|It got dark], and {o} was [lost|still out of \
reach].
"We have to go home," said {b.who} [softly|at last]. {O} [stayed behind|was lost].
[They had tried everything|There was nothing left to try]. [One last look|One last sigh], and they left {o} behind.
== nobody_helps
{a} saw {c.name} [far away|on the path] and called for help, but {c.name} [walked on|shook {c.his} head]. {A} had \
not helped, either.
If only {c.name} were here! But {a} had not helped {c.name}, and {c.name} did not come.
"""
