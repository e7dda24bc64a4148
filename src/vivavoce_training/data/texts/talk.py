"""Templates of conversation: questions, wishes, worries, small talk; `grammar.fill` fills their slots."""

from __future__ import annotations

import random

from vivavoce_training.data.texts.grammar import fill

LINES = tuple(
    line.strip()
    for line in """
    So, what do you think?
    Well, I'm not so sure about that, {name}.
    Really? I had no idea!
    Oh no, I left my {thing} at {spot}.
    Are you serious? That's wonderful news!
    I can't believe it's already {time}.
    Do you have a minute? I'd like to ask you something.
    Of course, take your time.
    That's exactly what I was going to say.
    To be honest, I expected something better.
    I'm so sorry, I didn't mean to wake you.
    It doesn't matter, we can try again tomorrow.
    Could you say that again, a little more slowly?
    What would you do if you were me?
    I wish I could stay, but my train leaves at {time}.
    You should have seen his face when the {thing} fell down!
    How was your day? Mine was {adj}, to say the least.
    Have you ever been to {city}? It's {adj} in {month}.
    Last year we spent two weeks in {country}, and it rained every single day.
    Don't worry, everything is going to be all right.
    Thanks for calling back so quickly.
    Sorry I'm late, the traffic around {city} was terrible.
    Would you rather have {food} or {food}?
    I'll have the {food}, and my friend would like some {food}.
    Could we have the bill, please?
    Excuse me, is this seat taken?
    Where did you put the {color} {thing}? I can't find it anywhere.
    It's on the table, right where you left it.
    If it rains, we'll just stay at home and read.
    Did you hear that? I think somebody is at the door.
    Shh, be quiet, the baby is sleeping.
    Look, there's {a living} in the garden!
    Wait a moment, I'm almost ready.
    Let's go for a walk while the sun is still shining.
    What a beautiful morning!
    I've been thinking about what you told me yesterday.
    And? What have you decided?
    I decided to take the job in {city} after all.
    Congratulations! When do you start?
    On {day}, the {ordinal} of {month}.
    My {living} always says that patience is everything.
    The meeting has been moved to {day} at {time}.
    Please remember to send me the {things} before {day}.
    As far as I know, {name} hasn't answered yet.
    I'm afraid that's not possible before {month}.
    We've got a problem, and it's a big one.
    Nobody told me that {spot} would be closed today.
    There must be some kind of mistake.
    How long have you been waiting?
    Only about {small} minutes, don't worry.
    What's your favorite kind of {food}?
    I used to hate {food} when I was a child.
    Guess who I met near {spot} this morning?
    No way! I haven't seen {name} in years!
    Is there anything else I can do for you?
    No, thank you, that will be all.
    Please hold the line, I'll put you through to {title} {family}.
    All our lines are busy at the moment. Please try again later.
    Your order number is {digits}, and it will arrive on {day}.
    The total comes to {money}. Would you like to pay by card?
    Good morning, and welcome to the {time} news.
    In {city}, the {living} of the year was announced last night.
    The forecast for {day}: {weather}, turning to {weather} by the evening.
    According to a new study, {number} people in {country} own {a thing}.
    More than {number} visitors came to see the {adj} {thing}.
    Police in {city} are looking for {a color} {thing}.
    It was late in {month} when the letter finally arrived.
    The house stood at the end of {street}, hidden behind tall trees.
    For a long time, no one said a word.
    She smiled, closed the book, and turned off the light.
    He looked at the {thing}, then at {name}, and shook his head.
    "I don't understand," she said quietly.
    Nothing moved except the leaves, and the slow, dark water of the river.
    Once upon a time, in a small village near {city}, there lived {a adj} {job}.
    Every evening, the old man sat by the window and waited.
    Then, one night, something strange happened.
    The door opened slowly, but there was nobody there.
    They walked for hours, until they reached the edge of the forest.
    At last, the storm was over, and the sky turned {color} again.
    First, mix the {food} with {mass} of {food}. Then let it rest for {duration}.
    Make sure that the {thing} is {adj} before you {do} it.
    In other words, it's not about the money, it's about the time.
    On the one hand, it's {adj}. On the other hand, it's rather {adj}.
    The most important thing, however, is to begin.
    That's one small step, but it's a good start.
    This chapter explains how {things} are made, and why they matter.
    Scientists have known for years that {topic} is more {adj} than it seems.
    Between {year} and {year}, the city grew from {number} to {number} people.
    As we shall see, the answer is surprisingly simple.
    Why, then, do so many people still believe it?
    There are three reasons: time, money, and fear.
    What if we tried something completely different?
    I know, I know, you told me so.
    You never listen to me, do you?
    Come on, {name}, it'll be fun!
    I'd love to, but I really can't.
    Are you coming with us, or are you staying here?
    You look tired. Is everything okay?
    I'm fine, just a little {mood}.
    That was the best {food} I've ever had!
    Careful, the plate is very hot.
    Stop! Don't touch that!
    Help! Somebody, please help!
    Happy birthday, {name}!
    Have a nice weekend, and say hello to {name} from me.
    See you tomorrow, then. Good night!
    You're welcome. It was my pleasure.
    Actually, I've changed my mind.
    Hmm, let me think about it for a second.
    Yes, yes, of course!
    No, absolutely not.
    Maybe. Maybe not. We'll see.
    What time is it, please? It's {time}.
    How do you spell that? {letter}, {letter}, {letter}.
    Turn left at {spot}, and you'll see it on your right.
    The next stop is {city}. Please mind the gap.
    I bought {small} {things} for {money}, can you imagine?
    If only I had known that in {month}!
    You can either call us at {digits}, or write to {title} {family}.
    Remember what happened to {name} in {city}?
    Whatever you do, don't tell {name}.
    Not bad at all, considering that it was your first time.
    """.strip().splitlines()
)


def line(r: random.Random) -> str:
    """Draw a turn of a conversation, or a line or two of a story, the news or a book."""
    return fill(r.choice(LINES), r)
