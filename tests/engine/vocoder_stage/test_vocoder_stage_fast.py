"""The stage on kernels against the plain one: streams and whole utterances, in any company."""

from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from tests.small_vocoder import with_small_vocoder
from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.vocoder_stage import Piece, VocoderStage, packed_buffers, packed_stage, tail_pool
from vivavoce.models.kernels import row_table
from vivavoce.models.vocoder.hift import HiFT
from vivavoce.models.vocoder.packed import supports


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@pytest.fixture(scope="module")
def small(models):
    return with_small_vocoder(models)


def mel(frames, seed=0):
    return torch.randn(frames, 80, generator=torch.Generator().manual_seed(seed))


@dataclass
class Plan:
    """A stream and the sizes of its pieces, or a whole utterance of one."""

    sizes: list
    speed: float = 1.0
    joins: Joins = Joins.SEAMLESS
    seed: int = 0
    whole: bool = False

    def open(self, stage):
        return stage.open(self.seed, self.speed, self.joins)

    def piece(self, stream, number):
        part = mel(sum(self.sizes), self.seed).split(self.sizes)[number]
        return Piece(stream, part, number == len(self.sizes) - 1, whole=self.whole)


COMPANY = [
    Plan([12, 9, 22, 5], seed=1),
    Plan([11, 8, 3, 9], joins=Joins.OFFICIAL, seed=2),
    Plan([14, 10, 9], speed=1.3, seed=3),
    Plan([3, 12, 1, 0], seed=4),
    Plan([13], speed=0.8, seed=5, whole=True),
    Plan([9, 0], seed=6),
]


def speak(stage, plans):
    """All streams side by side: their pieces' samples."""
    streams = [plan.open(stage) for plan in plans]
    waves = [[] for _ in plans]
    for number in range(max(len(plan.sizes) for plan in plans)):
        rows = [row for row, plan in enumerate(plans) if number < len(plan.sizes)]
        made = stage.run([plans[row].piece(streams[row], number) for row in rows])
        for row, samples in zip(rows, made, strict=True):
            waves[row].append(samples.clone())
    return waves


@pytest.mark.parametrize(("noise", "plans"), [(True, COMPANY), (False, [Plan([11, 8])])], ids=["noise", "no noise"])
def test_kernels_say_the_same(small, noise, plans):
    plain, fast = (VocoderStage(small, source_noise=noise, kernels=kernels) for kernels in (False, True))
    for plan, expected, made in zip(plans, speak(plain, plans), speak(fast, plans), strict=True):
        assert [len(wave) for wave in made] == [len(wave) for wave in expected], plan
        for one, other in zip(made, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


def test_batches_are_split_and_rows_longer_than_any_go_alone(small, monkeypatch):
    for module in (packed_buffers, packed_stage):
        monkeypatch.setattr(module, "BUCKETS", (24, 32))
    plans = [Plan([12], seed=7), Plan([33], seed=8, whole=True), Plan([9], seed=9)]
    stage = VocoderStage(small, kernels=True)
    for expected, made in zip(speak(VocoderStage(small), plans), speak(stage, plans), strict=True):
        for one, other in zip(made, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


def test_a_failure_changes_nothing(small, monkeypatch):
    plans = [Plan([10, 2], seed=1), Plan([9, 8], joins=Joins.OFFICIAL, seed=2)]
    stage = VocoderStage(small, kernels=True)
    undisturbed = speak(VocoderStage(small), plans)
    streams = [plan.open(stage) for plan in plans]

    def run(number):
        return stage.run([plan.piece(stream, number) for plan, stream in zip(plans, streams, strict=True)])

    run(0)
    before, taken = [stream.tails for stream in streams], stage._packed.open_rows
    with monkeypatch.context() as patched:
        patched.setattr(packed_stage, "lay_out", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            run(1)
    assert [stream.tails for stream in streams] == before
    assert stage._packed.open_rows == taken == 2
    for made, waves in zip(run(1), undisturbed, strict=True):
        torch.testing.assert_close(made, waves[1], atol=2e-3, rtol=0)


def fails(*_):
    raise RuntimeError("no memory")


def test_rows_of_the_pool_come_back(small):
    stage, plan = VocoderStage(small, kernels=True), Plan([9, 1, 0], seed=1)
    ended, closed = plan.open(stage), plan.open(stage)
    for number in range(2):
        stage.run([plan.piece(stream, number) for stream in (ended, closed)])
    assert stage._packed.open_rows == 2
    for _ in range(2):
        stage.close(closed)
    assert stage._packed.open_rows == 1
    # Its piece was on its way: nothing of it stays.
    stage.run([plan.piece(closed, 0), plan.piece(ended, 2)])
    assert stage._packed.open_rows == 0
    assert closed.tails.place is None


@pytest.mark.parametrize("kernels", [False, True])
def test_a_closed_stream_keeps_nothing(small, kernels):
    stage, plan = VocoderStage(small, kernels=kernels), Plan([12, 12])
    stream = plan.open(stage)
    stage.run([plan.piece(stream, 0)])
    stage.close(stream)
    stage.run([plan.piece(stream, 0)])
    assert stream.tails.frames == stream.tails.context == 0


def test_the_pool_grows_and_keeps_what_it_has(small, monkeypatch):
    monkeypatch.setattr(tail_pool, "FIRST_ROWS", 1)
    plans = [Plan([9, 1], seed=seed) for seed in range(3)]
    for expected, made in zip(
        speak(VocoderStage(small), plans), speak(VocoderStage(small, kernels=True), plans), strict=True
    ):
        for one, other in zip(made, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


def test_a_bucket_is_recorded_once(small, monkeypatch):
    stage, plan = VocoderStage(small, kernels=True), Plan([3], whole=True)
    for _ in range(2):
        stage.run([plan.piece(plan.open(stage), 0)])
    graphs = stage._packed._graphs
    assert graphs.captured == 1
    stage.prepare(65)
    assert list(stage._packed._recordings) == [48, 8192, 96, 64]
    stage.prepare()
    assert graphs.captured == len(packed_buffers.BUCKETS)
    stage.run([plan.piece(plan.open(stage), 0)])
    assert graphs.captured == len(packed_buffers.BUCKETS)


def test_batches_are_cut_where_memory_bounds_them(small):
    plan = Plan([30], whole=True)
    bounded, free = VocoderStage(small, kernels=True, most_frames=64), VocoderStage(small, kernels=True)
    waves = [stage.run([plan.piece(plan.open(stage), 0) for _ in range(3)]) for stage in (bounded, free)]
    assert max(bounded._packed._recordings) <= 64 < max(free._packed._recordings)
    for one, other in zip(*waves, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


def test_sizes_that_the_kernels_do_not_know_stay_on_the_plain_path(models):
    config = replace(models.vocoder.config, n_fft=20)
    assert not supports(config)
    stage = VocoderStage(replace(models, vocoder=HiFT(config).requires_grad_(False)), kernels=True)
    stage.prepare()
    assert len(stage.run([Piece(stage.open(0, 1.0, Joins.SEAMLESS), mel(4), True, whole=True)])[0]) == 4 * 480


def test_nothing_at_all_is_silence(small):
    stage = VocoderStage(small, kernels=True)
    assert stage.run([]) == []
    for whole in (False, True):
        plan = Plan([0], whole=whole)
        assert len(stage.run([plan.piece(plan.open(stage), 0)])[0]) == 0


@pytest.mark.parametrize(("frames", "bucket"), [(1, 48), (48, 48), (49, 64), (8192, 8192), (8193, 16384)])
def test_buckets(frames, bucket):
    assert packed_buffers.bucket_of(frames, packed_buffers.BUCKETS) == bucket


def test_columns_of_the_table_are_the_rows_fields():
    for number, name in enumerate(row_table.PackedRow._fields):
        assert getattr(row_table, name.upper()).value == number
    assert row_table.ROW_WIDTH.value == len(row_table.PackedRow._fields)
