"""The sentences that are spoken when none are given."""

from __future__ import annotations

SENTENCES: tuple[str, ...] = (
    "The old bridge was closed after the storm.",
    "She keeps a small garden behind the house.",
    "Nobody could remember the name of the street.",
    "The children ran across the field to meet the train.",
    "His answer was short, but it was honest.",
    "A thin layer of snow covered the roof.",
    "They argued about the price until the shop closed.",
    "The doctor told him to rest for a week.",
    "We heard music from the open window.",
    "The river is too cold for swimming in spring.",
    "It is seven fifteen in Chicago.",
    "Room three hundred and twelve costs eighty four dollars.",
    "Please call Martha at five five two nine seven three.",
    "Can you bring the letter to London before Friday?",
    "The number is six thousand one hundred and forty.",
    "It is twelve thirty in the kitchen.",
    "Peter and Anna ordered nine pictures very quickly.",
    "Why is every window in this town so narrow?",
    "The meeting starts on Monday at a quarter past ten.",
    "Turn left at the second light and stop near the bank.",
)
"""Plain English, half of it with numbers, times and names; every word is in the CMU dictionary."""
