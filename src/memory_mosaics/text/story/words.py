"""The words of the story world: names, kinds of people and animals, things and what can happen to them, places."""


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def choices(text: str) -> list[str]:
    """The parts of a text between bars or line ends."""
    return [part.strip() for part in text.strip().replace("\n", "|").split("|")]


PETS = {
    "dog": "Rex Biscuit Bingo Rusty Scout Waffle Buster Patch Wags Barney Domino Sandy Tucker",
    "puppy": "Pepper Button Cocoa Noodle Peanut Sniff Bobo Mocha Pickle",
    "cat": "Whiskers Misty Tiger Socks Velvet Shadow Ginger Smoky Duchess Pebble",
    "kitten": "Mittens Fluff Pixie Dot Snowy Tiggy Purry Bean",
    "rabbit": "Clover Nibbles Hopper Thistle Bramble Tufty",
}
ANIMALS = words("""
    rabbit fox bear mouse squirrel hedgehog badger otter beaver frog duck deer owl turtle raccoon mole monkey lion
    elephant penguin panda sheep pig crow goose
""")
FINDERS = words("fox badger squirrel mouse duck hedgehog frog crow bird turtle rabbit otter")
SURNAMES = words("""
    Reed Bell Hill Stone Lane Brook Green Potter Wood Marsh Field Finch Snow Berry Moss Gray Cook Page
""")
CHORES = choices("""
    sweep the floor|carry some wood|pick up the apples|feed the hens|wash the cups|find a lost hammer|hang up the wash
    dig up the carrots|water the beans|brush the horse|roll a barrel up the hill|stir the jam|clean the windows
""")
JOBS = words("""
    baker farmer gardener shopkeeper fisherman postman librarian painter teacher sailor miller tailor
""")

TRAITS = {
    "brave": """
        was not [afraid of|scared of] [anything|much|high places or the dark]
        [climbed the highest trees|walked in front when it was dark|held big spiders in {a.his} hand]
    """,
    "shy": """
        [did not like to|found it hard to] [speak to new people|talk in front of others]
        [hid behind the door|turned red|looked at {a.his} feet] when [guests came|somebody said hello]
    """,
    "kind": """
        [liked to help|was always ready to help|tried to be nice to] [others|everyone|anyone who was sad]
        [fed the birds|carried bags for old people|saved worms from puddles] [every day|whenever {a.he} could]
    """,
    "greedy": """
        always wanted [more|the biggest piece|everything for {a.himself}]
        [took two when there was one for each|counted {a.his} candy every night|did not like to give things away]
    """,
    "curious": """
        wanted to [know|find out|see] how everything [worked|was made]
        [looked under every stone|took clocks apart|asked why all day long]
    """,
    "careless": """
        [often forgot|never looked|did not always see] where {a.he} [put|left] things
        [lost a glove each week|spilled {a.his} milk each morning|often wore two different socks]
    """,
    "careful": """
        [always put|liked to put] things [back in the right place|where they belonged]
        [looked left and right twice|checked every knot two times|never ran on wet stones]
    """,
    "proud": """
        [liked to say|often said] that {a.he} was the [best|fastest] [at everything|of all]
        [walked with {a.his} nose in the air|did not like to lose|told everybody how strong {a.he} was]
    """,
    "patient": """
        could [wait|sit still] for a [long|very long] time
        [watched snails for hours|never said hurry up|could fish all day and catch nothing]
    """,
    "clever": """
        [often had|was full of] good ideas
        [could do sums in {a.his} head|knew the names of all the stars|solved riddles before breakfast]
    """,
    "gentle": """
        [spoke softly|was soft and quiet] and never [pushed|shouted]
        [carried beetles out of the house|walked on tiptoe when others slept|stroked every cat in the street]
    """,
    "merry": """
        [sang|hummed|whistled] [all day long|from morning to night|even when it rained]
        [laughed at every joke|danced while brushing {a.his} teeth|skipped instead of walking]
    """,
}
COLOURS = words("red blue green yellow white black brown purple pink gray golden silver")
RIPE = ["big", "sweet", "fresh", "juicy", "ripe", "round"]
BAKED = ["big", "sweet", "warm", "fresh", "tasty", "soft"]
FLOWER_COLOURS = ["red", "yellow", "white", "pink", "purple", "golden"]
FEELS = words("old new small tiny shiny pretty striped spotted")

# What can happen to a thing: b breaks, e is eaten, k is blown by the wind, r rolls or floats away, n is good against
# the dark, w is worn, h is made by hand, j is a fruit, t is a toy, s is small enough to lose or hide, v is precious.
THINGS = {
    "kite": "kt", "ball": "rt", "balloon": "kt", "boat": "rth", "train": "ts", "drum": "bt", "doll": "sth",
    "teddy bear": "st", "puppet": "sth", "spinning top": "st", "robot": "bts", "truck": "ts", "paper plane": "kth",
    "hoop": "rt", "whistle": "sv", "bell": "sv", "marble": "srt", "puzzle": "tb", "book": "sv", "crayon": "bs",
    "paintbrush": "s", "flute": "bsv", "horn": "sv", "rattle": "bst", "jump rope": "ts", "scooter": "t", "sled": "th",
    "shovel": "s", "lantern": "bn", "flashlight": "bn", "candle": "bn", "mirror": "bv", "cup": "b", "mug": "b",
    "plate": "b", "bowl": "b", "vase": "bv", "teapot": "bv", "clock": "bv", "snow globe": "bv", "music box": "bsv",
    "picture frame": "bvh", "shell": "bsv", "feather": "ksv", "stone": "s", "button": "s", "coin": "sv", "ring": "sv",
    "necklace": "bsvh", "bracelet": "sbvh", "crown": "bvh", "ribbon": "ksv", "badge": "sv", "map": "ksv", "hat": "kws",
    "cap": "kws", "scarf": "kwsh", "coat": "w", "sweater": "wh", "umbrella": "kb", "blanket": "h", "pillow": "h",
    "rope": "", "net": "", "spoon": "s", "pen": "sb", "notebook": "sv", "card": "kh", "flag": "kh", "mask": "bh",
    "birdhouse": "hb", "bag": "s", "toy car": "rst", "toy horse": "st", "globe": "rb", "violin": "bv",
    "magnet": "s", "medal": "sv", "statue": "bv", "wand": "sbt", "cape": "wkh", "watch": "bsv", "lunch bag": "s",
    "apple": "ej", "pear": "ej", "peach": "ej", "plum": "ej", "banana": "ej", "cookie": "e",
    "cupcake": "e", "muffin": "e", "pie": "e", "cake": "e", "sandwich": "e", "bun": "e", "pancake": "e",
    "pretzel": "e", "melon": "ej", "honey cake": "e", "nut roll": "e", "berry tart": "e", "cheese roll": "e",
    "waffle": "e", "biscuit": "e", "doughnut": "e", "apple pie": "e",
}  # fmt: skip

MADE_OF = {
    "boat": ("wood", "paint"), "doll": ("cloth", "thread"), "puppet": ("cloth", "thread"), "sled": ("wood", "nails"),
    "paper plane": ("paper", "glue"), "picture frame": ("wood", "glue"), "necklace": ("string", "glass beads"),
    "bracelet": ("string", "wooden beads"), "crown": ("paper", "golden paint"), "scarf": ("wool", "knitting needles"),
    "sweater": ("wool", "knitting needles"), "blanket": ("wool", "knitting needles"), "pillow": ("cloth", "feathers"),
    "card": ("paper", "crayons"), "flag": ("cloth", "paint"), "mask": ("paper", "paint"),
    "birdhouse": ("wood", "nails"),
    "cape": ("cloth", "thread"),
}  # fmt: skip

# Where a place is (t town, w wild), and what it has: trees (T), water (W), wind (O, for open), walls (I, for indoors).
PLACES = {
    "the park": ("at", "tTO"), "the garden": ("in", "twTO"), "the playground": ("at", "tO"), "the school": ("at", "tI"),
    "the market": ("at", "t"), "the beach": ("at", "tWO"), "the lake": ("by", "twWT"), "the river": ("by", "twWTO"),
    "the pond": ("by", "twWT"), "the forest": ("in", "twT"), "the farm": ("at", "tTO"), "the library": ("in", "tI"),
    "the bakery": ("in", "tI"), "the barn": ("in", "twI"), "the meadow": ("in", "twO"), "the hill": ("on", "twO"),
    "the bridge": ("on", "twW"), "the mill": ("by", "twW"), "the orchard": ("in", "twT"),
    "the train station": ("at", "t"),
    "the toy shop": ("in", "tI"), "the museum": ("in", "tI"), "the zoo": ("at", "tT"), "the harbor": ("at", "tWO"),
    "the old tower": ("at", "twI"), "the cave": ("in", "wI"), "the berry field": ("in", "twO"),
    "the big oak": ("by", "wTO"),
    "the waterfall": ("by", "wW"), "the valley": ("in", "wO"), "the village square": ("in", "tO"),
    "the swamp": ("by", "wW"),
}  # fmt: skip
# Where things are put: in the house and in the yard; some have a lock, are big enough for a child, or
# hold earth.
CONTAINERS = {
    "inside": words("box basket drawer tin chest pot sack suitcase cupboard trunk boot"),
    "outside": words("box basket bucket barrel pot sack crate tin boot mailbox"),
    "inside lock": words("box drawer tin chest suitcase cupboard trunk desk"),
    "inside big": words("chest crate cupboard trunk closet"),
    "outside big": words("barrel crate cart tent hut tub"),
    "outside earth": words("bucket pot tub crate barrel"),
}
INSIDE = choices("""
    under the bed|behind the door|beside the stove|under the stairs|by the window|behind the sofa
    next to the bathtub|under the table|on top of the shelf|near the fireplace|at the end of the hall
    behind the curtain
""")
OUTSIDE = choices("""
    under the bench|behind the fence|beside the gate|under the apple tree|behind the shed|next to the well
    near the hedge|behind the big rock|by the doghouse|under the old wagon|beside the hay|at the foot of the wall
""")
LANDMARKS = choices("""
    a red gate|a crooked tree|a white fence|a broken cart|a tall rock|a stone wall|a little bridge|a hollow log
    a round pond|a blue door|a pile of hay|a yellow sign|an old well|a scarecrow|a row of pines|a green bench
    a patch of clover|a tower of stones|a bird bath|a muddy ditch
""")
NOUNS = words("""
    tree door house home friend water wind rain seed flower garden path road window table bed shelf light night
    morning song story name hand foot heart face nose box chest drawer basket bucket barrel tent crate sack
""")
VERBS = set(
    words("""
    ran walked looked found lost gave took asked smiled laughed cried hugged shared helped hid waited climbed
    jumped broke fixed opened closed carried pulled pushed threw caught called whispered shouted sang danced
    played wished dreamed promised forgot remembered thanked followed searched knocked slept ate drank baked
    painted built planted watered grew fell rolled flew floated swam dug shook nodded waved ran hurried stopped
    listened heard saw felt knew wanted loved liked went came made told said put held kept brought left tried
    started showed traded
""")
)
# Words that mean the same wherever the phrases use them; the teller takes any of them in place of the first.
SYNONYMS = """
at once|right away|straight away
began to|started to
a long time|a good while
in the evening|toward evening|when evening came
In the evening|Toward evening|When evening came
The next day|The next morning|One day later
Suddenly|All at once|All of a sudden
everyone|everybody
nobody|no one
Nobody|No one
somebody|someone
Somebody|Someone
looked at|gazed at|stared at
wanted to|wished to|hoped to
ran to|hurried to|rushed to|raced to
smiled|grinned|beamed
laughed|giggled|chuckled
shouted|yelled
was afraid|was scared|was frightened
was happy|was glad|was cheerful
felt happy|felt good|felt glad
was sad|felt sad|was unhappy
were sad|felt sad|were unhappy
so happy|so glad|so pleased
so sad|so unhappy
angry|mad|cross
looked for|searched for|hunted for
path|trail
present|gift
so good|so nice|wonderful
after a while|after some time|some time later
After a while|After some time|Some time later
Later|A bit later|Some time later
Soon|Before long
At last|Finally|In the end
at last|finally
In the end|At last|Finally
thought about it|thought it over
again and again|over and over
all day long|the whole day
tiptoed|crept|sneaked
for a moment|for a second|for a little while
a little bit|a bit
looked around|looked about
took a deep breath|breathed in and out
had an idea|had a plan|thought of something
jumped up|leaped up
very quiet|completely quiet|strangely quiet
the whole way|all the way
picked up|lifted up
ran off|ran away|dashed off
ran back|hurried back|dashed back
got worried|grew worried|began to worry
saw it|noticed it
no use|no good
never forget|always remember
far away|a long way off
could not believe|could hardly believe
could not wait|could hardly wait
learned that|found out that|understood that
fell asleep|drifted off to sleep
went to bed|crawled into bed
went home|walked home|headed home
walked home|went home|headed home
Just then|At that moment|Right then
heard a|caught the sound of a
All right|Very well|Fine
I am sorry|I am so sorry|I am really sorry
I promise|I give you my word
Thank you|Thanks|Thank you so much
Do not cry|Please do not cry
""".strip().splitlines()
