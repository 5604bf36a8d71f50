"""Phrases of the events that many plots share. How a phrase is written is told in teller.py."""

TEXT = """
== open
There [was once|once was] {a.new}[ who|. {A.he}] [lived|had a home] [by the sea|near a hill|at the end of a lane].
On {x.an} [day|morning], {a.new} [woke up early|got up with the sun|looked out of the window|put on {a.his} shoes].
[In a house with a round window|At the edge of the woods|Near a quiet lake|Behind the old mill] lived {a.new}.
It was {x.an} [day|morning|afternoon]. {A.new} [had no plans yet|had nothing to do|was in a good mood].
[This is the story of|Let me tell you about|Here is a story about] {a.new} and {x.an} day[ long ago| last year|].
[Long ago|One year|Once], on {x.an} day, {a.new} [sat on the step|stood at the door|went out into the sun].
[Far away|Not far from here|Over the hills], {a.new} lived [with {a.his} family|in a cozy home|in a little yellow \
house].
{A.new} [loved|liked] [the summer|the wind|the stars|pancakes|loud music|old stories] [most of all|more than anything].
[Everyone in the street knew|All the neighbors knew|You would have liked] {a.new}. It was {x.an} [day|morning].
[Somewhere|In a land] [between two hills|behind the mountains|next to a river] there was {a.new}.
[Do you know|Have you heard of] {a.new}? [This happened|It all began] on {x.an} [day|morning].
[One morning|Early one day], the sun [woke|tickled] {a.new}[|, who had slept long and well]. It was {x.an} day.
[In the smallest house of the street|In a house full of books|Above a bakery|Under a tall chestnut tree] lived {a.new}.
[What can you do on|There is a lot to do on] {x.an} day, [thought|said] {a.new}.
{x.an} [morning|day] [began|came], and {a.new} was [the first to get up|ready for anything|still in {a.his} pajamas].
== meet_friend
[Every day|Most days|After lunch], {a} played with {b.obj}.
{a.who} and {b.who} [did everything together|were hardly ever apart|shared all their secrets].
[Nobody made {a.obj} laugh like|The best days were the days with|{A} did most things with] {b}.
{b} [came over|came to visit|knocked at the door] [early|right after breakfast|with a big smile]. {A} was glad.
[With {a.obj} came|Next to {a.obj} walked|Beside {a.obj} sat] {b}, who [liked jokes|knew many games|talked a lot].
{b} [lived next door|lived across the street|was staying for the week], so {a} [was never bored|always had company].
[Whatever {a} did|Rain or shine], {b} [was there|came along|had to be part of it].
{b} [was a head taller than {a.obj}|could whistle through {b.his} teeth|laughed like a little goat]. [They were \
often together|{A} liked that].
[Two knocks at the door|One whistle from the street] meant {b.who}. {A} [knew that sound well|was always glad to \
hear it].
== meet_pet
{a} [never went anywhere without|shared {a.his} bed with|took good care of] {b}.
{b} [followed {a.obj} everywhere|slept at the end of {a.pos} bed|was always hungry].
[At home there was also|Then there was] {b}, who [liked to run around|liked to chew on things|got into everything].
{b} had [one white ear|very long whiskers|a crooked tail] and [a good nose|a soft heart]. {A} [loved that|told \
{b.him} everything].
Where {a} was, {b} was [never far away|not far off].
== meet_sibling
{b} [followed {a.obj} everywhere|wanted to do what {a} did|was small but very loud].
[At home there was also|Then there was] {b}, who [liked to run around|asked a hundred questions|got into everything].
{b} had [two loose teeth|a very loud voice] and [a hundred questions|a good nose]. {A} [did not mind|had to look \
after {b.him}].
== own
{a} had {o.a}. [It was {a.his} favorite thing|{A} took it everywhere|Nothing was dearer to {a.obj}].
{a} [was very fond of|was proud of|took good care of] {a.his} {o.full}.
[The thing {a} liked best was|What {a} loved most was|Of all {a.his} things, {a.he} loved] {a.his} {o.full}[|, and \
everyone knew it].
{a} [owned|had] {o.a}, and {a.he} [slept with it beside {a.him}|cleaned it every day|would not give it away for \
anything].
{o.a} [hung|stood|lay] [next to {a.pos} bed|by {a.pos} window]. {A} [said good night to it every evening|would have \
known it among a hundred].
[There was only one like it|Nobody else had one like it]: {a.pos} {o.full}.
[In all the world|In the whole house] there was nothing {a} liked as much as {a.his} {o.full}.
== gift_before
{b} had given {a.obj} {o.a}[| for being good| last week|, and {a} loved it].
{a} had {o.a}. {B} had [bought|found|saved] it [for {a.obj}|just for {a.obj}] [one winter|a year ago|on a rainy day].
{a} [carried|held] {o.a}. It was a [gift|present] from {b.obj}.
{o.a} was [the best present|the nicest thing] {a} ever got. It came from {b.obj}.
"Take good care of it," {b} had said when {a} got {o.a}.
[Last spring|On the first day of school|After a long winter], {a} got {o.a} from {b.obj}[|, wrapped in newspaper].
== go
{a} [walked|ran|skipped|went] to {p}.
[Later|Soon|After a while|Then], {a} [set out for|went to|made {a.his} way to] {p}.
[That day|Soon|Then], {a} [decided|wanted|got ready] to go to {p}.
The [road|way] to {p} was [short|steep|long], [and|but] {a} [did not mind|hummed a tune|walked fast].[| Then {p} was \
in sight.]
[Down the road|Past the last house|Along the path] {a} went, all the way to {p}.
[Off|Away] went {a.who}, [over the fields|down the lane|past the houses] to {p}.
"I am going to {p}!" {a} called [over {a.his} shoulder|at the door].
[It was just the right weather for|That day {a} felt like] a trip to {p}, so {a} [put on {a.his} boots|ate an apple] \
and left.
{a} [whistled|counted {a.his} steps|kicked a small stone] all the way to {p}.
== go_two
{a.who} and {b.who} [walked|ran|went|hurried] to {p}.
[Later|Soon|After that|Then], the two [set out for|went to|made their way to] {p}.
"Let us go to {p}!" said {b.who}. {A} [took {a.his} coat at once|did not wait to hear it twice|was already at the door].
"Come on, {b.name}!" [called|said|shouted] {a.who}. [Side by side|Hand in hand|Laughing], they [went|ran|walked] to {p}.
[Side by side|Full of plans|In a good mood], {a.who} and {b.who} [went|walked] to {p}.
[It did not take long, and|After some talking,] {a.who} and {b.who} were on their way to {p}.
{b} [knew a short way|ran ahead|carried a bag], and so {a.who} and {b.who} [came|got] to {p}.
"Last one there is a sleepy snail!" cried {b.who}, and they raced to {p}.
[They skipped|They hopped on one leg|They marched like soldiers], {a} in front, [all the way|down the road] to {p}.
== go_back
{a} [ran|hurried|rushed|went] back as fast as {a.he} could.
{a} [turned around|put on {a.his} shoes again|took a deep breath] and [went|ran] back [there|the whole way].
[There was no time to lose|It could not wait]. {A} ran back [at once|without a coat].
== home
[When it got late|In the evening|When the sun was low|After that], {a} went home.
[Then it was time to go home|The way home felt short|{A} walked home], [and the sky was red|and a few birds sang|and \
{a} felt tired].
{a} [came|got|was] home [before dark|just in time for dinner|with dusty shoes].
[Tired feet|Tired legs] carried {a.obj} home [at last|as the first stars came out].
"Time to go home," [said|thought] {a.who}, and [turned around|off {a.he} went].
[Step by step|With slow steps], {a} [went|walked] home, [past the dark shops|under the first stars|and a cat came \
along].
[Home was near|The way back was shorter], and [soon|then] {a} stood at the door.
== see_T
[The leaves moved in the wind|A nut fell from a branch|Two birds sang in a tree] and {a} [looked up|stood still to \
listen].
{a} [counted the trees|ran around a tree three times|picked up a yellow leaf] [for fun|just because it was nice|and \
smiled].
Under a [tall|bent|hollow] tree, {a} [found three nuts|built a house for beetles|listened to a woodpecker].
== see_W
{a} [threw a small stone|put a leaf] [in|into] the water and watched the [rings|ripples] grow.
[A fish jumped|Two ducks swam by|The water was bright], and {a} [clapped|waved|stood there for a while].
The water [smelled of salt and mud|was as smooth as glass|made funny noises]. {A} [washed {a.his} hands|made a paper \
ship].
== see_O
The wind [pulled at {a.pos} hair|made the grass dance|smelled of flowers]. {A} [spread {a.his} arms|laughed|liked that].
{a} [lay down in the grass|spun around|looked at the sky] and [saw a cloud like a sheep|counted four clouds|felt free].
From here you could see [far|very far]: [the church|the mill wheel|five cows], and [smoke over a roof|a cart on the \
road]. {A} [counted them|waved].
== see_any
There were [many people|all kinds of smells|a lot of new things] there, and {a} [looked at everything|took {a.his} \
time].
{a} [looked around|walked slowly] and [saw a snail on a wall|heard a bell far away|sang a little song].
== see_stick
A long stick [lay in the grass|leaned on a fence] {p.at}. {A} [stepped over it|saw it and walked on|gave it a little \
kick].
{a} [found|saw] a long stick {p.at}, but [left it where it was|put it down again|did not need it].
Somebody had left a long stick {p.at}. {A} [drew a circle with it|used it as a horse] and [put it down again|left it \
there].
== trouble_thorn
[There|On the way|Near the path], {a} met {c.obj}. [{C.he} had a thorn in {c.his} foot|A thorn was stuck in {c.his} \
foot].
"Ow, ow!" [somebody cried|a voice called]. It was {c.who}, with a sharp thorn in {c.his} foot.
[Somebody limped along the path|Somebody sat by the path and sobbed]. It was {c.who}. A long thorn [stuck|was] in \
{c.his} foot.
== trouble_bush
[There|On the way|Near the path], {a} saw {c.obj}. {C.he} [was caught in a bush|hung in a bush and could not get out].
"Help!" called {c.who} from the middle of a thick bush. "I cannot get out!"
The leaves of a bush [shook|moved] [strangely|wildly]. In the middle of it hung {c.who}, who [could not move|had no \
way out].
== trouble_back
[There|On the way], {a} found {c.obj}. {C.he} had fallen into a [deep hole|hole] and could not climb out.
"Is anyone there?" [somebody called|came a voice] from a deep hole. At the bottom sat {c}.
From a hole in the ground came a [thin|weak] voice. {C.he} had been down there since the morning: {c.who}.
== trouble_thirst
[There|Beside the path|In the shade], {a} found {c.obj}. {C.he} was [so thirsty|weak and thirsty, so weak] that \
{c.he} could not stand.
"Water, please," [whispered|said] {c.who}, who lay [in the hot sun|beside the path]. {C.his} lips were dry.
{c} [sat|lay] by the road with closed eyes. {C.his} mouth was [so dry|dry as sand] that {c.he} could hardly speak.
== trouble_wet
[There|On the way|Under a tree], {a} met {c.obj}. {C.he} was [wet and cold|soaking wet] and [shook|shivered] all over.
"I fell into the water," said {c.who}, [shaking|shivering] all over. "I am so cold."
[Drip, drip, drip|Drop by drop], water fell from {c.who}, who had [slipped on a wet stone|fallen from a bridge] and \
was freezing.
== help_thorn
{a} [knelt down|sat down beside {c.him}] and [gently|slowly|very carefully] pulled the thorn out.[| {C} could walk \
again.]
"Hold still," said {a.who}, and [quick as a wink|with two fingers] the thorn was out. "Thank you, {a.name}!" said \
{c.name}.
{a} [had small fingers|knew what to do]. One, two, three, and out came the thorn. {C} [hopped with joy|could run again].
== help_bush
{a} [bent the branches apart|pulled the branches away] until {c} was free.[| {C} was so thankful.]
"Do not move," said {a.who}. One by one, {a.he} bent the branches away. "I will not forget this," said {c.name}.
It [took time|scratched {a.pos} arms], but {a} [broke off the twigs|pulled at the twigs] until {c} could get out.
== help_back
{a} [held out a branch|lay down and reached out a hand] and pulled {c.obj} [up|out].[| {C} said thank you three times.]
{a} let down {a.his} [belt|scarf|jacket]. {C} held on tight and climbed out. "You are a friend," said {c.name}.
{a} rolled [a big stone|a thick log] into the hole, and {c} [climbed on it|used it as a step] and was free.
== help_thirst
{a} [ran to get water|brought water in {a.his} hands], and {c} drank and drank.[| Soon {c.he} could stand.]
{a} gave {c.obj} all {a.his} water. "Now I feel strong again, thanks to you," said {c.name}.
{a} [found a cup|made a cup from a leaf] and ran to the nearest well. Sip by sip, {c} [came back to life|got better].
== help_wet
{a} [rubbed {c.him} dry|wrapped {c.him} in {a.his} jacket] until {c.he} was warm.[| {C} smiled a thankful smile.]
"Take my jacket," said {a.who}. Soon {c} was dry and warm. "If you ever need me, call me," said {c.name}.
{a} [made a little fire|gave {c.him} dry socks] and [waited|stayed] until {c} stopped shaking.
== pass_by
But {a} [was in a hurry|did not want to stop|had other plans] and walked on. {C} looked after {a.him} [sadly|for a \
long time].
"I have no time," said {a.who}, and {a.he} left {c.obj} there, all alone.
But {a} [only shrugged|looked the other way], and {c} [stayed behind|had to wait for somebody kinder].
"Somebody else will help," [thought|said] {a.who}, and [did not look back|went on]. {C} [sighed|closed {c.his} eyes].
== make_up
[At last|In the end|After a while], {b} smiled, and {a} [smiled back|hugged {b.obj}].
"Friends?" asked {a.who}. {B} [thought about it|waited a moment|looked up]. "Friends," said {b.name}.
They [shook hands|hugged each other|looked at each other and began to laugh], and {a.who} and {b.who} were friends \
again.
"I was angry, but now I am not," said {b.who}. {A} felt [as light as a feather|warm inside|so glad].
{b} [held out a hand|nudged {a.obj} with an elbow], and [that was that|the bad feeling was gone]. {a.who} and \
{b.who} could laugh again.
[It took a little while|It was not easy], but then {b} [nodded|said yes with {b.his} eyes], and {a.pos} heart was \
light again.
== comfort
{b} put an arm around {a.obj}. [It helped a little|That was nice, but it did not bring it back].
"Do not cry, {a.name}," said {b.who}. "I am still here." {A} [tried to smile|nodded and wiped {a.his} eyes].
{b} [told a joke|sang a silly song], and {a} [almost laughed|smiled a tiny smile].
[They sat down on the ground|For a while they just sat there]. {B} [shared {b.his} last candy|leaned against \
{a.obj}], and {a} [felt a little less alone|sighed].
== end_well
[That night|That evening|When the moon came up], {a} [slept well|fell asleep with a smile|had sweet dreams].
{a} [was happy|felt happy] [all day long|from head to toe|again], and [dinner tasted better than ever|the world was \
bright].
[It was the best day of the week|What a day that was|{A} told the story again and again]. {A} [smiled|could not stop \
smiling].
"[What a day|I will never forget this day|Today was a good day]," [said|thought] {a.who} [at bedtime|and \
yawned|happily].
[The moon looked in at the window|The stars were out|It was late], and {a} was [already asleep|the happiest {a.he} \
had been in weeks].
{a} [went to sleep|lay down] [with warm feet|with a full tummy] and a [warm|glad] heart.
Before {a.he} fell asleep, {a} [thought of it all once more, from the start|counted all the good things of the day].
[And if you had been there|If you had seen {a.obj} then], you would have seen {a.him} [dance|smile from ear to ear].
[That was how it ended|So it all ended well], and {a} [had something to tell for a long time|was as happy as a bird].
== end_well_two
{a.who} and {b.who} [laughed|danced|sang] [until the stars came out|the whole way home|and were happy].
[That evening|Later], {a.who} and {b.who} [sat side by side and watched the stars|walked home and sang|ate soup and \
told the story twice].
"This was a good day," said {b.who}. {A} [thought so, too|nodded and yawned|gave {b.obj} a big hug].
{a.who} and {b.who} [were happy|felt as happy as could be], and [they went home together|they talked about it for a \
long time].
[Arm in arm|Side by side], {a.who} and {b.who} [walked home|watched the moon come up]. [All was well|Nothing could \
have been nicer].
[Until the lamps were lit|Until somebody called them in], {a.who} and {b.who} [sat on the wall and talked|told each \
other jokes].
"Same time tomorrow?" asked {b.who}. "Same time tomorrow," said {a.who}, and both of them were happy.
{b} [had hiccups from laughing|sang out of tune], and {a} [laughed all the way home|laughed, too].
== end_with
That night, {a} [put|laid] {o} [next to the bed|where {a.he} could see it] and [fell asleep with a smile|slept well].
{a} [held|carried] {o} [close|tight] and was happy [all day long|again|from head to toe].
"You will never leave me again," {a} said to {o}. Then {a.he} [fell asleep|laughed at {a.himself}].
{o} got a [special|new] place [on the shelf|by the bed|near the window], and {a} [looked at it with joy|was happy \
each time {a.he} saw it].
[Everybody had to see|All the neighbors had to see] {o}, and {a} was [so proud|as happy as could be].
== end_badly
[That night|That evening], {a} [went to bed sad|could not sleep|looked at the ceiling for a long time].
{a} [was sad|felt sad] [for a long time|for days], and [nobody could help|not even a song could help].
"I wish I could start this day again," [thought|said] {a.who} [sadly|quietly]. But that was not possible.
[It was a sad day|There was no happy end this time], and {a} [cried a little|hung {a.his} head].
[The stars came out|It got dark], but {a} did not [see them|feel like looking]. {A} was too sad.
[Some days are like that|Not every day is a good day], and {a} was sad [when {a.he} thought of it|for the rest of \
the week].
{a} [ate no dinner|left {a.his} soup] and [went to bed sad|was sad and quiet].
== end_badly_two
{a.who} and {b.who} walked home [without a word|in silence|slowly]. It had not been a good day.
{a} [looked at the ground|was quiet], and {b} [did not know what to say|was quiet, too]. [The day was spoiled|So it \
ended].
"Maybe tomorrow will be better," said {b.who}. {A} [hoped so|was not so sure|only sighed].
{a} [kicked a stone down the road|said nothing], and {b} [walked a few steps behind|looked the other way]. It was a \
sad way home.
[Neither of them laughed|The songs were over] that evening. {a.who} and {b.who} were sad.
"""
