"""Measures how often the guard finds faults that were put into speech, and how often it gives a false alarm.

    python -m benchmarks.guard [--model NAME] [--count NUMBER] [--seed NUMBER] [--json FILE]

The language model speaks sentences, and its attention to the text is recorded. Then faults are put into its output:
speech tokens, with their attention, are left out, repeated, looped or cut off. For a leak, the model reads the speech
tokens of its reference as if it had just spoken them. An alarm in the unchanged output is false; each is listed,
because the model may really have left its text. `runaways` are sentences that ended only at their length limit.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import vivavoce
from vivavoce.engine.guard import LOOK_EVERY, FoundFault, GuardedText, find_fault
from vivavoce.engine.lm_stage import LMStage, plain_run
from vivavoce.engine.lm_stage.head_search import embedded
from vivavoce.engine.request import Fault
from vivavoce.engine.text_cursor import TextCursor
from vivavoce.frontend.front_end import PlannedSegment
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.text_heads import know_heads
from vivavoce.models.lm.interleave import Row as LMRow
from vivavoce.models.lm.interleave import RowKind
from vivavoce.models.lm.text_attention import TextHeads, text_attention
from vivavoce_bench.hardware import machine
from vivavoce_bench.measure import tell

SENTENCES = Path(__file__).parent / "sentences/held_out.txt"
SLOTS, CAPACITY = 16, 2048
FAULTS = ("early_end", "skip", "repeat", "loop", "stand")
LONGEST, LEAKED = 200, 50
Row = NDArray[np.float32] | None
"""A speech token's attention to the prompt's text and the text behind it; None: not recorded."""


class Spoken(NamedTuple):
    line: str
    planned: PlannedSegment
    tokens: list[int]
    rows: list[Row]
    most: int
    """Limit of speech tokens, at which the language model is stopped."""

    @property
    def is_runaway(self) -> bool:
        return len(self.tokens) > self.most


def heads_of(engine: vivavoce.Vivavoce) -> TextHeads:
    know_heads(engine.engine, engine.front_end)
    if engine.engine.text_heads is None:
        raise SystemExit("this model has no attention heads that follow the text")
    return engine.engine.text_heads


def guarded(engine: vivavoce.Vivavoce, seed: int) -> Iterator[tuple[str, PlannedSegment]]:
    """Endless guarded sentences, each with the next voice and the next seed."""
    lines = [line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip()]
    voices = engine.voices()
    for number in itertools.count():
        line, voice = lines[number % len(lines)], engine.voice(voices[number % len(voices)])
        yield line, next(iter(engine.front_end.plan(line, voice, SpeakOptions(seed=seed + number, guard=True))))


def speak(engine: vivavoce.Vivavoce, count: int, seed: int) -> list[Spoken]:
    """Generate the speech tokens of `count` sentences, with each token's attention; no audio is made."""
    models, heads = engine.engine.models, heads_of(engine)
    live, done, waiting = dict[int, Spoken](), list[Spoken](), list[Spoken]()
    for line, planned in itertools.islice(guarded(engine, seed), count):
        run = plain_run(models.config.lm, planned.request, official=False, room=None)
        waiting.append(Spoken(line, planned, [], [], run.forced_at))
    with torch.inference_mode():
        stage = LMStage(models, slots=SLOTS, capacity=CAPACITY)
        stage.watch(heads)
        while waiting or live:
            begun = {}
            while waiting and stage.free_slots:
                one = waiting.pop(0)
                request = one.planned.request
                slot = stage.open(request.sampling, request.seed)
                begun[slot] = plain_run(models.config.lm, request, official=False, room=None)
                live[slot] = one
            if begun:
                stage.prefill(begun)
            stage.decode()
            for found in (one for _ in range(stage.in_flight) for one in stage.collect(wait=True)):
                if found.slot in live:
                    live[found.slot].tokens.extend(found.ids)
                    live[found.slot].rows.extend(
                        [None] * len(found.ids) if found.attention is None else found.attention
                    )
                    if found.ended:
                        done.append(live.pop(found.slot))
                        stage.close(found.slot)
    return done


def look(tokens: Sequence[int], rows: Sequence[Row], text: GuardedText, unspoken: int) -> FoundFault | None:
    """The first fault that the guard finds if it gets the tokens step by step, as in the engine; None: no fault."""
    cursor = TextCursor()
    for count, row in enumerate(rows, start=1):
        cursor.add(1, None if row is None else row[None], -unspoken)
        if count % LOOK_EVERY == 0 and (finding := find_fault(cursor, tokens[:count], text, False)):
            return finding
    return find_fault(cursor, tokens, text, True)


def broken(fault: str, tokens: list[int], rows: list[Row], dice: random.Random) -> tuple[list[int], list[Row]]:
    count = len(tokens)
    at = dice.randrange(count // 4, count // 2)
    if fault == "early_end":
        return tokens[:at], rows[:at]
    if fault == "skip":
        to = at + dice.randrange(count // 4, count // 3)
        return tokens[:at] + tokens[to:], rows[:at] + rows[to:]
    if fault == "repeat":
        since = max(1, at - dice.randrange(15, 30))
        return tokens[:at] + tokens[since:], rows[:at] + rows[since:]
    if fault == "loop":
        period = dice.randrange(2, 12)
        times = LONGEST // period
        return tokens[:at] + tokens[at - period : at] * times, rows[:at] + rows[at - period : at] * times
    return tokens[:at] + [dice.randrange(6561) for _ in range(80)], rows[:at] + [rows[at]] * 80


def leaked(engine: vivavoce.Vivavoce, one: Spoken) -> tuple[list[int], list[Row]]:
    """Tokens and attention of speech that begins with the reference's first seconds; empty without a reference."""
    models, heads, request = engine.engine.models, engine.engine.text_heads, one.planned.request
    voice = request.conditioning
    assert heads is not None
    if not voice.lm_prompt_text or not voice.lm_prompt_tokens:
        return [], []
    run = plain_run(models.config.lm, request, official=False, room=None)
    tokens = [*voice.lm_prompt_tokens[:LEAKED], *one.tokens[:-1]]
    rows = embedded(models.lm, (*run.rows, *(LMRow(RowKind.SPEECH, token) for token in tokens)))
    begin, text = len(run.rows) - 1, slice(run.watched[0], run.watched[-1] + 1)
    with torch.inference_mode():
        attention = text_attention(models.lm, rows, text, slice(begin, begin + len(tokens)))
    mean = torch.stack([attention[place] for place in heads.heads]).mean(dim=0)
    return tokens, list(mean.cpu().numpy())


def measure(engine: vivavoce.Vivavoce, count: int, seed: int) -> dict[str, Any]:
    spoken, dice = speak(engine, count, seed), random.Random(seed)
    pace = heads_of(engine).pace
    alarms, noticed, tried = [], dict.fromkeys((*FAULTS, "leak"), 0), 0
    for one in spoken:
        request, tokens = one.planned.request, one.tokens[:-1]
        text = GuardedText(len(request.text), request.guarded or (0,), pace)
        unspoken = len(request.conditioning.lm_text)
        if found := look(tokens, one.rows[: len(tokens)], text, unspoken):
            alarms.append({"text": one.line, "seed": request.seed, "fault": found.fault.value})
            continue
        if len(request.text) < 12:
            continue
        tried += 1
        for fault in FAULTS:
            noticed[fault] += look(*broken(fault, tokens, one.rows[: len(tokens)], dice), text, unspoken) is not None
        finding = look(*leaked(engine, one), text, unspoken)
        noticed["leak"] += finding is not None and finding.fault is Fault.LEAK
    share = {fault: round(found / max(1, tried), 4) for fault, found in noticed.items()}
    runaways = sum(one.is_runaway for one in spoken)
    counts = {"sentences": len(spoken), "runaways": runaways, "faults_of_each": tried}
    return {**counts, "noticed": share, "alarms": alarms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with vivavoce.load(asked.model) as engine:
        found = {"model": engine.card.name, **machine(engine.device), **measure(engine, asked.count, asked.seed)}
    tell(found, asked.json)


if __name__ == "__main__":
    main()
