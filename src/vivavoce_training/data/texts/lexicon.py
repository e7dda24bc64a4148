"""The grammar's words by category. All of them are in the usual pronouncing dictionaries of English."""

from __future__ import annotations

import re


def _each(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in " ".join(text.split()).split(","))


WORDS: dict[str, tuple[str, ...]] = {
    "name": _each(
        """Aaron Abigail Adam Adrian Alan Alex Alice Amanda Amy Andrea Andrew Angela Anna Anthony Arthur Barbara Ben
        Betty Brian Bruce Carl Carol Catherine Charles Charlotte Chloe Chris Claire Clara Daniel David Dennis Diana
        Dorothy Douglas Edward Eleanor Elizabeth Ellen Emily Emma Eric Ethan Eva Evelyn Felix Fiona Florence Frank
        George Gloria Grace Hannah Harold Harry Heather Helen Henry Howard Hugh Ian Irene Isaac Isabel Ivy Jack Jacob
        James Jane Jason Jean Jennifer Jerry Jessica Joan John Jonathan Joseph Joshua Joyce Judith Julia Julian Karen
        Keith Kenneth Kevin Laura Lawrence Leo Leonard Lewis Linda Lisa Louis Louise Lucy Luke Margaret Maria Mark
        Martha Martin Mary Matthew Max Megan Michael Michelle Miriam Molly Nancy Naomi Nathan Neil Nicholas Nicole Nina
        Noah Nora Norman Olivia Oscar Owen Pamela Patricia Patrick Paul Peter Philip Quentin Rachel Ralph Rebecca
        Richard Robert Robin Roger Rosa Roy Ruth Ryan Sally Samuel Sandra Sarah Scott Sharon Simon Sophie Stella
        Stephen Steve Stuart Susan Sylvia Teresa Theodore Thomas Timothy Tina Tony Ursula Valerie Vera Victor Victoria
        Vincent Violet Virginia Walter Wendy William Yvonne Zachary Zoe"""
    ),
    "family": _each(
        """Adams Allen Anderson Baker Bell Bennett Brooks Brown Campbell Carter Clark Collins Cooper Davies Edwards
        Evans Fisher Foster Gibson Graham Gray Green Hall Harris Hill Howard Hughes Jackson Johnson Jones Kelly King
        Lee Lewis Marshall Mason Miller Mitchell Moore Morgan Morris Murphy Murray Nelson Palmer Parker Phillips Price
        Reed Reynolds Richardson Roberts Robinson Rogers Russell Scott Shaw Simpson Smith Spencer Stevens Stewart Taylor
        Thompson Turner Walker Watson Webb White Williams Wilson Wood Wright Young"""
    ),
    "title": ("Mister", "Doctor", "Professor", "Captain", "Miss", "Uncle", "Aunt"),
    "city": _split(
        """Amsterdam, Athens, Atlanta, Austin, Baltimore, Barcelona, Beijing, Belfast, Berlin, Boston, Brussels,
        Budapest, Buffalo, Cairo, Cambridge, Cape Town, Chicago, Cleveland, Columbus, Copenhagen, Dallas, Denver,
        Detroit, Dublin, Edinburgh, Florence, Frankfurt, Geneva, Glasgow, Hamburg, Helsinki, Hong Kong, Houston,
        Istanbul, Jerusalem, Lisbon, Liverpool, London, Los Angeles, Madrid, Manchester, Melbourne, Memphis,
        Mexico City, Miami, Milan, Montreal, Moscow, Mumbai, Munich, Naples, Nashville, New York, Orlando, Oslo,
        Ottawa, Oxford, Paris, Philadelphia, Phoenix, Pittsburgh, Portland, Prague, Quebec, Rome, San Diego,
        San Francisco, Santa Fe, Seattle, Shanghai, Singapore, Stockholm, Sydney, Tokyo, Toronto, Vancouver, Venice,
        Vienna, Warsaw, Washington, Zurich"""
    ),
    "country": _split(
        """Argentina, Australia, Austria, Belgium, Brazil, Bulgaria, Canada, Chile, China, Colombia, Croatia, Cuba,
        Denmark, Egypt, England, Estonia, Ethiopia, Finland, France, Germany, Ghana, Greece, Hungary, Iceland, India,
        Indonesia, Ireland, Israel, Italy, Jamaica, Japan, Jordan, Kenya, Korea, Malaysia, Mexico, Morocco, Nepal,
        New Zealand, Nigeria, Norway, Pakistan, Peru, Poland, Portugal, Romania, Russia, Scotland, South Africa,
        Spain, Sweden, Switzerland, Thailand, Turkey, Ukraine, Vietnam, Wales"""
    ),
    "spot": _split(
        """the airport, the bakery, the bank, the beach, the bookshop, the bridge, the cafe, the castle, the cathedral,
        the cinema, the city hall, the corner shop, the factory, the farm, the garage, the garden, the harbor,
        the hospital, the hotel, the kitchen, the library, the lighthouse, the market, the museum, the office,
        the park, the pharmacy, the playground, the police station, the post office, the restaurant, the school,
        the station, the supermarket, the swimming pool, the theater, the town square, the university, the valley,
        the village, the waterfall, the workshop, the zoo"""
    ),
    "street": _split(
        """Bridge Street, Church Road, Elm Street, Garden Avenue, High Street, Hill Road, King Street, Lake Drive,
        Main Street, Maple Avenue, Market Square, Mill Lane, North Road, Oak Avenue, Park Lane, Queen Street,
        River Road, School Lane, South Street, Station Road, Victoria Street, Washington Street, West Avenue"""
    ),
    "day": _each("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "month": _each("January February March April May June July August September October November December"),
    "thing": _each(
        """answer apple armchair arrow balloon banana basket battery bell belt bench bicycle blanket boat book bottle
        bowl box bracelet branch brick bridge broom brush bucket button cabinet cable cage cake calendar camera candle
        canoe car card carpet castle chain chair chart cheese chest church clock coat coffee coin computer cookie
        copy cottage cradle crown cup curtain cushion desk diamond dictionary dish door drawer dress drum engine
        envelope eraser feather fence file flag flower flute fork fountain frame fruit furnace garden gate gift glass
        glove guitar hammer harp hat helmet house island jacket jar jewel judge juice jungle kettle key keyboard kite
        knife ladder lamp lantern leaf lemon letter lock machine magazine map mask measure meadow medal menu message
        microphone mirror model monument mountain muffin necklace needle newspaper notebook ocean onion orange orchard
        oven package page painting pan parcel path pencil pepper phone photograph piano picture pie pillow pipe plane
        planet plate pocket poem poster potato present puzzle question quilt radio recipe report ribbon ring river
        robot roof rope ruler salad sandwich saucer scarf  screen shelf shirt shoe shovel signal song soup
        spoon staircase stamp statue stone story stove suitcase sweater sword table telephone television temple
        tent ticket tomato tool toothbrush towel tower toy train treasure truck trumpet tunnel umbrella vase vehicle
        village violin wagon wall wallet watch wheel whistle window wire zipper"""
    ),
    "living": _each(
        """actor artist aunt baby baker bear bird boy brother butcher cat chicken child cook cousin cow daughter dentist
        doctor dog dolphin donkey dragon driver duck eagle elephant engineer farmer father fisherman fox friend frog
        gardener girl goat goose grandfather grandmother guard guest horse judge king kitten lawyer lion man manager
        mother mouse musician neighbor nephew nurse officer owl painter parrot passenger penguin pigeon pilot poet
        policeman prince princess pupil puppy queen rabbit sailor scientist sheep shepherd singer sister snake soldier
        son squirrel stranger student tailor teacher tiger tourist turtle uncle visitor waiter whale wife wizard wolf
        woman worker writer zebra"""
    ),
    "food": _split(
        """apple pie, bacon, beans, black tea, bread and butter, butter, carrots, cheese, cherries, chicken soup,
        chocolate, coffee, cold water, cream, eggs, fish and chips, fresh bread, fried rice, garlic, grapes,
        green peas, ham, honey, ice cream, lemonade, milk, mushrooms, noodles, nuts, olive oil, orange juice, pancakes,
        pasta, peaches, pears, pizza, pumpkin soup, roast beef, rice, salad, salt, strawberries, sugar, toast,
        tomatoes, vanilla cake, vegetables, vinegar, yogurt"""
    ),
    "adj": _each(
        """amazing ancient angry awful beautiful big bitter black blue bold brave brief bright broken brown busy calm
        careful cheap cheerful clean clever cold comfortable common complete cool correct crazy curious curved dangerous
        dark deep delicate delicious different difficult dirty dry early easy elegant empty enormous excellent
        expensive faint fair famous fancy fast final fine firm flat foolish foreign fragile free fresh friendly
        frozen full funny generous gentle giant glad golden good gray great green happy hard healthy heavy helpful
        high hollow honest huge humble hungry icy ideal important innocent jealous jolly joyful kind large late
        lazy light little lonely long loud lovely loyal lucky magic massive mild modern modest muddy mysterious narrow
        natural neat nervous new nice noisy normal odd old open orange ordinary pale patient peaceful perfect plain
        pleasant polite poor popular precious pretty private proud public purple quick quiet rare ready real red rich
        rough round royal rude rusty sad safe salty secret serious shallow sharp shiny short shy silent silly silver
        simple slow small smooth soft solid special square stiff strange strong sudden sunny sweet tall tender terrible
        thick thin thirsty tiny tired tough tropical typical ugly unusual useful useless usual vague valuable vast
        violet wealthy weak weird wet white whole wide wild wise wonderful wooden yellow young"""
    ),
    "did": _each(
        """admired bought broke brought built called carried caught changed chose cleaned closed collected copied
        counted covered delivered described designed discovered drew dropped earned examined explained fixed followed
        forgot found gave grabbed hid held ignored imagined invented joined kept kicked knew left lifted liked lost
        loved made measured mentioned missed moved needed noticed offered opened ordered owned packed painted passed
        picked placed planned praised prepared protected pulled pushed reached read received recognized remembered
        removed repaired returned saved saw searched sold sent shared showed stole studied threw touched tried turned
        used visited wanted washed watched wore wrapped"""
    ),
    "do": _each(
        """accept admire bring build buy carry change check choose clean close collect copy count cover deliver
        describe draw examine explain find finish fix follow forget get hide hold ignore keep leave lift measure
        mention move notice offer open order pack paint pick prepare protect pull push reach read recognize remember
        remove repair return save search see sell send share show study touch try turn use visit want wash watch
        wear wrap write"""
    ),
    "went": _split(
        """arrived, began to laugh, climbed the hill, cried, danced, disappeared, drove away, fell asleep, flew,
        got up, jumped, laughed, listened, looked around, nodded, paused, played, ran, rested, sang, sat down, shouted,
        slept, slipped, smiled, sneezed, spoke, stood still, stopped, swam, talked, traveled, waited, walked home,
        whispered, woke up, worked, yawned"""
    ),
    "adv": _split(
        """again, alone, already, always, at last, at once, after lunch, all day long, before dawn, by mistake,
        carefully, during the night, early in the morning, easily, every day, every week, exactly, for a while,
        for the first time, gently, happily, here, immediately, in a hurry, in silence, in the afternoon, in the dark,
        in the rain, last night, last week, later, loudly, never again, next week, now, of course, on purpose,
        on the way home, once more, over there, patiently, perfectly, politely, quickly, quietly, right away, sadly,
        slowly, sometimes, soon, suddenly, this morning, today, tomorrow, tonight, twice, under the stars,
        very carefully, very well, with great care, with pleasure, without a sound, without a word, yesterday"""
    ),
    "weather": _split(
        """bright sunshine, clear skies, clouds, cold wind, drizzle, fog, frost, hail, heavy rain, light rain,
        mist, rain, scattered showers, sleet, snow, storms, strong winds, sunny spells, thunder, warm air"""
    ),
    "mood": _split(
        """afraid, angry, ashamed, bored, calm, confused, curious, delighted, disappointed, excited, exhausted,
        grateful, happy, hungry, nervous, proud, relieved, sad, satisfied, sleepy, sorry, surprised, thirsty, tired,
        worried"""
    ),
    "job": _split(
        """architect, artist, baker, carpenter, chef, dentist, designer, doctor, driver, editor, electrician,
        engineer, farmer, gardener, journalist, judge, lawyer, librarian, mechanic, musician, nurse, painter, pilot,
        plumber, professor, programmer, scientist, singer, teacher, waiter, writer"""
    ),
    "topic": _split(
        """art, astronomy, biology, business, chemistry, climate, cooking, culture, economics, education, fashion,
        football, geography, health, history, justice, language, law, literature, mathematics, medicine, music, nature,
        peace, philosophy, photography, physics, poetry, politics, psychology, religion, science, space, sports,
        technology, tennis, the environment, the future, the news, the past, the stars, the weather, travel"""
    ),
    "device": _split(
        """the alarm, the camera, the coffee machine, the computer, the dishwasher, the door, the fan, the heating,
        the lamp, the light, the lights, the microphone, the music, the oven, the phone, the printer, the radio,
        the screen, the speaker, the television, the volume, the washing machine"""
    ),
    "room": _split(
        """the attic, the bathroom, the basement, the bedroom, the dining room, the garage, the hall, the kitchen,
        the living room, the office, the upstairs room"""
    ),
    "color": _each(
        "black blue brown crimson gold gray green orange pink purple red silver turquoise violet white yellow"
    ),
    "subject": _split("I, you, we, they, my friends, the children, people, the neighbors, both of them, some of us"),
    "person": _split("he, she, my brother, my sister, our neighbor, the old man, the young woman, somebody, everyone"),
    "letter": _each("B C D E F G H J K L M N O P Q R S T U V W X Y Z"),
}
"""Category → its words, in lower case unless a word always has a capital."""

_SPOKEN = """
        Yes. No! Hello. Hello! Hello? Hi! Hey. Thanks. Please. Sorry. Okay. Goodbye. Stop. Go. Wait! Really?
        Why? Maybe. Never. Always. Right. Wrong. Great! Perfect. Welcome. Ready? Ready. Done. Sure. Nothing.
        Now. Today. Tomorrow. Help! Look! Listen. Hello world. Hello world! Hello there. Thank you. Good
        morning. Good evening. Good night. Good afternoon. Good luck! Excuse me. Not yet. Come in. Sit down. See
        you. No problem. Well done. Of course. I see. Not bad. Too late. Who knows? What now? Guess what. Bless
        you. Be careful. Thank you very much. How are you? How are you today? Hello there, how are you today?
        Nice to meet you. What is your name? Where are you from? What time is it? I do not know. I don't know.
        See you tomorrow. See you later. You are welcome. You're welcome. Have a nice day. Let's go. It doesn't
        matter. I beg your pardon. Happy birthday to you! Merry Christmas! Happy New Year! Once upon a time. The
        end. Ladies and gentlemen. Good morning, everyone. Hello and welcome. Long time no see. This is a test.
        This is only a test. Testing, one, two, three. Can you hear me? Is anybody there? The quick brown fox
        jumps over the lazy dog. Pack my box with five dozen liquor jugs. How quickly daft jumping zebras vex.
        Sphinx of black quartz, judge my vow. The five boxing wizards jump quickly. Quick zephyrs blow and vex
        daft Jim. She sells sea shells by the sea shore. How much wood would a woodchuck chuck? Peter Piper
        picked a peck of pickled peppers. Red lorry, yellow lorry. The rain in Spain stays mainly in the plain.
        To be, or not to be, that is the question. I am a small voice that was made by a computer. I am only a
        demo, but I do my best. This voice was made by a machine. Every word that you hear was computed a moment
        ago. I cannot answer that question. I did not understand that. Please say that again. Could you repeat
        that more slowly, please? One moment, please. Please hold the line. Your call is important to us. Please
        leave a message after the tone. Mind the gap. The doors are closing. Please stand clear of the doors.
        Please fasten your seat belt. The weather is lovely today. It looks like rain. Dinner is ready. I am on
        my way. Practice makes perfect. Better late than never. Time flies. Actions speak louder than words. An
        apple a day keeps the doctor away. All that glitters is not gold. Where there is smoke, there is fire.
        The early bird catches the worm. Rome was not built in a day. Two heads are better than one."""
FIXED = tuple(re.split(r"(?<=[.?!]) ", " ".join(_SPOKEN.split())))
"""Complete utterances of one or more words: everyday phrases, pangrams, tongue twisters, proverbs."""
