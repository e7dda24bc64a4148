from dataclasses import dataclass

import pytest
import torch

from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.vocoder_stage import Piece, VocoderStage

HOP = 480
OVERLAP = 8


def mel(frames, seed=0):
    return torch.randn(frames, 80, generator=torch.Generator().manual_seed(seed))


@dataclass
class Plan:
    """A stream and the sizes of its pieces."""

    sizes: list
    speed: float = 1.0
    joins: Joins = Joins.SEAMLESS
    seed: int = 0

    def open(self, stage):
        return stage.open(self.seed, self.speed, self.joins)

    @property
    def mels(self):
        return mel(sum(self.sizes), self.seed).split(self.sizes)


def speak(stage, plan):
    """One stream by itself: the samples of its pieces."""
    stream, last = plan.open(stage), len(plan.sizes) - 1
    return [stage.run([Piece(stream, part, number == last)])[0] for number, part in enumerate(plan.mels)]


def whole(stage, frames, seed=0, speed=1.0):
    stream = stage.open(seed, speed, Joins.SEAMLESS)
    return stage.run([Piece(stream, mel(frames, seed), final=True, whole=True)])[0]


def relative_error(wave, other):
    return float((wave - other).square().mean().sqrt() / other.square().mean().sqrt())


COMPANY = [
    Plan([30, 50, 50, 17], seed=1),
    Plan([20, 44, 30], joins=Joins.OFFICIAL, seed=2),
    Plan([36, 50, 9], speed=1.3, seed=3),
    Plan([3, 20, 1, 40], seed=4),
    Plan([60], speed=0.8, seed=5),
]


@pytest.mark.parametrize("batched", [False, True], ids=["row by row", "one batch"])
def test_streams_are_the_same_in_company(models, monkeypatch, batched):
    """The padded batch, which other devices make of a call, is held against single rows here as well."""
    stage = VocoderStage(models)
    alone = [speak(stage, plan) for plan in COMPANY]
    if batched:
        monkeypatch.setattr(
            VocoderStage, "_batches", lambda _, works: [sorted(works, key=lambda work: work.phase is not None)]
        )
    streams = [plan.open(stage) for plan in COMPANY]
    for number in range(4):
        rows = [row for row, plan in enumerate(COMPANY) if number < len(plan.sizes)]
        pieces = [Piece(streams[row], COMPANY[row].mels[number], number == len(COMPANY[row].sizes) - 1) for row in rows]
        other = Piece(stage.open(9, 1.0, Joins.SEAMLESS), mel(23 + number), final=True, whole=True)
        *together, _ = stage.run([*pieces, other])
        for row, wave in zip(rows, together, strict=True):
            # In a batch the last bit of a pitch may differ, and phases are long sums of pitches.
            torch.testing.assert_close(wave, alone[row][number], atol=2e-2 if batched else 0, rtol=0)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("sizes", [[30, 50, 80, 20], [16, 9, 12, 143], [20] * 9, [178, 2], [5, 2, 1, 172]])
def test_a_seamless_stream_equals_its_whole(models, noise, sizes):
    stage = VocoderStage(models, source_noise=noise)
    joined, one = torch.cat(speak(stage, Plan(sizes))), whole(stage, 180)
    assert joined.shape == one.shape == (180 * HOP,)
    # Random weights make this hard: their source is loud, and frames near a piece's end lack much of their right side.
    assert relative_error(joined, one) < 0.06


def test_official_joins_begin_phases_anew(models):
    stage = VocoderStage(models, source_noise=False)
    official = torch.cat(speak(stage, Plan([90, 100, 100, 90], joins=Joins.OFFICIAL)))
    one = whole(stage, 380)
    assert official.shape == one.shape
    assert relative_error(official, one) > 0.5


def test_an_official_fade_is_a_sum_of_hamming_windows(models):
    stage = VocoderStage(models, source_noise=False)
    stream = stage.open(0, 1.0, Joins.OFFICIAL)
    first = stage.run([Piece(stream, mel(40), final=False)])[0]
    held, before = stream.tails.held, stream.tails
    second = stage.run([Piece(stream, mel(30, 1), final=True)])[0]
    assert len(first) == 32 * HOP
    assert len(second) == 38 * HOP
    again = models.vocoder.decode(
        torch.cat((before.mel, mel(30, 1))).T[None],
        torch.cat((before.source, _official_source(models, before, mel(30, 1))))[None, None],
    )[0]
    window = torch.hamming_window(2 * OVERLAP * HOP, periodic=False)
    faded = again[: OVERLAP * HOP] * window[: OVERLAP * HOP] + held * window[OVERLAP * HOP :]
    torch.testing.assert_close(second[: OVERLAP * HOP], faded, atol=1e-3, rtol=0)
    torch.testing.assert_close(second[OVERLAP * HOP :], again[OVERLAP * HOP :], atol=1e-3, rtol=0)


def _official_source(models, before, fresh):
    pitch = models.vocoder.f0(torch.cat((before.mel, fresh)).T[None], None)
    return models.vocoder.source(pitch, None)[0, 0, len(before.source) :]


@pytest.mark.parametrize("sizes", [[1, 1, 1, 60], [4, 4, 0, 50], [8, 10], [3, 2], [0, 40], [30, 0, 0, 30], [9, 0]])
@pytest.mark.parametrize("joins", list(Joins))
def test_too_few_frames_wait(models, sizes, joins):
    stage = VocoderStage(models)
    stream = stage.open(0, 1.0, joins)
    received = given = 0
    for number, part in enumerate(mel(sum(sizes)).split(sizes)):
        final = number == len(sizes) - 1
        (wave,) = stage.run([Piece(stream, part, final)])
        received, given = received + len(part), given + len(wave)
        assert given == HOP * (received if final else max(0, received - OVERLAP))


def test_pieces_of_one_frame_join_like_others(models):
    stage = VocoderStage(models)
    joined = torch.cat(speak(stage, Plan([20, *[1] * 12, 30])))
    assert relative_error(joined, whole(stage, 62)) < 0.06


def test_an_official_stream_waits_for_a_whole_fade(models):
    stage = VocoderStage(models, source_noise=False)
    stream = stage.open(0, 1.0, Joins.OFFICIAL)
    assert len(stage.run([Piece(stream, mel(20), final=False)])[0]) == 12 * HOP
    assert len(stage.run([Piece(stream, mel(7), final=False)])[0]) == 0
    assert len(stage.run([Piece(stream, mel(1), final=False)])[0]) == 8 * HOP


def test_nothing_at_all_is_silence(models):
    stage = VocoderStage(models)
    assert stage.run([]) == []
    for whole_utterance in (False, True):
        stream = stage.open(0, 1.3, Joins.SEAMLESS)
        (wave,) = stage.run([Piece(stream, mel(0), final=True, whole=whole_utterance)])
        assert wave.shape == (0,)


@pytest.mark.parametrize("speed", [0.5, 0.7, 1.3, 2.0])
def test_speed(models, speed):
    stage = VocoderStage(models)
    streamed = sum(len(wave) for wave in speak(stage, Plan([8, 30, 50, 62], speed=speed)))
    assert abs(streamed - len(whole(stage, 150, speed=speed))) <= HOP
    assert len(whole(stage, 150, speed=speed)) == int(150 / speed) * HOP
    official = Plan([38, 50, 62], speed=speed, joins=Joins.OFFICIAL)
    assert sum(len(wave) for wave in speak(stage, official)) == 150 * HOP


@pytest.mark.parametrize("plan", [*COMPANY, Plan([4, 5, 40, 0], speed=2.0), Plan([12, 30, 6], joins=Joins.OFFICIAL)])
def test_frames_foretell_the_work(models, monkeypatch, plan):
    stage, stream, seen = VocoderStage(models), None, []
    decode = type(models.vocoder).decode

    def spy(vocoder, mel, source, lengths=None):
        seen.append(mel.shape[2] if lengths is None else int(lengths[0]))
        return decode(vocoder, mel, source, lengths)

    monkeypatch.setattr(type(models.vocoder), "decode", spy)
    stream = plan.open(stage)
    for number, part in enumerate(plan.mels):
        piece = Piece(stream, part, number == len(plan.sizes) - 1)
        foretold = piece.frames
        stage.run([piece])
        assert seen == ([foretold] if foretold else [])
        seen.clear()
    piece = Piece(plan.open(stage), mel(41), final=True, whole=True)
    foretold = piece.frames
    stage.run([piece])
    assert seen == [foretold]


def test_a_failure_changes_nothing(models, monkeypatch):
    stage = VocoderStage(models)
    streams = [stage.open(seed, 1.3, Joins.SEAMLESS) for seed in range(2)]
    stage.run([Piece(stream, mel(30), final=False) for stream in streams])
    pieces = [Piece(stream, mel(40, 1), final=False) for stream in streams]
    before = [stream.tails for stream in streams]
    decode, calls = type(models.vocoder).decode, []

    def fails_at_the_second(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("no memory")
        return decode(*args)

    with monkeypatch.context() as patched:
        patched.setattr(type(models.vocoder), "decode", fails_at_the_second)
        with pytest.raises(RuntimeError, match="no memory"):
            stage.run(pieces)
    assert [stream.tails for stream in streams] == before
    fresh = [stage.open(seed, 1.3, Joins.SEAMLESS) for seed in range(2)]
    stage.run([Piece(stream, mel(30), final=False) for stream in fresh])
    undisturbed = stage.run([Piece(stream, mel(40, 1), final=False) for stream in fresh])
    for wave, other in zip(stage.run(pieces), undisturbed, strict=True):
        assert torch.equal(wave, other)


def test_a_stream_has_one_piece_in_a_call(models):
    stage = VocoderStage(models)
    stream = stage.open(0, 1.0, Joins.SEAMLESS)
    with pytest.raises(ValueError, match="different streams"):
        stage.run([Piece(stream, mel(30), final=False), Piece(stream, mel(30), final=True)])


def test_noise_is_the_seeds(models):
    first, second, other = (whole(VocoderStage(models), 20, seed=seed) for seed in (1, 1, 1))
    assert torch.equal(first, second)
    assert torch.equal(first, other)
    stage, silent = VocoderStage(models), VocoderStage(models, source_noise=False)
    same = mel(20)
    waves = [
        place.run([Piece(place.open(seed, 1.0, Joins.SEAMLESS), same, final=True, whole=True)])[0]
        for place, seed in ((stage, 1), (stage, 2), (silent, 1), (silent, 2))
    ]
    assert not torch.equal(waves[0], waves[1])
    assert not torch.equal(waves[0], waves[2])
    assert torch.equal(waves[2], waves[3])


def test_tails_keep_no_batch_alive(models):
    stage = VocoderStage(models)
    stream = stage.open(0, 1.3, Joins.SEAMLESS)
    for part in mel(400).split([5, 195, 200]):
        stage.run([Piece(stream, part, final=False)])
        tails = stream.tails
        for tensor in (tails.waiting, tails.mel, tails.source, tails.held, tails.speed.kept):
            assert tensor is None or tensor.untyped_storage().nbytes() <= 4 * tensor.numel()
    stage.run([Piece(stream, mel(9), final=True)])
    assert stream.tails.mel is None
