"""The default sentences of a load test."""

from __future__ import annotations

SENTENCES: tuple[str, ...] = (
    "Of course I will.",
    "Not before noon.",
    "Please wait outside.",
    "I have no idea.",
    "Turn the light off.",
    "Where did you park?",
    "That is not my coat.",
    "We open again on Monday.",
    "Could you say that once more?",
    "The soup needs a little salt.",
    "She left her keys on the table.",
    "All trains stop here until the evening.",
    "My brother works at the harbour now.",
    "The library closes early on the last Friday.",
    "He painted the fence green over the weekend.",
    "You will find the forms in the second drawer.",
    "The wind changed before we had reached the island.",
    "Her first letter arrived three weeks after she had left.",
    "Nobody in the office knew how to open the window.",
    "The baker gave us what was left of the morning bread.",
    "I would rather walk home than wait another hour for him.",
    "Your parcel is on its way and should be there by Thursday.",
    "They built the new school where the old market used to stand.",
    "If it rains tomorrow, we can still meet at the small museum.",
    "The doctor asked a few short questions and wrote down all the answers.",
    "There is a path behind the church that leads down to the water.",
    "After the concert we talked for a while with the man who played the cello.",
    "The recipe is simple, but you have to give the dough enough time to rise.",
    "Last summer they drove along the coast and slept in a different village every night.",
    "Before you sign the contract, read the last page again and ask about the second paragraph.",
    "The lights went out all over the street, and for a moment everything was completely quiet.",
    "I have moved your appointment to the afternoon, because the morning was already full when you called.",
    "When the snow finally melted, we saw how much the winter had done to the road and the garden.",
    "The machine is easy to use: fill in the water, press the upper button, and wait until the lamp is green.",
    "She had promised to call as soon as she landed, but her telephone had run out of power somewhere over the sea.",
    "Most people who visit the town stay for one day only, see the castle and the bridge, and never find the best part "
    "of it.",
    "The committee will meet once more in the spring, look at all the proposals that have come in, and choose the one "
    "that costs the least.",
    "He told us that the house had belonged to his family for more than a century, and that nobody had ever thought of "
    "selling it until the roof came down.",
    "If you take the early boat you will be on the other side by nine, which leaves enough time for breakfast before "
    "the bus starts its long way up into the mountains.",
    "What I liked best about the old workshop was the smell of wood and oil, the radio that nobody ever switched off, "
    "and the patience with which my grandfather explained everything to me twice.",
)
"""Plain English without numbers or names, 3 to 34 words long, half of them with 11 or fewer."""
