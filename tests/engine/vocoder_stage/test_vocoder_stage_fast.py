"""The stage on kernels against the plain one: streams and whole utterances, in any company."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.engine.vocoder_stage.vocoder_plans import Plan, check, mel, speak, spoken, whole
from tests.fast_flow import quick_interpreter
from tests.small_vocoder import with_small_vocoder
from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.vocoder_stage import VocoderStage, packed
from vivavoce.engine.vocoder_stage.packed import VocoderRun
from vivavoce.models.vocoder.hift import HiFT, SampledSource
from vivavoce.models.vocoder.packed import FIRST, INSIDE, PackedVocoder, supports
from vivavoce_kernels import layouts, vocoder_source
from vivavoce_kernels.layouts import PackedRow

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@pytest.fixture(scope="module")
def small(models):
    return with_small_vocoder(models)


@pytest.fixture(scope="module", params=[False, True], ids=["v2", "v3"])
def either(models, request):
    return with_small_vocoder(models, causal=request.param)


COMPANY = [
    Plan([12, 9, 22, 5], seed=1),
    Plan([11, 8, 3, 9], joins=CrossfadeMode.OFFICIAL, seed=2),
    Plan([14, 10, 9], speed=1.3, seed=3),
    Plan([3, 12, 1, 0], seed=4),
    Plan([13], speed=0.8, seed=5, whole=True),
    Plan([9, 0], seed=6),
]
TOLERANCE = 2e-3


@pytest.mark.parametrize(
    ("either", "plans", "noise", "sizes"),
    [
        pytest.param(False, COMPANY, True, {}, id="v2 noise"),
        pytest.param(True, COMPANY, True, {}, id="v3 noise"),
        pytest.param(True, [Plan([11, 8])], False, {}, id="v3 no noise"),
        pytest.param(
            False,
            [Plan([12], seed=7), Plan([33], seed=8, whole=True), Plan([9], seed=9)],
            True,
            {"BUCKETS": (24, 32)},
            id="batches are split, and a row longer than any goes alone",
        ),
        pytest.param(
            True, [Plan([9, 1], seed=seed) for seed in range(3)], True, {"FIRST_ROWS": 1}, id="the pool grows"
        ),
    ],
    indirect=["either"],
)
def test_kernels_say_the_same(either, monkeypatch, plans, noise, sizes):
    for name, value in sizes.items():
        monkeypatch.setattr(packed, name, value)
    plain, fast = (VocoderStage(either, source_noise=noise, kernels=kernels) for kernels in (False, True))
    check(speak(fast, *plans), speak(plain, *plans), TOLERANCE)


@pytest.mark.parametrize(
    ("either", "kernels"), [(False, False), (True, False), (True, True)], ids=str, indirect=["either"]
)
def test_a_failure_changes_nothing(either, monkeypatch, kernels):
    plans = [
        Plan([10, 2], seed=1),
        Plan([14, 8], speed=1.3, seed=3),
        Plan([9, 8], joins=CrossfadeMode.OFFICIAL, seed=2),
    ]
    stage, calls = VocoderStage(either, kernels=kernels), []
    streams = [plan.open(stage) for plan in plans]

    def run(number):
        return stage.run([plan.piece(stream, number) for plan, stream in zip(plans, streams, strict=True)])

    owner, name, failing = (packed, "lay_out", 1) if kernels else (type(either.vocoder), "decode", 2)
    works = getattr(owner, name)

    def fails(*given):
        calls.append(given)
        if len(calls) == failing:
            raise RuntimeError("no memory")
        return works(*given)

    run(0)
    before = [stream.tails for stream in streams]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fails)
        with pytest.raises(RuntimeError, match="no memory"):
            run(1)
    assert [stream.tails for stream in streams] == before
    assert not kernels or stage.vocoding.pool.taken == 3
    expected = [waves[1:] for waves in speak(VocoderStage(either), *plans)]
    check([[wave] for wave in run(1)], expected, TOLERANCE if kernels else 0)


@torch.inference_mode()
def test_what_no_sample_hears_is_not_computed(models, monkeypatch):
    """Nor does it change a bit of what is given out."""
    vocoder, waves = PackedVocoder(with_small_vocoder(models, causal=True).vocoder, torch.float32), []
    memory = (mel(24), mel(24)[:, :48].flatten(), torch.zeros(1, vocoder.lanes))
    assert vocoder.heard == (7, 3)
    for heard in (vocoder.heard, ()):
        monkeypatch.setattr(vocoder, "heard", heard)
        run = VocoderRun(vocoder, memory, 24, 1, noise=False)
        run.write_table([PackedRow(0, 19, first=9, end=11)])
        inside = [int(((tags == INSIDE) | (tags == FIRST)).sum()) for tags in run.frames.stages]
        assert inside == [before + 3 for before in heard]
        waves.append(vocoder.decode(run.mel, run.frames, run.source)[9 * 48 : 11 * 48])
    assert waves[0].std() > 0.01
    assert torch.equal(*waves)


def test_rows_of_the_pool_come_back(small):
    stage, plan = VocoderStage(small, kernels=True), Plan([9, 1, 0], seed=1)
    ended, closed = plan.open(stage), plan.open(stage)
    for number in range(2):
        stage.run([plan.piece(stream, number) for stream in (ended, closed)])
    assert stage.vocoding.pool.taken == 2
    for _ in range(2):
        stage.close(closed)
    assert stage.vocoding.pool.taken == 1
    # Its piece was on its way: nothing of it stays.
    stage.run([plan.piece(closed, 0), plan.piece(ended, 2)])
    assert stage.vocoding.pool.taken == 0
    assert closed.tails.pooled is None


@pytest.mark.parametrize("kernels", [False, True])
def test_nothing_at_all_is_silence_and_a_closed_stream_keeps_nothing(small, kernels):
    stage, plan = VocoderStage(small, kernels=kernels), Plan([12, 12])
    assert stage.run([]) == []
    assert len(whole(stage, 0, speed=1.3)) == len(spoken(stage, [0], speed=1.3)) == 0
    stream = plan.open(stage)
    stage.run([plan.piece(stream, 0)])
    stage.close(stream)
    stage.run([plan.piece(stream, 0)])
    assert stream.tails.frames == stream.tails.context == 0


def test_a_bucket_is_recorded_once(small):
    stage = VocoderStage(small, kernels=True)
    for _ in range(2):
        whole(stage, 3)
    graphs = stage.vocoding._graphs
    assert graphs.captured == 1
    stage.prepare(65)
    assert list(stage.vocoding._runs) == [48, 8192, 96, 64]
    stage.prepare()
    assert graphs.captured == len(packed.BUCKETS)
    whole(stage, 3)
    assert graphs.captured == len(packed.BUCKETS)


def test_batches_are_cut_where_memory_bounds_them(small):
    plans = [Plan([30], whole=True)] * 3
    bounded = VocoderStage(small, kernels=True, most_frames=64)
    check(speak(bounded, *plans), speak(VocoderStage(small), *plans), TOLERANCE)
    assert max(bounded.vocoding._runs) <= 64 < sum(plan.sizes[0] for plan in plans)


@pytest.mark.parametrize("unknown", ["sizes", "source"])
def test_what_the_kernels_do_not_know_stays_on_the_plain_path(models, unknown):
    config = models.vocoder.config
    vocoder = HiFT(config, SampledSource) if unknown == "source" else HiFT(replace(config, n_fft=20))
    assert not supports(vocoder)
    stage = VocoderStage(replace(models, vocoder=vocoder.requires_grad_(False)), kernels=True)
    stage.prepare()
    assert len(whole(stage, 4)) == 4 * 480


def test_columns_of_the_table_are_the_rows_fields():
    for number, name in enumerate(layouts.PackedRow._fields):
        assert getattr(vocoder_source, name.upper()).value == number
    assert vocoder_source.ROW_WIDTH.value == len(layouts.PackedRow._fields)
