"""Text that arrives: the runs give the tokens of a loop that asks for them one by one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest
import torch

from vivavoce.engine.lm_stage import LMStage, StreamingPrompt
from vivavoce.engine.lm_stage.slots import SamplingState
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import TextInterleaver
from vivavoce.models.randomness import SamplingRows, sample, uniform
from vivavoce_kernels.layouts import NoiseStream


class NeverEnds:
    """The best speech token; a stand-in for both engines' sampling."""

    def __call__(self, scores: torch.Tensor, *_: object) -> torch.Tensor:
        return scores[:, :6561].argmax(-1)


class Fills:
    """Counts, with a control id after every five ids where one is allowed."""

    def __call__(self, scores: torch.Tensor, state: SamplingState) -> torch.Tensor:
        control = scores[:, 6561:].argmax(-1) + 6561
        return torch.where(state.counts % 6 == 5, control, state.counts)


def interleaver(models: Models, prompted: int = 0, ratio: float = 20.0, seed: int = 0) -> TextInterleaver:
    config, rng = models.config.lm, random.Random(seed)
    return TextInterleaver(
        config.vocabulary,
        (config.mix_text, config.mix_speech),
        [rng.randrange(250) for _ in range(prompted // 3)],
        [rng.randrange(6561) for _ in range(prompted)],
        ratio,
    )


def spoken(stage: LMStage, text: StreamingPrompt, pieces: Iterable[Sequence[int]], seed: int) -> list[int]:
    """Drive one stream; tokens that were accepted before an error are part of what it raises."""
    slot, arriving, tokens = stage.open(SamplingParams(), seed), iter(pieces), []
    while not text.done:
        try:
            run = text.next_run()
        except InvalidRequest as error:
            raise InvalidRequest(f"{len(tokens)} tokens, then {error}") from error
        if run is None:
            piece = next(arriving, None)
            text.close() if piece is None else text.push(piece)
            continue
        stage.prefill({slot: run})
        while stage.decoding or stage.in_flight:
            stage.decode()
            for one in stage.collect(wait=True):
                tokens += text.accept(one.ids)
    stage.close(slot)
    return tokens


def one_by_one(models: Models, stream: TextInterleaver, pieces: Sequence[Sequence[int]], seed: int) -> list[int]:
    """The official loop: rows as they are asked for, one id after each, everything read again every time."""
    lm, settings = models.lm, models.config.lm.sampling
    tables = {"CONTROL": lm.control_embedding, "TEXT": lm.text_embedding, "SPEECH": lm.speech_embedding}
    arriving, fed, tokens = iter(pieces), [], []
    rows_settings = SamplingRows(
        torch.tensor([settings.top_p]),
        torch.tensor([settings.top_k]),
        torch.tensor([settings.win_size]),
        torch.tensor([math.ceil(settings.win_size * settings.tau_r)]),
    )
    while not stream.done:
        rows = stream.next_rows()
        if rows is None:
            piece = next(arriving, None)
            stream.close() if piece is None else stream.push(piece)
            continue
        fed += [tables[row.kind.name](torch.tensor([row.id])) for row in rows]
        token = stream.allows()[0] if stream.ids_until_control() == 0 else None
        if token is None:
            scores = lm.log_probabilities(lm(torch.cat(fed)[None])[:, -1])
            scores[:, [one for one in range(6561, scores.shape[-1]) if one not in stream.allows()]] = float("-inf")
            at, seeds = torch.tensor([len(stream.decoded)]), torch.tensor([seed])
            draws = torch.stack(
                [uniform(seeds, kind, at) for kind in (NoiseStream.NUCLEUS, NoiseStream.FALLBACK)], dim=-1
            )
            recent = torch.tensor([[-1] * settings.win_size + stream.decoded])[:, -settings.win_size :]
            token = int(sample(scores, recent, rows_settings, draws))
        speech = stream.accept(token)
        tokens += [] if speech is None else [speech]
    return tokens


@pytest.mark.parametrize("seed", range(8))
def test_tokens_are_those_of_the_simple_stream(models, seed):
    rng = random.Random(seed)
    pieces = [[rng.randrange(250) for _ in range(rng.randrange(1, 8))] for _ in range(rng.randrange(1, 6))]
    prompted, ratio = rng.choice([0, 7, 15, 33]), rng.choice([2.0, 4.5, 9.0])
    wanted = one_by_one(models, interleaver(models, prompted, ratio, seed), pieces, seed)
    text = StreamingPrompt(interleaver(models, prompted, ratio, seed), models.config.lm.vocabulary, capacity=600)
    assert spoken(LMStage(models, slots=1, capacity=600), text, pieces, seed) == wanted


def test_fill_and_end_may_come_from_the_model(models):
    text = StreamingPrompt(interleaver(models), models.config.lm.vocabulary, capacity=600)
    stage = LMStage(models, slots=1, capacity=600, chooser=Fills())
    tokens = spoken(stage, text, [range(3, 8), range(3, 14)], 0)
    assert tokens == [one for one in range(23) if one % 6 != 5]


def test_a_stream_past_its_room_says_so_after_its_tokens(models):
    vocabulary = models.config.lm.vocabulary
    for room in (1, 15, 16, 50):
        stage = LMStage(models, slots=1, capacity=600, chooser=NeverEnds())
        with pytest.raises(InvalidRequest, match=f"{room} tokens, then text: a stream holds {room} speech tokens"):
            spoken(stage, StreamingPrompt(interleaver(models), vocabulary, room), [(65,) * 40], 0)


def test_a_stream_that_ends_where_its_room_does_is_whole(models):
    stage = LMStage(models, slots=1, capacity=600, chooser=NeverEnds())
    text = StreamingPrompt(interleaver(models, ratio=4.0), models.config.lm.vocabulary, 12)
    assert len(spoken(stage, text, [(65, 66, 67)], 0)) == 12


def test_a_stream_past_its_slot_says_so_after_its_tokens(models):
    stage = LMStage(models, slots=1, capacity=120, chooser=NeverEnds())
    text = StreamingPrompt(interleaver(models), models.config.lm.vocabulary, capacity=120)
    with pytest.raises(InvalidRequest, match=r"\d\d tokens, then text: a stream holds 120 positions"):
        spoken(stage, text, [(65,) * 40], 0)


def test_no_run_while_one_is_in_progress_or_text_is_awaited(models):
    text = StreamingPrompt(interleaver(models), models.config.lm.vocabulary, capacity=600)
    text.push((3, 4, 5, 6))
    assert text.next_run() is None
    text.push((7,))
    run = text.next_run()
    assert (len(run.rows), run.forced_at, run.forced, run.allowed) == (6, 15, 6563, (6563,))
    assert text.next_run() is None
    assert text.accept((1, 2, 6563)) == (1, 2)
    assert text.next_run() is None
    text.close()
    assert (text.next_run().forced, text.done) == (6561, False)
