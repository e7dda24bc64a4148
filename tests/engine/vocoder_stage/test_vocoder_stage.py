import pytest
import torch

from tests.engine.vocoder_stage.vocoder_plans import Plan, check, mel, speak, spoken, whole
from tests.small_vocoder import with_small_vocoder
from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.vocoder_stage import VocoderRow, VocoderStage

HOP = 480
OVERLAP = 8


@pytest.fixture(scope="module", params=[False, True], ids=["v2", "v3"])
def either(models, request):
    """Models with CosyVoice2's vocoder, or with CosyVoice3's, which is a small one."""
    return with_small_vocoder(models, causal=True) if request.param else models


def hop_of(models):
    return models.vocoder.config.samples_per_frame


def relative_error(wave, other):
    assert wave.shape == other.shape
    return float((wave - other).square().mean().sqrt() / other.square().mean().sqrt())


COMPANY = [
    Plan([30, 50, 50, 17], seed=1),
    Plan([20, 44, 30], joins=CrossfadeMode.OFFICIAL, seed=2),
    Plan([36, 50, 9], speed=1.3, seed=3),
    Plan([3, 20, 1, 40], seed=4),
    Plan([60], speed=0.8, seed=5),
]


@pytest.mark.parametrize("batched", [False, True], ids=["row by row", "one batch"])
def test_streams_are_the_same_in_company(either, batched):
    """The padded batch, which other devices make of a call, is held against single rows here as well."""
    stage, others = VocoderStage(either), [Plan([23 + number], seed=9, whole=True) for number in range(2)]
    alone = [speak(stage, plan)[0] for plan in COMPANY]
    if batched:
        stage.vocoding.one_by_one = False
    *together, _, _ = speak(stage, *COMPANY, *others)
    # In a batch the last bit of a pitch may differ, and phases are long sums of pitches.
    check(together, alone, 2e-2 if batched else 0)


SIZES = [[30, 50, 80, 20], [16, 9, 12, 143], [20] * 9, [178, 2], [5, 2, 1, 172], [20, *[1] * 12, 148]]


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_seamless_stream_equals_its_whole(models, noise, sizes):
    stage = VocoderStage(models, source_noise=noise)
    one = whole(stage, 180)
    assert one.shape == (180 * HOP,)
    # Random weights make this hard: their source is loud, and frames near a piece's end lack much of their right side.
    assert relative_error(spoken(stage, sizes), one) < 0.06


@pytest.mark.parametrize("sizes", [*SIZES, [9, 0, 171, 0]])
@pytest.mark.parametrize("joins", list(CrossfadeMode))
def test_a_causal_stream_is_its_whole(models, sizes, joins):
    """However it is joined: no sample changes once its right neighbours were heard."""
    stage = VocoderStage(with_small_vocoder(models, causal=True))
    one = whole(stage, 180)
    assert one.std() > 0.1
    # Phases are sums of pitches in float32: where the sum was carried on its last bits differ.
    torch.testing.assert_close(spoken(stage, sizes, joins=joins), one, atol=2e-3, rtol=0)


def test_official_joins_begin_phases_anew(models):
    stage = VocoderStage(models, source_noise=False)
    official = spoken(stage, [90, 100, 100, 90], joins=CrossfadeMode.OFFICIAL)
    assert relative_error(official, whole(stage, 380)) > 0.5


def test_an_official_fade_is_a_sum_of_hamming_windows(models):
    stage = VocoderStage(models, source_noise=False)
    stream = stage.open(0, 1.0, CrossfadeMode.OFFICIAL)
    first = stage.run([VocoderRow(stream, mel(40), final=False)])[0]
    before = stream.tails
    second = stage.run([VocoderRow(stream, mel(30, 1), final=True)])[0]
    assert (len(first), len(second)) == (32 * HOP, 38 * HOP)
    seen = torch.cat((before.mel, mel(30, 1))).T[None]
    fresh = models.vocoder.source(models.vocoder.f0(seen, None), None)[0, 0, len(before.source) :]
    again = models.vocoder.decode(seen, torch.cat((before.source, fresh))[None, None])[0]
    window = torch.hamming_window(2 * OVERLAP * HOP, periodic=False)
    again[: OVERLAP * HOP] *= window[: OVERLAP * HOP]
    again[: OVERLAP * HOP] += before.held * window[OVERLAP * HOP :]
    torch.testing.assert_close(second, again, atol=1e-3, rtol=0)


@pytest.mark.parametrize("sizes", [[1, 1, 1, 60], [4, 4, 0, 50], [8, 10], [3, 2], [0, 40], [30, 0, 0, 30], [9, 0]])
@pytest.mark.parametrize("joins", list(CrossfadeMode))
def test_too_few_frames_wait(either, sizes, joins):
    received = given = 0
    for number, wave in enumerate(speak(VocoderStage(either), Plan(sizes, joins=joins))[0]):
        received, given = received + sizes[number], given + len(wave)
        assert given == hop_of(either) * (received if number == len(sizes) - 1 else max(0, received - OVERLAP))


def test_an_official_stream_waits_for_a_whole_fade(models):
    waves = speak(VocoderStage(models, source_noise=False), Plan([20, 7, 1, 0], joins=CrossfadeMode.OFFICIAL))[0]
    assert [len(wave) for wave in waves[:3]] == [12 * HOP, 0, 8 * HOP]


@pytest.mark.parametrize("speed", [0.5, 0.7, 1.3, 2.0])
def test_speed(either, speed):
    stage, hop = VocoderStage(either), hop_of(either)
    at_once = len(whole(stage, 150, speed=speed))
    assert at_once == int(150 / speed) * hop
    assert abs(len(spoken(stage, [8, 30, 50, 62], speed=speed)) - at_once) <= hop
    assert len(spoken(stage, [38, 50, 62], speed=speed, joins=CrossfadeMode.OFFICIAL)) == 150 * hop


@pytest.mark.parametrize(
    "plan",
    [
        *COMPANY,
        Plan([4, 5, 40, 0], speed=2.0),
        Plan([12, 30, 6], joins=CrossfadeMode.OFFICIAL),
        Plan([41], speed=1.3, whole=True),
    ],
)
def test_frames_foretell_the_work(either, monkeypatch, plan):
    stage, seen = VocoderStage(either), []
    decode = type(either.vocoder).decode

    def spy(vocoder, mel, source, lengths, both):
        seen.append(mel.shape[2] if lengths is None else int(lengths[0]))
        return decode(vocoder, mel, source, lengths, both)

    monkeypatch.setattr(type(either.vocoder), "decode", spy)
    stream = plan.open(stage)
    for number in range(len(plan.sizes)):
        piece = plan.piece(stream, number)
        foretold = piece.frames
        stage.run([piece])
        assert seen == ([foretold] if foretold else [])
        seen.clear()


def test_a_stream_has_one_piece_in_a_call(models):
    stage = VocoderStage(models)
    stream = stage.open(0, 1.0, CrossfadeMode.SEAMLESS)
    with pytest.raises(ValueError, match="different streams"):
        stage.run([VocoderRow(stream, mel(30), final=False), VocoderRow(stream, mel(30), final=True)])


def test_noise_is_the_seeds(either):
    stages = [VocoderStage(either), VocoderStage(either), VocoderStage(either, source_noise=False)]

    def said(stage, seed):
        (wave,) = stage.run(
            [VocoderRow(stage.open(seed, 1.0, CrossfadeMode.SEAMLESS), mel(20), final=True, whole=True)]
        )
        return wave

    first, again, silent = ([said(stage, seed) for seed in (1, 2)] for stage in stages)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], silent[0])
    assert torch.equal(silent[0], silent[1])


def test_tails_keep_no_batch_alive(either):
    stage = VocoderStage(either)
    stream = stage.open(0, 1.3, CrossfadeMode.SEAMLESS)
    for part in mel(400).split([5, 195, 200]):
        stage.run([VocoderRow(stream, part, final=False)])
        tails = stream.tails
        for tensor in (tails.waiting, tails.mel, tails.source, tails.held, tails.speed.kept):
            assert tensor is None or tensor.untyped_storage().nbytes() <= 4 * tensor.numel()
    stage.run([VocoderRow(stream, mel(9), final=True)])
    assert stream.tails.mel is None
