"""Phrases of the details, and of what is seen on the way."""

TEXT = """
== sight
[Along the way|A little further on|Between two houses], {a} saw {x.an}.
{a} [passed|walked past|said hello to|waved at] {x.an}.
What was that? [Just|Only|It was] {x.an}[|, nothing more]. {A} [smiled|went on|thought it was funny].
[There was|By the road there was|They passed|Not far off was] {x.an}[|. {A} laughed|, and {a} waved].
"[Look|Look at that|Oh]!" said {a.who}. It was [only |]{x.an}.
{x.an}! [That was a surprise|You do not see that every day|{A} had to look twice].
[Who was that|What sat there|And what was that]? {X.an}[.|. It did not look up.|. It seemed to nod.]
[A bird sang|A bell rang|It smelled of bread]. [Somewhere|Nearby] was {x.an}.
== has_food
{a.pos} favorite [food|meal] was {x}.
[Nothing tasted better to {a.obj} than|More than any candy, {a} loved] {x}.
"I could eat {x} every day," {a} [often|always] said.
{a} [dreamed of|always asked for|was crazy about] {x}.
[On birthdays|On Sundays] there was {x}, and {a} [always had two helpings|could smell it from far away].
If you [asked {a.obj} what to cook|gave {a.obj} three wishes], the answer was [always {x}|{x}].
== recall_food
For [dinner|supper] there was {a.pos} favorite, {x*}.
[Soon|Later] the house smelled of {x*}, and {a} [ran to the table|licked {a.his} lips].
On the table stood {x*}, [just what {a} liked best|{a.pos} favorite food].
[A good smell came from the kitchen|The pot was on the stove]: {x*}!
== recall_food_later
[Now|After all that], {a} could only think of one thing to eat: {x*}.
"Now I am hungry," said {a.who}. "I want some {x*}!"
{a} [was hungry now and hoped|had not eaten for hours and wished] for {x*}, as always.
[All this|Such a day] made {a.obj} hungry, and {a.he} dreamed of {x*}.
{a.pos} tummy [growled|spoke up]. Was there any {x*} at home?
== has_song
[When {a} was afraid|When things went wrong], {a.he} sang a song about {x}.
{a} knew a [silly|funny|short] song about {x}. It always [helped|cheered {a.him} up].
{a.pos} favorite song was about {x}.
{a} [had learned|had made up] a song about {x}, and [sang it at all times|it always helped].
== recall_song
To feel better, {a} [sang|hummed] {a.his} song about {x*}.
[Very softly|In a small voice|Under {a.his} breath], {a} [hummed|sang] the song about {x*}.
{a} thought of {a.his} song about {x*}, and [it helped a little|{a.his} heart grew calm].
There was only one thing to do: sing the song about {x*}.
== has_job
[One day|When {a.he} was big], {a} wanted to be {x}.
"One day I will be {x}," {a} [told everyone|liked to say].
{a} [wished|hoped|planned] to become {x} [one day|later].
{a} [already had a plan|was sure of one thing]: to be {x} one day.
[Some children want to be kings|Others did not know yet], but {a} wanted to be {x}.
== recall_job
"[What would {x*} do|How would {x*} do it]?" {a} [asked {a.himself}|wondered].
Someone who wanted to be {x*} could not [give up|cry for long], [thought|said] {a.who}.
{a} [thought|told {a.himself}] that {x*} would [stay calm|know what to do].
[Even|Surely] {x*} has bad days, [thought|said] {a.who}.
== has_cry
"{x}!" {a} [always said|used to say] when something [happened|surprised {a.him}].
When {a} was surprised, {a.he} [always cried|liked to cry|would cry], "{x}!"
When something surprised {a.obj}, {a} always said the same two or three words: {x}!
== recall_cry
"{x*}!" [cried|said|shouted] {a.who}.
{x*}! That was all {a} could say.
{x*}! That was not good.
"{x*}," {a} [sighed|said].
{a} could only say one thing: {x*}!
== has_number
[When {a} was nervous|Before anything hard], {a.he} always counted to {x}.
{a.pos} lucky number was {x}.
{a} liked the number {x}[ best| more than all others|, because it brought luck].
[Seven is lucky for some|Everybody has a lucky number], but for {a.obj} it was always {x}.
== recall_number
{a} counted slowly to {x*}, [as always|as {a.he} always did|and felt calmer].
"I will count to {x*}," [said|thought] {a.who}, "and then I will [think|go on]."
Then {a} counted to {x*}, {a.his} lucky number.
[Slowly|With closed eyes], {a} counted up to {x*}. It [always helped|made things better].
== has_roof
{a.pos} [house|home] had a {x} roof[| that shone in the sun| and a crooked chimney].
[From far away|From the hill], you could see the {x} roof of {a.pos} home.
[Anyone could find|It was easy to find] {a.pos} [house|home]: it had a {x} roof[|, the only one in the street].
The roof over {a.pos} bed was {x}, and [rain made music on it|birds liked to sit on it].
{a.pos} family had painted the roof of the house {x}[| last spring| for fun].
== recall_roof
{a} was glad to be back under the {x*} roof.
[The moon|The last sun] shone on the {x*} roof of {a.pos} home.
[A star stood|The evening sky was red|Smoke rose] over the {x*} roof.
It was good to hear the [wind|rain|owls] from under the {x*} roof.
== recall_roof_far
Over the trees, {a} could see the {x*} roof of home.
{a} was ready to go back to the house with the {x*} roof.
Now {a} [longed for|thought of] {a.his} own bed, under the {x*} roof.
Far off, the {x*} roof of home [shone in the light|was waiting].
== has_age
{a} was {x} years old.
{a} had just turned {x}.
{a} was {x}, and [two teeth were loose|{a.his} shoes were always too small|quite tall for that].
[A week ago|In spring|Last month], {a} had [had a birthday with {x} candles|turned {x}].
== recall_age
[Not bad for somebody who was|That was a lot for somebody who was] only {x*} years old!
"And I am only {x*}," {a} [thought|said].
And all that at the age of {x*}!
{a} was only {x*}, but [today it felt like more|everybody was proud of {a.him}].
== has_treasure
{a} collected {x}[| in a tin| and knew each one].
[Under {a.his} bed|On {a.his} shelf|In {a.his} pockets], {a} kept {x}[|, more than a hundred].
"You can never have too many {x}," {a} [liked to say|always said].
[Other children collected dolls|Some collect stamps or cars]. {A} collected {x}.
== recall_treasure
[Before bed|Before the lamp went out], {a} [counted|sorted|looked at] {a.his} {x*}, as always.
{a} sat down with {a.his} {x*} and thought about [the day|everything].
[Then|Later], {a} got out {a.his} {x*} and [lined them up|told them everything].
[The best place to think|{A.pos} favorite place] was next to {a.his} {x*}, and there {a} sat for a while.
== has_fear
There was one thing {a} did not like: {x}.
{a} was [not afraid of much, only of|afraid of only one thing:] {x}.
"I do not mind the dark," {a} liked to say, "but I do not like {x}."
[Everybody is afraid of something|Even brave people are afraid of something]. With {a.obj}, it was {x}.
== recall_fear
[This was worse than|It felt as bad as|It was as bad as] {x*}.
"This is worse than {x*}," [thought|said] {a.who}.
{a} had the same feeling as with {x*}.
{a} would [rather have met|almost have liked] {x*} [now|instead].
== has_wear
{b} [wore|had on|always wore] a {x} {y}[| with big pockets| that was a little too big].
[You could always tell|It was easy to spot] {b.who} by {b.his} {x} {y}.
"Do you like my new {y}?" {b} had asked. It was {x}.
[Summer or winter|Rain or sun], {b} [never took off|was never seen without] {b.his} {x} {y}.
{b} [was proud of {b.his}|had got a] {x} {y}[| from an aunt| for {b.his} birthday].
== recall_wear
{b} took off {b.his} {x*} {y} [and threw it in the air|and sat down on it].
There was [dust|grass|mud] on {b.pos} {x*} {y}, but [that did not matter|who cared].
{b} pulled {b.his} {x*} {y} tight, for it was [late|getting cool].
[The sun shone|The light fell] on {b.pos} {x*} {y}.
{b} put {b.his} {x*} {y} around {b.himself} and [yawned|hummed].
"""
