import pytest
import torch

from vivavoce.engine.lm_stage import Decode, decode_text_stream
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.sampler import RepetitionAwareSampler
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import TextInterleaver
from vivavoce.models.lm.prompting import LMPrompt

CPU = torch.device("cpu")


class Speak:
    """The best speech token until a sequence's length, then a stop id if it may be taken."""

    def __init__(self, lengths, stop):
        self.lengths, self.stop = lengths, stop

    def __call__(self, scores, rows, decoded):
        best = scores[:, :6561].argmax(-1)
        for place, (row, ids) in enumerate(zip(rows, decoded, strict=True)):
            if len(ids) >= self.lengths[row] and scores[place, self.stop] > float("-inf"):
                best[place] = self.stop
        return best


def sampler(models, count, seed=0):
    return RepetitionAwareSampler(
        [SamplingParams()] * count, list(range(seed, seed + count)), models.config.lm.sampling, CPU
    )


@torch.inference_mode()
def run(models, prompts, choose, params=None, official=False):
    decode = Decode(models.lm, prompts, params or [SamplingParams()] * len(prompts), choose, official)
    steps = list(decode)
    return decode.decoded, steps


@torch.inference_mode()
def test_steps_hold_what_is_decoded(models):
    prompts = [LMPrompt((5, 6, 7)), LMPrompt((8,)), LMPrompt((9, 10))]
    decoded, steps = run(models, prompts, Speak([30, 11, 20], 6561))
    assert [len(ids) for ids in decoded] == [30, 11, 20]
    for sequence, ids in enumerate(decoded):
        assert [token for step in steps for row, token in step if row == sequence] == ids


def test_the_longest_and_the_shortest_hold(models):
    prompt = LMPrompt(tuple(range(10)))
    never, at_once = Speak([10**6], 6561), Speak([0], 6561)
    params = [SamplingParams(min_ratio=1.5, max_ratio=4.0)]
    assert len(run(models, [prompt], never, params)[0][0]) == 40
    assert len(run(models, [prompt], at_once, params)[0][0]) == 15


@pytest.mark.parametrize("stop", [6561, 6562, 6563])
def test_no_stop_id_ends_speech_early(models, stop):
    prompt, early = LMPrompt((5, 6, 7)), Speak([1], stop)
    assert len(run(models, [prompt], early)[0][0]) == 6
    assert len(run(models, [prompt], early, official=True)[0][0]) == (6 if stop == 6561 else 1)


def test_sampled_tokens_do_not_depend_on_company(models):
    prompts = [LMPrompt(tuple(range(3, 3 + size)), (70,) * size, (11,) * size) for size in (2, 9, 4, 1, 6, 3, 8, 5)]
    together, _ = run(models, prompts, sampler(models, 8))
    for place, prompt in enumerate(prompts):
        alone, _ = run(models, [prompt], sampler(models, 1, seed=place))
        assert alone[0] == together[place]


def test_seeds_matter_and_reproduce(models):
    prompt = [LMPrompt((5, 6, 7))]
    one, again, other = (run(models, prompt, sampler(models, 1, seed))[0] for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_too_many_positions_are_refused(models):
    with pytest.raises(InvalidRequest, match="positions"):
        Decode(models.lm, [LMPrompt((5,) * 2000)], [SamplingParams()], sampler(models, 1))


@torch.inference_mode()
def test_text_stream_reads_its_text_lazily(models):
    asked = []

    def pieces():
        for index in range(8):
            asked.append(index)
            yield (65, 66, 67)

    config = models.config.lm
    stream = TextInterleaver(config.vocabulary, (config.mix_text, config.mix_speech))
    tokens = decode_text_stream(models.lm, stream, pieces(), sampler(models, 1))
    next(tokens)
    assert len(asked) == 2  # five text tokens make a block
    rest = list(tokens)
    assert len(asked) == 8
    assert all(token < 6561 for token in rest)
    assert len(rest) + 1 >= 45


@torch.inference_mode()
def test_text_stream_outgrows_its_first_cache(models):
    config = models.config.lm
    stream = TextInterleaver(config.vocabulary, (config.mix_text, config.mix_speech), max_ratio=20.0)
    tokens = list(decode_text_stream(models.lm, stream, [(65,) * 40], Speak([700], 6561)))
    assert len(tokens) > 600


@torch.inference_mode()
def test_speech_that_the_flow_cannot_take_is_not_made(models):
    decode = Decode(models.lm, [LMPrompt((5,) * 10)], [SamplingParams(min_ratio=20.0)], Speak([10**6], 6561), room=[33])
    list(decode)
    assert len(decode.decoded[0]) == 33


@torch.inference_mode()
def test_a_text_stream_past_its_room_says_so(models):
    config = models.config.lm
    stream = TextInterleaver(config.vocabulary, (config.mix_text, config.mix_speech))
    tokens = decode_text_stream(models.lm, stream, iter([(65,) * 40]), Speak([10**6], 6561), room=50)
    assert len([next(tokens) for _ in range(50)]) == 50
    with pytest.raises(InvalidRequest, match="50 speech tokens"):
        next(tokens)
