"""The words that stories are made of. How they are put together lives in `cast` and in the plots."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in text.split(","))


GIRLS = _words(
    "Ada Alma Anna Bea Carla Cleo Clara Cora Dora Edith Ella Elsie Emma Esther Eva Flora Freya "
    "Gwen Hanna Hazel Heidi Ida Ines Iris Ivy Jane Jill Julia June Kate Leah Lena Lily Lucy Mabel "
    "Maya Mia Mina Mona Nadia Nell Nina Nora Olga Olive Paula Pearl Petra Polly Rita Rosa Ruby "
    "Ruth Sally Sara Sofia Stella Sue Tessa Thea Tilda Vera Viola Wanda Willa Yara Zoe"
)
BOYS = _words(
    "Abel Adam Alan Albert Anton Arlo Art Ben Bert Bill Bruno Carl Colin Dan David Dean Eddie "
    "Emil Eric Ezra Felix Finn Frank Fred George Gus Hal Hank Harry Henry Hugo Ian Ivan Jack Jacob "
    "Jim Joe John Karl Ken Kurt Leo Levi Liam Louie Luke Mark Martin Matt Max Milo Ned Neil Noah "
    "Oscar Otto Owen Paul Peter Ralph Ray Robin Sam Simon Ted Theo Tim Toby Tom Victor Walter Will"
)
PET_NAMES = _words(
    "Acorn Biscuit Bramble Bubble Bumble Button Cinder Clover Cocoa Crumb Dumpling Fern Fluff "
    "Ginger Hazelnut Honey Maple Marble Misty Moss Muffin Nibble Noodle Nutmeg Oatmeal Patch "
    "Peanut Pebble Pepper Pickle Pip Plum Poppy Pumpkin Rusty Shadow Smudge Snowy Socks Sorrel "
    "Speckle Sunny Thistle Toffee Truffle Tulip Velvet Waffle Whisker Willow Wink"
)
TITLES = {
    "he": _words("Grandpa Uncle Mr. Farmer Captain Old"),
    "she": _words("Grandma Granny Aunt Mrs. Miss Nurse"),
}
JOBS = _words("baker farmer miller painter teacher tailor gardener sailor doctor singer")

# A coined name is a start, perhaps a middle, and an end, so that a small vocabulary spells it in
# several tokens: guessing the first is luck, copying the rest is skill.
NAME_STARTS = _words(
    "Bal Bel Bor Bram Cal Cor Dan Dor Del Fen Fil Flo Gal Gil Gor Hal Han Hol Ish Jun Jor Kel Kor "
    "Lan Lin Lor Mab Mar Mer Mil Mor Nan Nel Nor Ol Or Pel Pim Pol Quil Quin Ran Ros Rum Sal Sim "
    "Sol Tal Tam Tib Tor Tul Ul Val Vin Vor Wen Wil Win Yel Yor Zan Zel Zim"
)
NAME_MIDDLES = _words(
    "ba be bi bo da de di do fa fi ka ko la li lo lu ma me mi mo na ne ni no pa pe po ra re ri ro "
    "sa se ta te ti to va ve vi wa we wi"
)
NAME_ENDS = _words(
    "bel bin bo by dle dra din fin fy ka kin la lan lee ley lo lyn mer min na nel nie nor ra rick "
    "rin ro rell ster sy tam tha tle ton vin wen wick win wyn"
)

ANIMALS = _words(
    "ant badger bat bear beaver bee beetle bunny calf camel cat chick cow crab crow deer dog dove "
    "duck eagle elephant elk ferret fox frog goat goose hamster hare hedgehog hen horse kitten "
    "ladybug lamb lion lizard mole monkey moose mouse newt otter owl ox panda parrot pig pigeon "
    "pony puppy rabbit raccoon rat raven robin seal sheep skunk sloth snail spider squirrel stork "
    "swan tiger toad turkey turtle walrus weasel wolf wombat yak zebra"
)
TINY_ANIMALS = _words("ant bee beetle chick cricket ladybug mouse shrew snail spider wren moth")
MOUNTS = _words("donkey pony mule horse camel ox goat")
FISH = _words("carp eel perch pike salmon trout fish catfish")

COLOURS = _words(
    "red blue green yellow orange purple pink brown black white grey golden silver scarlet violet "
    "turquoise"
)
LOOKS = _words(
    "big bright broken bumpy clean crooked curly dusty fancy fluffy funny fuzzy heavy huge knitted "
    "large light little long lovely lumpy muddy new odd old painted plain polished pretty rough "
    "round rusty scratched shabby shiny short silky simple small smooth soft sparkly spotted "
    "square sticky strange striped stripy tall tattered thick thin tiny ugly velvet wide wobbly "
    "wooden woolly wrinkled"
)
TASTES = _words(
    "big bitter crisp crunchy crumbly fat fine fresh frosted funny juicy little long lumpy plump "
    "ripe round salty shiny small soft sour spicy sticky sugary sweet tasty tender thick thin tiny "
    "toasted ugly warm yummy"
)
TOYS = _words(
    "airplane ball balloon bear boat bow bucket car cart castle clown crown doll dragon drum flute "
    "hoop horn horse kite marble mask monster penguin pirate puppet puzzle rattle robot rocket "
    "sailboat ship skateboard sled snake spaceship sword tambourine top tractor train trumpet "
    "truck unicorn wagon whistle xylophone"
)
FINDS = _words(
    "acorn arrow bead bell book bottle bracelet brush button candle chain coin comb compass cork "
    "cup egg envelope feather flag jewel key lantern leaf locket magnet medal mirror mushroom nail "
    "necklace needle nut pearl pebble pencil photo pin pinecone postcard ring ribbon shell spring "
    "stamp star stick stone ticket thimble watch"
)
TOOLS = _words(
    "basket blanket bowl broom bucket chair hammer hook jug ladder lamp mop net oar pan pillow pole "
    "pot rake rope sack saw shovel spade spoon stool string tray umbrella wheel"
)
CLOTHES = _words(
    "apron belt bonnet boot cap cape cardigan coat collar dress glove hat hood jacket jumper mitten "
    "raincoat sash scarf shawl shirt shoe skirt slipper sock sweater tie veil vest"
)
POTS = _words("basin bowl cup dish glass jar jug mug pan pitcher plate pot teapot tub vase urn")
BIG_THINGS = _words(
    "anchor barrel bathtub boot carrot cart chest pumpkin root sledge tire trunk turnip umbrella "
    "wagon wheel log onion"
)
DOORS = _words("door gate hatch curtain cupboard chest oven tunnel wardrobe cabinet")
FOODS = _words(
    "apple bagel banana biscuit bun cake candy cherry cookie cracker cupcake date doughnut "
    "dumpling egg fig gingerbread lemon lollipop loaf melon muffin noodle nut omelette orange "
    "pancake peach peanut pear pickle pie plum potato pretzel pudding radish roll sandwich sausage "
    "scone strawberry tart tomato turnip waffle"
)
VEGETABLES = _words(
    "aubergine bean beet cabbage carrot celery cucumber leek lettuce mushroom onion parsnip pea "
    "pepper potato pumpkin radish squash tomato turnip yam"
)
TREES = _words(
    "apple ash beech birch cherry chestnut elm fir maple oak olive pear pine plum willow"
)
PLANTS = _words(
    "aster bluebell buttercup crocus dahlia daffodil daisy geranium iris lily marigold orchid pansy "
    "peony petunia poppy primrose rose snowdrop sunflower tulip violet"
)
PAINTABLES = _words(
    "apple bear bridge bird bus cat castle cloud cow dog dragon elephant fish giraffe horse house "
    "island king lion moon mountain owl palace pig queen rabbit rainbow river rocket sheep ship "
    "snail snake sun tiger tower train tree umbrella whale windmill"
)
SCARY = _words("bull dog goat goose moth owl rooster scarecrow shadow spider statue turkey wolf")
DOLLS = _words("bear bunny clown doll duck elephant giraffe knight lamb monkey penguin robot tiger")

PLACE_FEATURES = _words(
    "Barn Bay Beach Bridge Brook Castle Cave Corner Cove Creek Farm Field Forest Gate Green Grove "
    "Hill Hollow House Island Lake Lane Marsh Meadow Mill Mountain Park Path Pond Rock Square "
    "Station Stream Street Tower Valley Village Wood"
)
PLACE_TRAITS = _words(
    "Apple Bee Berry Bell Blue Butter Candle Cherry Clover Cold Copper Dew Fern Foggy Foxglove "
    "Green Honey Long Lost Low Maple Merry Mossy Nettle North Old Pebble Rainy Rose Rushy Sandy "
    "Silver Sleepy Snowy South Star Stony Sunny Thunder Upper Wild Windy"
)
FURNITURE = _words(
    "barrel basket bathtub bed bench blanket bookcase boat box broom bucket bush cart chair chest "
    "couch crate cupboard curtain cushion desk door fence hammock hay haystack hedge ladder log "
    "piano pillow pot rug sack shed shelf sofa stairs stool stove table tent tree trunk tub "
    "wagon wall wheelbarrow"
)
LANDMARKS = _words(
    "arch barn bench birch boulder bridge bush cabin chapel church cottage fence fountain garden "
    "gate haystack hedge house hut ladder lamp log mailbox mill oak pine post pump rock scarecrow "
    "shed statue stump swing tower tunnel wall wagon well windmill"
)
LANDMARK_TRAITS = _words(
    "broken burnt crooked empty fallen flat haunted high hollow leaning little lonely low mossy "
    "muddy narrow old painted pointed quiet round rusty sleepy split square tall twisted wide"
)
PASSWORD_WORDS = tuple(dict.fromkeys(FINDS + FOODS + TOOLS + ANIMALS))
NOISES = _words(
    "boing bonk chirp clack clang click clip clop clunk crackle creak ding dong drip flap flop "
    "gurgle hiss hoo hum jingle knock murmur oof patter ping plink plop plunk pop rap rattle "
    "ribbit rustle scratch scritch shush snap sniff snuffle splash squeak squish swish tap thud "
    "thump tick tock toot twang whack wheeze whirr whizz whoosh zing zip zoom"
)
SONG_HEADS = _words(
    "Bibble Bippity Bobble Bumble Clippety Diddle Dibble Dumble Fiddle Fuddle Giggle Hey Hickory "
    "Higgle Hobble Hoppity Humble Hippety Jiggle Jingle Jumble Lolly Nibble Noddle Paddle Pepper "
    "Piddle Pitter Pumble Puddle Rickety Riddle Ripple Rumble Shilly Skippety Snippety Tickle "
    "Tiddle Tipple Toddle Topple Tumble Twiddle Waddle Wibble Wiggle Willow Wobble Yankee Zippety"
)
# Each family rhymes: tails follow a head and a hyphen, lines end the song.
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
