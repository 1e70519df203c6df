"""The words that stories are made of. What is made of them lives in `cast` and in the plots."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in text.split(","))


GIRLS = _words(
    "Ada Anna Bea Clara Cora Dora Ella Elsie Emma Eva Flora Gwen Hanna Hazel Ida Iris Ivy Jane "
    "Jill June Kate Lena Lily Lucy Mabel Maya Mia Mina Nell Nina Nora Olive Pearl Polly Rita Rosa "
    "Ruby Ruth Sally Sara Sue Tessa Tilda Vera Willa Zoe"
)
BOYS = _words(
    "Abel Adam Alan Arlo Art Ben Bert Bill Bruno Carl Dan David Dean Emil Eric Felix Finn Fred "
    "Gus Hal Hank Harry Hugo Ian Ivan Jack Jim Joe John Ken Leo Luke Mark Matt Max Milo Ned Noah "
    "Oscar Otto Owen Paul Peter Ray Sam Simon Ted Theo Tim Tom Will"
)
PET_NAMES = _words(
    "Acorn Biscuit Bramble Bubble Button Clover Cocoa Crumb Fern Fluff Ginger Honey Maple Marble "
    "Moss Muffin Nibble Noodle Patch Peanut Pebble Pepper Pickle Pip Plum Poppy Rusty Shadow "
    "Snowy Socks Sunny Toffee Tulip Velvet Waffle Willow Wink"
)
TITLES = {
    "he": _words("Grandpa Uncle Mr. Farmer Captain Old"),
    "she": _words("Grandma Granny Aunt Mrs. Miss Nurse"),
}
JOBS = _words("baker farmer miller painter teacher tailor gardener sailor doctor singer")

# A coined name is a start, perhaps a middle, and an end, so that a small vocabulary spells it in
# several tokens: guessing the first is luck, copying the rest is skill.
NAME_STARTS = _words(
    "Bal Bel Bor Bram Cal Dan Del Dor Fen Fil Gal Gor Han Hol Jor Kel Lan Lor Mab Mar Mer Mil Nan "
    "Nel Or Pel Pim Quin Ran Ros Rum Sal Sim Tal Tam Tib Tor Ul Val Ven Wen Wil Yor Zan Zel Zim"
)
NAME_MIDDLES = _words(
    "ba be bo da de di fa fi ko la li lo lu ma mi mo na no ra ri ro sa ta ti to va ve wi"
)
NAME_ENDS = _words(
    "bel bin by dle dra din fin fy kin lan lee lo lyn min na nel nor ra rick rin rell sy tam tha "
    "ton vin wen wick win"
)

ANIMALS = _words(
    "badger bat bear beaver bee bunny calf camel cat chick cow crab crow deer dog dove duck "
    "elephant fox frog goat goose hamster hare hedgehog hen horse kitten lamb lion lizard mole "
    "monkey moose mouse otter owl panda parrot pig pony puppy rabbit raccoon rat robin seal sheep "
    "skunk snail squirrel swan tiger toad turtle wolf zebra"
)
TINY_ANIMALS = _words("ant bee beetle chick cricket ladybug mouse shrew snail spider wren moth")
MOUNTS = _words("donkey pony mule horse camel ox goat")
PETS = _words(
    "cat collie dog ferret goat hamster kitten lamb pony poodle puppy rabbit spaniel terrier"
)
TAGS = _words("bandana belt bow cape coat collar ribbon sash scarf sweater vest")
FISH = _words("carp eel perch pike salmon trout fish catfish")

COLOURS = _words("red blue green yellow orange purple pink brown black white grey golden silver")
LOOKS = _words(
    "big bright broken bumpy clean crooked dusty fancy fine funny fuzzy heavy huge light little "
    "long lovely lumpy muddy new old plain pretty round rusty shabby shiny short small smooth "
    "soft spotted sticky striped tall thick thin tiny wide wobbly"
)
CREATURE_LOOKS = _words(
    "big clever fancy fat fluffy friendly funny fuzzy gentle happy huge hungry lazy little lonely "
    "long lovely merry noisy old plump proud quiet shiny shy silly sleepy slow small soft spotted "
    "striped tall thin tiny wild wise young"
)
PLANT_LOOKS = _words(
    "big bright fancy fine fresh huge little lovely pale pretty proud rare shiny small soft "
    "spotted striped sweet tall thin tiny wild"
)
TASTES = _words(
    "big crisp crunchy fine fresh funny juicy little long lumpy plump round salty small soft sour "
    "sticky sweet tasty thick thin tiny warm yummy"
)
TOYS = _words(
    "ball balloon bear boat bow bucket car cart castle crown doll dragon drum flute hoop horn "
    "horse kite marble mask pirate puppet puzzle rattle robot rocket ship sled sword top train "
    "trumpet truck wagon whistle"
)
FINDS = _words(
    "arrow bead bell book bottle button candle chain coin comb cork cup egg feather flag jewel "
    "key lamp leaf mirror nail needle nut pearl pencil pin ribbon ring shell spring stamp star "
    "stick stone ticket watch"
)
TOOLS = _words(
    "basket blanket bowl broom bucket chair hammer hook jug ladder mop net oar pan pillow pole "
    "pot rake rope saw shovel spoon stool tray wheel"
)
CLOTHES = _words(
    "apron belt boot cap cape coat dress glove hat hood jacket mitten sash scarf shawl shirt shoe "
    "skirt sock sweater tie vest"
)
POTS = _words("bowl cup dish glass jar jug mug pan plate pot teapot tub vase")
BIG_THINGS = _words(
    "anchor barrel boot carrot cart chest pumpkin root tire trunk turnip wagon wheel log onion"
)
DOORS = _words("door gate hatch curtain cupboard chest oven tunnel wardrobe cabinet")
FOODS = _words(
    "apple biscuit bun cake cherry cookie cracker cupcake dumpling fig lemon loaf melon muffin "
    "orange pancake peach pear pickle pie plum potato pretzel pudding roll sandwich sausage scone "
    "tart tomato waffle"
)
VEGETABLES = _words(
    "bean beet cabbage carrot leek lettuce mushroom onion parsnip pea pepper potato pumpkin "
    "radish tomato turnip"
)
TREES = _words(
    "apple ash beech birch cherry chestnut elm fir maple oak olive pear pine plum willow"
)
PLANTS = _words(
    "aster bluebell buttercup crocus dahlia daffodil daisy geranium iris lily marigold orchid "
    "pansy peony petunia poppy primrose rose snowdrop sunflower tulip violet"
)
PAINTABLES = _words(
    "apple bear bird boat bus cat castle cloud cow dog dragon elephant fish horse house king lion "
    "moon mountain owl pig queen rabbit rainbow river sheep ship snail snake sun tiger tower "
    "train tree whale"
)
SCARY = _words("bull dog goat goose owl rooster scarecrow shadow spider wolf")
DOLLS = _words("bear bunny clown doll duck elephant giraffe knight lamb monkey penguin robot tiger")

PLACE_FEATURES = _words(
    "Barn Bay Beach Bridge Castle Cave Corner Farm Field Forest Gate Hill Hollow House "
    "Island Lake Lane Marsh Meadow Mill Mountain Park Path Pond Rock Street Tower Valley Wood"
)
PLACE_TRAITS = _words(
    "Apple Bee Berry Bell Blue Candle Cherry Clover Cold Copper Fern Foggy Honey Long Lost "
    "Maple Merry Mossy North Old Pebble Rainy Rose Sandy Silver Sleepy Snowy South Star Stony "
    "Sunny Wild Windy"
)
FURNITURE = _words(
    "barrel basket bed bench blanket boat box broom bucket bush cart chair chest cupboard curtain "
    "cushion desk door fence hedge ladder log piano pillow pot rug shed shelf sofa stairs stool "
    "stove table tent tree tub wagon wall"
)
LANDMARKS = _words(
    "barn bench bridge bush cabin church cottage fence fountain gate hedge house hut lamp log "
    "mill oak pine post pump rock shed statue stump swing tower tunnel wall wagon well"
)
LANDMARK_TRAITS = _words(
    "broken crooked empty fallen flat high hollow leaning little lonely low mossy muddy narrow "
    "old quiet round rusty sleepy square tall twisted wide"
)
PASSWORD_WORDS = tuple(dict.fromkeys(FINDS + FOODS + TOOLS + ANIMALS))
NOISES = _words(
    "boing bonk chirp clack clang click clip clop clunk creak ding dong drip flap flop hoo hum "
    "jingle knock ping plink plop pop rap rattle ribbit scratch snap sniff splash squeak swish "
    "tap thud thump tick tock toot twang whirr whoosh zing zip zoom"
)
SONG_HEADS = _words(
    "Bibble Bobble Bumble Clippety Diddle Dumble Fiddle Giggle Hey Hickory Hobble Hoppity Jiggle "
    "Jingle Jumble Lolly Nibble Paddle Pepper Pitter Puddle Rickety Riddle Ripple Rumble Skippety "
    "Tickle Tiddle Topple Tumble Twiddle Waddle Wibble Wiggle Wobble Zippety"
)
# Each family rhymes: a song is two heads and a tail, then a line that ends like the tail.
SONG_RHYMES = tuple(
    (_words(tails), _phrases(lines))
    for tails, lines in (
        (
            "dum rum tum hum plum drum",
            "here I come, bang the big drum, sweet as a plum, I suck my thumb, buzz and hum, "
            "give me a crumb, cold fingers go numb, over the hills I come",
        ),
        (
            "dee fee hee tree bee lee",
            "come and see, you and me, up in a tree, a busy bee, one two three, down to the sea, "
            "home for tea, happy and free",
        ),
        (
            "day hey play may lay hay",
            "come what may, jump in the hay, out all day, I know the way, hip hip hooray, "
            "nothing to pay, the sky is grey, let us go and play",
        ),
        (
            "doo boo moo shoe loo too",
            "the moon is blue, I see you, a hole in my shoe, the cow says moo, me and you too, "
            "sticky as glue, the wind blew and blew, who are you",
        ),
        (
            "dop hop top mop pop lop",
            "never stop, down you drop, skip and hop, spin like a top, up to the top, "
            "soap on the mop, corn goes pop, lambs go hop",
        ),
        (
            "ding ring sing wing ling king",
            "hear me sing, I found a ring, bells go ding, birds on the wing, up on a swing, "
            "the cat saw a king, a piece of string, winter and spring",
        ),
        (
            "do go ho row low so",
            "off we go, high and low, in the snow, row boat row, fast and slow, watch me grow, "
            "friend or foe, the winds blow",
        ),
        (
            "dight night light right kite white",
            "day and night, hold on tight, out of sight, what a bright light, up goes the kite, "
            "snow is white, just one bite, it will be all right",
        ),
    )
)
BOAT_NOUNS = _words(
    "Arrow Bell Duck Feather Gull Heron Lady Lion Moon Otter Pearl Penguin Queen Rose Seal Star "
    "Swallow Swan Teapot Whale"
)
WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
HOURS = _words("one two three four five six seven eight nine ten eleven twelve")
