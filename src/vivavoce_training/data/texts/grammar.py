"""Random sentences from templates, with numbers, dates and times in words."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from vivavoce_training.data.texts.lexicon import WORDS

ONES: list[str] = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS: list[str] = str.split("_ _ twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
_SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1000, "thousand"))


def cardinal(number: int, *, conjunction: bool = True, hyphen: bool = False) -> str:
    """Spell a number below a trillion: 514 is "five hundred and fourteen", 24 with `hyphen` "twenty-four"."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return _join(TENS[number // 10], ONES[number % 10] if number % 10 else "", "-" if hyphen else " ")
    if number < 1000:
        rest = cardinal(number % 100, hyphen=hyphen) if number % 100 else ""
        return _join(f"{ONES[number // 100]} hundred", rest, " and " if conjunction else " ")
    unit, name = next((unit, name) for unit, name in _SCALES if number >= unit)
    rest = cardinal(number % unit, conjunction=conjunction, hyphen=hyphen) if number % unit else ""
    return _join(f"{cardinal(number // unit, conjunction=conjunction, hyphen=hyphen)} {name}", rest, " ")


def ordinal(number: int) -> str:
    """The ordinal of a number from 1 to 99: 22 is "twenty second"."""
    if number in _ORDINALS:
        return _ORDINALS[number]
    if number < 20:
        return ONES[number] + "th"
    if number % 10 == 0:
        return TENS[number // 10][:-1] + "ieth"
    return f"{TENS[number // 10]} {ordinal(number % 10)}"


def year(number: int) -> str:
    """Spell a year from 1100 to 2099 as pairs of digits: 1984 is "nineteen eighty four", 2005 "two thousand five"."""
    if 2000 <= number < 2010:
        return _join("two thousand", ONES[number % 10] if number % 10 else "", " ")
    century, rest = cardinal(number // 100), number % 100
    if rest == 0:
        return f"{century} hundred"
    return f"{century} oh {ONES[rest]}" if rest < 10 else f"{century} {cardinal(rest)}"


def random_number(r: random.Random) -> str:
    """Draw a number below ten million in words, more often a short number; "and" and hyphens are optional."""
    digits = r.choice((1, 2, 2, 2, 3, 3, 4, 5, 6, 7))
    number = r.randrange(10 ** (digits - 1), 10**digits)
    if digits > 4:  # large numbers are rounded, as in speech
        number -= number % 10 ** (digits - 3)
    return cardinal(number, conjunction=r.random() < 0.7, hyphen=r.random() < 0.3)


def random_time(r: random.Random) -> str:
    """A time of day: "half past six", "eleven forty two", "three thirty PM", "five o'clock"."""
    hour = ONES[r.randrange(1, 13)]
    kind = r.randrange(5)
    if kind == 0:
        return f"{hour} o'clock"
    if kind == 1:
        return f"{r.choice(('half past', 'quarter past', 'quarter to', 'ten past', 'twenty to'))} {hour}"
    minute = r.randrange(60)
    spoken = cardinal(minute) if minute >= 10 else f"{r.choice(('o', 'oh'))} {ONES[minute]}" if minute else ""
    half = r.choice(("AM", "PM", "in the morning", "in the evening", "at night")) if kind == 2 or not minute else ""
    return " ".join(part for part in (hour, spoken, half) if part)


def random_digits(r: random.Random, low: int, high: int) -> str:
    """Between `low` and `high` random digits in words, as in a telephone number."""
    return " ".join(ONES[r.randrange(10)] for _ in range(r.randint(low, high)))


def random_amount(r: random.Random, units: tuple[str, ...]) -> str:
    """An amount of one of the units: "twelve dollars", "three point five miles"."""
    unit = r.choice(units)
    if r.random() < 0.2:
        return f"{ONES[r.randrange(20)]} point {' '.join(ONES[r.randrange(10)] for _ in range(r.randint(1, 2)))} {unit}"
    return f"{cardinal(r.randrange(2, r.choice((20, 100, 1000))))} {unit}"


def _join(first: str, second: str, between: str) -> str:
    return f"{first}{between}{second}" if second else first


_SLOT = re.compile(r"\{(a )?(\w+)\}")
_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_CONSONANT_Y = re.compile(r"(?<=[^aeiou])y$")
_IRREGULAR = {
    **{one: f"{one[:-2]}ves" for one in ("knife", "wife")},
    **{one: f"{one[:-1]}ves" for one in ("leaf", "loaf", "scarf", "shelf", "wolf")},
    **{f"{one}man": f"{one}men" for one in ("", "fisher", "police", "wo")},
    **{
        "sheep": "sheep",
        "child": "children",
        "goose": "geese",
        "mouse": "mice",
        "potato": "potatoes",
        "tomato": "tomatoes",
    },
}

TEMPLATES = tuple(
    line.strip()
    for line in """
    {name} {did} the {adj} {thing} {adv}.
    {name} and {name} {did} {small} {things} {adv}.
    {person} {did} {a thing} and {a thing}.
    {person} {did} the {thing}, but not the {thing}.
    {person} {went} {adv}.
    {person} {went}, and then {person} {went} {adv}.
    the {living} {went} near {spot}.
    the {adj} {living} {did} the {adj} {thing}.
    {a adj} {living} {did} my {thing} {adv}.
    the {living} and the {living} {went} together.
    the {adj} {thing} is near the {adj} {thing}.
    there is {a adj} {thing} behind the {thing}.
    there are {small} {adj} {things} in {room}.
    this {thing} is {adj}, {adj} and {adj}.
    my {thing} is {adj}, but yours is {adj}.
    the {color} {thing} is more {adj} than the {color} one.
    I have never {did} such {a adj} {thing} in {city}.
    I would like {a adj} {thing}, please.
    I think that the {thing} belongs to {name} {family}.
    {subject} {do} the {things} every {day}.
    {subject} never {do} {a thing} without {a thing}.
    we want to {do} the {thing} before {day}.
    you must not {do} the {thing} {adv}.
    they plan to {do} {small} {things} in {country}.
    {name} wants to {do} and {do} every {thing}.
    it is {time} in {city}.
    the time is {time}.
    it is now {time}, and the {living} is {adj}.
    the train to {city} leaves at {time} from platform {small}.
    the bus from {city} arrives at {time}.
    flight {digits} to {city} is delayed until {time}.
    the next train to {country} stops in {city} and {city}.
    your meeting with {name} is at {time}.
    your appointment with {title} {family} is on {day} at {time}.
    we will meet on {day}, {month} {ordinal}.
    we will meet on {day}, the {ordinal} of {month}.
    today is {day}, the {ordinal} of {month}, {year}.
    {name} was born on {month} {ordinal}, {year}.
    in {year}, {name} {family} moved from {city} to {city}.
    the {thing} was made in {country} in {year}.
    in {month} and {month} it is {adj} in {country}.
    the number is {number}.
    the answer is {number}.
    the total is {money}.
    {number} percent of the {things} are {adj}.
    it weighs {mass}.
    the {thing} is {distance} long and {distance} high.
    {small} plus {small} is {small}.
    {small} times {small} makes {number}.
    {small}, {small}, {small}, {small}, {small}.
    the code is {digits}.
    please call {name} at {digits}.
    my telephone number is {digits}.
    dial {digits} for {topic}.
    room {hundreds} costs {money}.
    room {hundreds} is on the {ordinal} floor.
    page {hundreds} of the {thing} is missing.
    the {thing} costs {money} in {city}.
    it takes {duration} to walk from {spot} to {spot}.
    {city} is about {distance} away from {city}.
    about {number} people live in {city}.
    the {adj} {living} is {small} years old.
    the {ordinal} {thing} is {adj}, the {ordinal} is {adj}.
    chapter {small}, {adj} {things}.
    {hello}, my name is {name}, and I come from {place}.
    {hello}, {name}. How was the {thing}?
    {hello}, {title} {family}, how are you today?
    {hello}, this is {name} from {city}.
    {hello}, {name}, did you sleep well?
    {hello} from {city}, the {adj} city of {things}.
    {hello}, I am {name}, your {adj} {job}.
    good night, {name}, and sweet dreams.
    dear {name}, thank you for the {adj} {thing}.
    thank you for the {things}, {name}.
    welcome to {place}, {name}.
    goodbye, {name}, see you on {day}.
    let me introduce {title} {family} from {place}.
    is {name} at home?
    are you {mood}, {name}?
    why are you so {mood} {adv}?
    I am {mood} because the {thing} is {adj}.
    {name} looks {mood} and {mood}.
    my {living} is {a job} in {city}.
    {name} works as {a job} near {spot}.
    {name} is learning about {topic} and {topic}.
    do you know anything about {topic}?
    tell me about {topic}.
    tell me a story about {a adj} {living} and {a adj} {thing}.
    what do you think about {topic}?
    I would like to talk about {topic} and {topic}.
    the book about {topic} is next to the {thing}.
    can you bring the {thing} to {place} {adv}?
    could you {do} the {thing}, please?
    would you like {food} or {food}?
    should we {do} the {adj} {thing} or the {adj} one?
    where is the {adj} {thing}?
    where can I {do} {a thing} in {city}?
    who {did} my {adj} {thing}?
    who is the {adj} {living} in {room}?
    when did {name} {do} the {thing}?
    how do you {do} {a adj} {thing}?
    how many {things} are in the {thing}?
    how much does the {color} {thing} cost?
    how far is it from {city} to {city}?
    what color is the {thing}?
    what happened to the {living} {adv}?
    why is every {thing} in {place} so {adj}?
    which {thing} is yours, the {adj} one or the {adj} one?
    has anybody seen my {color} {thing}?
    did {name} really {do} the {thing}?
    is it {adj} or {adj}?
    turn on {device} in {room}, please.
    turn off {device}, and lock the door.
    switch {device} on at {time}.
    set a timer for {duration}.
    set an alarm for {time} on {day}.
    I have set a timer for {small} minutes.
    I have turned off {device} in {room}.
    remind me to {do} the {thing} at {time}.
    remind {name} to {do} the {things} on {day}.
    play some {adj} music in {room}.
    add {food} and {food} to the shopping list.
    there are {small} items on your list: {food}, {food} and {food}.
    send a message to {name}: I am {mood}.
    you have {small} new messages from {name}.
    call {name} {family}.
    open the {thing}, then close the {thing}.
    put the {color} {thing} on the {thing}.
    do not {do} the {adj} {thing}.
    please {do} the {thing} and {do} the {thing}.
    take the {ordinal} street on the left, then turn right.
    turn left on {street} and drive for {distance}.
    go straight ahead until you see {spot}.
    you will find {spot} at {small} {street}.
    {name} lives at {hundreds} {street} in {city}.
    the weather in {city} is {adj}, with {weather}.
    expect {weather} and {weather} on {day}.
    tomorrow there will be {weather} in {country}.
    the temperature in {city} is {small} degrees.
    it will be {adj} and {adj} in the north, with {weather} in the south.
    I would like some {food} with {food}.
    for breakfast {name} had {food}, {food} and {food}.
    mix the {food} with {mass} of {food}.
    the {food} in {city} is {adj}.
    {a adj} {thing} is better than {a adj} {thing}.
    once there was {a adj} {living} who {did} {a adj} {thing}.
    if you {do} the {thing}, I will {do} the {thing}.
    when the {living} {went}, the {living} {went}.
    although it was {adj}, {name} {went}.
    because of the {weather}, nobody {did} the {thing}.
    neither the {living} nor the {living} {did} it.
    either {name} or {name} {did} the {thing}.
    not only the {thing}, but also the {thing} is {adj}.
    {name} said that the {thing} was {adj}.
    {name} asked whether the {living} {did} the {thing}.
    I'm sure you'll {do} the {thing}.
    I can't {do} the {thing}, it's too {adj}.
    she didn't {do} it, and he won't {do} it.
    we've {did} the {things}, haven't we?
    that's {name}'s {thing}, isn't it?
    they're {mood}, aren't they?
    don't be {mood}, it's only {a thing}.
    it's {a adj} {thing}!
    what {a adj} {thing}!
    how {adj} the {things} are!
    {adj} {things}.
    {a thing} and {a thing}.
    {color}, {color}, {color} and {color}.
    {thing}, {thing}, {thing}, {living}.
    {name}, {name}, {name} and {name}.
    {day}, {day} and {day}.
    {city}, {country}.
    {city}, {city} and {city}.
    the capital is {city}, not {city}.
    yes, {name}, the {thing} is {adj}.
    no, the {thing} is not {adj}.
    sorry, I did not {do} the {thing}.
    well, it is not so {adj} after all.
    oh, how {adj}!
    maybe {adv}.
    that is {adj}.
    my name is spelled {letter} {letter} {letter} {letter}.
    the letter {letter} comes before the letter {letter}.
    press {letter} and {small} at the same time.
    this {thing} speaks with {a adj} voice.
    the voice that you hear is {adj} and {adj}.
    every sentence that I say is {adj}.
    I can read {things}, {things} and numbers like {number}.
    """.strip().splitlines()
)
"""In a template, a slot in braces names a category of the lexicon or a key of `_VALUES`; "a" adds an article."""


def sentence(r: random.Random) -> str:
    return fill(r.choice(TEMPLATES), r)


def fill(template: str, r: random.Random) -> str:
    filled = _SLOT.sub(lambda slot: _value(slot[2], bool(slot[1]), r), template)
    return filled[0].upper() + filled[1:]


def article(word: str) -> str:
    """Put "a" or "an" before the word, by its first letter and a few exceptions."""
    sounds_as_vowel = word[0].lower() in "aeiou" and not word.startswith(("uni", "use", "usu", "eu", "one", "ukulele"))
    return f"{'an' if sounds_as_vowel or word.startswith(('hour', 'honest', 'heir')) else 'a'} {word}"


def plural(word: str) -> str:
    """The plural of a noun; only irregular nouns of the lexicon are known."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if _CONSONANT_Y.search(word):
        return word[:-1] + "ies"
    return word + ("es" if _SIBILANT.search(word) else "s")


def _value(slot: str, with_article: bool, r: random.Random) -> str:
    value = _VALUES[slot](r) if slot in _VALUES else r.choice(WORDS[slot])
    return article(value) if with_article else value


_GREETINGS = (
    "hello", "hi", "hi there", "good morning", "good afternoon", "good evening", "welcome", "hello again",
    "hello world", "excuse me", "nice to meet you", "dear friends", "hey",
)  # fmt: skip

_VALUES: dict[str, Callable[[random.Random], str]] = {
    "things": lambda r: plural(r.choice(WORDS["thing"])),
    "place": lambda r: r.choice(WORDS[r.choice(("city", "country", "spot"))]),
    "hello": lambda r: r.choice(_GREETINGS),
    "small": lambda r: cardinal(r.randrange(2, r.choice((13, 21, 100))), hyphen=r.random() < 0.3),
    "hundreds": lambda r: cardinal(r.randrange(1, 1000), conjunction=r.random() < 0.7),
    "number": random_number,
    "money": lambda r: random_amount(r, ("dollars", "euros", "pounds", "cents")),
    "distance": lambda r: random_amount(r, ("meters", "kilometers", "miles", "feet", "inches", "centimeters")),
    "duration": lambda r: random_amount(r, ("seconds", "minutes", "hours", "days", "weeks", "months", "years")),
    "mass": lambda r: random_amount(r, ("grams", "kilograms", "pounds", "ounces", "liters", "cups")),
    "digits": lambda r: random_digits(r, 3, 7),
    "time": random_time,
    "ordinal": lambda r: ordinal(r.randrange(1, 32)),
    "year": lambda r: year(r.randrange(1700, 2060)),
}
