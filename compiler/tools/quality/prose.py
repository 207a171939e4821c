"""This project's texts for tasks: sentences as filler, words for keys."""

from __future__ import annotations

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""The filler of the pass key task (Landmark Attention, arXiv 2305.16300) and of RULER's "repeat" haystack."""

SENTENCES = (
    "The harbour woke slowly that morning, and the gulls walked along the wall as if they owned it.",
    "A woman in a yellow coat was counting crates of apples and writing the number on her sleeve.",
    "Two boys argued about a kite, then about a dog, and then about who had started arguing.",
    "The baker had burnt the first loaves again and sold them at half price without saying why.",
    "Far out, a ferry turned its light on although the sun was already up.",
    "Nobody in the town could remember a spring with so little rain.",
    "The clock on the customs house was fast, and everyone had learned to subtract.",
    "An old man was mending a net with blue thread because the shop had run out of green.",
    "Somewhere behind the church a piano was being tuned, one patient note after another.",
    "The teacher opened every window of the school and let the wind read the papers first.",
    "A carpenter measured the door twice, cut it once, and found that the house had moved.",
    "In the evening the fishermen played cards on an upturned boat and cheated only a little.",
    "The library had more stairs than books, and the stairs were the better kept of the two.",
    "Her grandmother kept buttons in a jar and could tell the coat that each of them came from.",
    "The train to the mountains stopped at every gate, whether or not there was anyone to let in.",
    "A painter had been given the whole north wall and used most of it for clouds.",
    "When the mill closed, the river went on turning the wheel for nobody in particular.",
    "They planted beans along the fence and talked about the price of timber.",
    "The doctor rode a bicycle with no bell and sang loudly at the corners instead.",
    "On market days the square smelled of cheese, rope and warm bread.",
    "The letter had crossed the sea to say that nothing much had happened.",
    "A cat slept in the post office, in the tray for parcels that were too heavy to send.",
    "It was the kind of summer in which people moved their tables into the street.",
    "The orchestra rehearsed the slow movement until the lamps were lit.",
    "He drew maps of places where he had been only once, and they were very nearly right.",
    "The bridge was painted from one end to the other, and then it was time to begin again.",
    "Snow fell on the roofs first and reached the ground some time in the afternoon.",
    "The shoemaker told the same story to every customer and a different ending to each.",
    "Along the canal, somebody had hung lanterns in the trees and forgotten to light them.",
    "A small boat went by, carrying a bed, two chairs and a very large clock.",
    "The gardener knew the names of the roses and pretended to know those of the visitors.",
    "At noon the bells of both churches rang, and neither would be the first to stop.",
    "She kept bees on the roof of the bank, and the clerks kept their windows shut.",
    "The old road follows the stream, and the new one follows nothing at all.",
    "By the stove lay a dog that had once won a prize for something.",
    "The captain polished the brass himself, because that way it was done by breakfast.",
    "Children collected chestnuts in a bucket and traded them by rules that changed daily.",
    "A stranger asked the way to the station and was given four answers, all of them kind.",
    "The potter threw away the best bowl of the day because it looked too pleased with itself.",
    "Every autumn the hotel closed for a month, and the sea had the view to itself.",
    "The tailor hummed while he cut and was silent while he sewed.",
    "Rain ran down the tin roof and into a barrel that was never full.",
    "Their aunt arrived with three suitcases, one of which was only for hats.",
    "The museum owned half of a famous statue and spoke of it as a whole.",
    "In the valley the grain was already yellow, and the storks had begun to gather.",
    "The lamp in the lighthouse was changed in May, and the moths took weeks to get used to it.",
    "A farmer leaned on his gate and watched the evening come up the hill.",
    "The printer set the poem by hand and corrected the poet as he went.",
    "For supper there was soup, and after the soup there was a long conversation about soup.",
    "The ferry came in, let nine people and a bicycle ashore, and went out again.",
)

NOUNS = tuple(
    """acorn anchor apple apron arrow attic badge bakery balcony bamboo banjo barn barrel basin basket beach beacon bell
    bench berry bird blanket boat bonfire book boot bottle bowl box bracelet branch bread brick bridge broom brush
    bucket butter button cabin cable camera canal candle canoe canvas cape carpet carrot castle cedar ceiling cello
    chair chalk cherry chest chimney circus cliff clock cloud clover coat coin comet compass copper coral corner cotton
    cousin cradle crane crayon creek crown cup curtain dancer desert desk diamond dinner dock doctor dolphin donkey door
    dragon drawer dress drum eagle easel elbow engine envelope fabric falcon farmer feather fence fern ferry fiddle
    finger flag flame flute forest fork fossil fountain fox frame garden garlic gate giant ginger glacier glove goat
    grape guitar hammer harbor harp hat hawk hazel helmet hill honey hotel house igloo island ivory jacket jar jelly
    jewel jungle kettle key kitchen kite kitten ladder lake lantern lemon letter lily lion lizard lock lobster magnet
    mango map maple marble market mask meadow melon mirror mitten monkey moon mosaic mountain mouse museum mushroom
    napkin needle nest notebook oak oar ocean olive onion orange orchard otter owl paddle palace panda paper parrot
    peach pearl pebble pelican pencil pepper piano pigeon pillow pine planet plate plum pocket pond pony poplar
    porch potato prairie pumpkin puppet quarry quilt rabbit radio raft railway raven ribbon river robin rocket
    roof rope rose saddle sailor salmon sandal scarf school seal shadow sheep shelf shell ship shovel silk silver
    singer sister skate slipper snail snow sock sofa spider spoon square squirrel stable station statue stone stove
    street sugar summer swan table teapot temple tent thimble thread tiger timber tomato tower trail train tree
    trumpet tulip tunnel turnip turtle umbrella valley vase velvet village violin wagon walnut water whale wheel
    whistle willow window winter wizard wolf wool yarn zebra""".split()
)

ADJECTIVES = tuple(
    """amber ancient bitter blue bold brave brief bright broad bronze calm careful cheerful clean clever cold
    cosy crisp curious dark deep distant dry dusty eager early empty faint fancy fast fierce fine flat fond frozen
    gentle glad golden good grand gray great green happy heavy hidden hollow honest humble idle jolly keen kind
    large late lazy light little lively lonely long loud loyal lucky mellow mild modest narrow neat new noble odd
    old pale patient plain polite proud quick quiet rapid rare red rich ripe rough round royal rustic salty sharp
    shiny short shy silent simple slow small smooth soft solid sour spare steady steep stiff still strange strong
    sturdy sunny sweet swift tall tame tender thick thin tidy tiny tough vast violet warm weary white wide wild wise
    witty yellow young""".split()
)
