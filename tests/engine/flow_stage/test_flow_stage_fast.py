"""The flow stage with kernels makes the mel that it makes without, and the same in any company."""

from collections import Counter
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("triton")

from tests.engine.flow_stage.flow_oracle import check, check_pages, perform, run, say, speech, stage_of, voice
from tests.fast_flow import coarse_cuts, products_in_order, quick_interpreter, with_small_flow
from vivavoce.engine.device import FRAME_SIZES, TOKEN_SIZES, Bucket
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.flow_stage.packed import RecordedSizes, load_voices
from vivavoce.engine.flow_stage.packed_tables import EstimatorLayout
from vivavoce.engine.flow_stage.padded import voice_features
from vivavoce.models.flow.packed_encoder import PackedEncoder
from vivavoce.models.flow.packed_unet import PackedUNet

BLOCKS = AttentionMode.BLOCKS
TOKENS = speech(150)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter(), coarse_cuts():
        yield


@pytest.fixture(scope="module")
def small(models):
    return with_small_flow(models)


@pytest.fixture(scope="module", params=["v2", "v3"])
def either(request, small):
    """Small flows of both generations."""
    return small if request.param == "v2" else with_small_flow(request.getfixturevalue("models_v3"))


@pytest.fixture(scope="module", params=["models", "models_v3"])
def quickest(request):
    """As `either`, of a single step, for what no step leaves to the next one."""
    return with_small_flow(request.getfixturevalue(request.param), num_steps=1)


@pytest.fixture
def ordered():
    with products_in_order():
        yield


def take_turns(jobs):
    """All steps of several jobs, one of each at a time."""
    while jobs[0].steps_left:
        for job in jobs:
            job.step()
    return [mel for job in jobs for mel in job.result()]


def mels_of(stage, schedule, *, apart, ahead=3):
    """Mels of all streams; apart: each stream in a batch of its own, the batches taking turns; ahead: lookahead."""

    def compute(stage, work):
        return take_turns([stage.start([one]) for one in work]) if apart else run(stage, work)

    opened = [stage.open(voice(*one)) for one, _ in schedule[0]]
    return perform(stage, opened, TOKENS, schedule, compute, ahead)


MIXED = ([((30, 0), [3, 9]), ((30, 0), [14]), ((3, 0), [2, 1])], [([0, 1], ""), ([2, 0], "evict"), ([2], "abandon")])
"""Streams as (prompt tokens, voice, hops), and batches as (streams, what happens before)."""
CROWDED = ([((30, 1), [4]), ((45, 0), [6, 1]), ((0, 0), [20])], [([0, 1, 2], "prompts"), ([1], "evict")])


@pytest.mark.parametrize(
    ("either", "schedule", "pages", "apart", "ahead"),
    [
        pytest.param("v2", MIXED, 40, False, 3, id="v2_with_state"),
        pytest.param("v3", MIXED, 40, False, 3, id="v3_with_state"),
        pytest.param("v2", MIXED, 0, False, 3, id="v2_without_state", marks=pytest.mark.long),
        pytest.param("v3", MIXED, 0, False, 3, id="v3_without_state", marks=pytest.mark.long),
        pytest.param("v2", CROWDED, 4, True, 3, id="v2_short_of_pages"),
        pytest.param("v3", CROWDED, 4, True, 3, id="v3_short_of_pages", marks=pytest.mark.long),
        pytest.param("v2", MIXED, 0, False, 0, id="v2_without_state_and_lookahead", marks=pytest.mark.long),
        pytest.param("v3", MIXED, 0, False, 0, id="v3_without_state_and_lookahead"),
    ],
    indirect=["either"],
)
def test_a_schedule_gives_what_the_plain_stage_gives(either, schedule, pages, apart, ahead):
    fast = mels_of(stage_of(either, pages, kernels=True), schedule, apart=apart, ahead=ahead)
    for mel, expected in zip(fast, mels_of(stage_of(either, 40), schedule, apart=False, ahead=ahead), strict=True):
        check(mel, expected)


@pytest.mark.parametrize("attention", [AttentionMode.FULL, AttentionMode.GRID])
def test_whole_rows(quickest, attention):
    fast, plain = stage_of(quickest, 0, kernels=True), stage_of(quickest, 0)
    given = [(voice(30), 1), (voice(0), 31), (voice(2), 1)]
    made, expected = (
        run(stage, [FlowRow(stage.open(v), TOKENS[: hop + 3], hop, attention) for v, hop in given])
        for stage in (fast, plain)
    )
    for mel, wanted in zip(made, expected, strict=True):
        check(mel, wanted)


def test_what_pages_and_buffers_held_before_does_not_matter(either):
    stage, plain = stage_of(either, 6, kernels=True), stage_of(either, 6)
    for buffer in stage.pool.buffers:
        buffer.keys[1:] = float("nan")
        buffer.tails[1:] = float("nan")
    opened = [one.open(voice(30)) for one in (stage, plain)]
    for hop in (8, 3):
        fast, expected = (
            say(one, stream, TOKENS[: stream.spoken + hop + 3], hop, BLOCKS)
            for one, stream in zip((stage, plain), opened, strict=True)
        )
        check(fast, expected)


def test_a_batch_whose_second_part_fails_leaves_no_trace(small, monkeypatch):
    stage, plain = stage_of(small, 20, kernels=True), stage_of(small, 20)
    opened, undisturbed = ([one.open(voice(prompt)) for prompt in (4, 0)] for one in (stage, plain))

    def work(streams, hop):
        return [FlowRow(one, TOKENS[: one.spoken + hop + 3], hop, BLOCKS) for one in streams]

    run(stage, work(opened, 5))
    run(plain, work(undisturbed, 5))
    begin, begun = stage.path.begin, []

    def begin_one(rows):
        if begun:
            raise MemoryError
        begun.append(begin(rows))
        return begun[0]

    with monkeypatch.context() as patch:
        patch.setattr(stage.path, "_most", Bucket(16384, 1, True))
        patch.setattr(stage.path, "begin", begin_one)
        # So long that the rows need pages of their own.
        with pytest.raises(MemoryError):
            stage.start(work(opened, 40))
    assert [row.stream for row in begun[0].rows] == opened[:1]
    check_pages(stage)
    assert stage.pool.total - len(stage.pool.free) == 2
    assert not any(stream.busy for stream in opened)
    for mel, expected in zip(run(stage, work(opened, 3)), run(plain, work(undisturbed, 3)), strict=True):
        check(mel, expected)


def test_deterministic_rows_are_equal_to_the_bit(quickest, ordered):
    """Alone and in company, with state and without."""
    hops = [7, 4]
    conditionings = [voice(30), voice(0)]

    def speak(stage, stream, company):
        mels = []
        for hop in hops:
            others = [FlowRow(one, TOKENS[5 : one.spoken + hop + 9], hop + 1, BLOCKS) for one in company]
            work = [*others, FlowRow(stream, TOKENS[: stream.spoken + hop + 3], hop, BLOCKS)]
            mels.append(run(stage, work)[-1])
        return torch.cat(mels)

    alone = stage_of(quickest, 20, kernels=True, deterministic=True)
    expected = speak(alone, alone.open(conditionings[0]), [])
    check(expected, speak(plain := stage_of(quickest, 20), plain.open(conditionings[0]), []))
    together = stage_of(quickest, 20, kernels=True, deterministic=True)
    company = [together.open(one) for one in conditionings[1:]]
    assert torch.equal(speak(together, together.open(conditionings[0]), company), expected)
    forgetful = stage_of(quickest, 0, kernels=True, deterministic=True)
    assert torch.equal(speak(forgetful, forgetful.open(conditionings[0]), []), expected)


def test_deterministic_needs_kernels(small):
    with pytest.raises(ValueError, match="set kernels"):
        FlowStage(small, state_bytes=0, deterministic=True)


@pytest.fixture
def no_work(monkeypatch):
    """What recordings compute is not looked at."""
    monkeypatch.setattr(PackedUNet, "step", lambda self, batch: None)
    monkeypatch.setattr(PackedEncoder, "encode", lambda self, batch: None)


def test_prepared_sizes_are_recorded_once(small, no_work):
    stage = stage_of(small, 6, kernels=True, most_frames=64)
    stage.prepare()
    # The last is past the largest size: it is not recorded.
    for hop, attention in ((10, BLOCKS), (10, AttentionMode.FULL), (30, AttentionMode.FULL)):
        assert stage.path.runs.graphs.captured == 2
        say(stage, stage.open(voice(4)), TOKENS[: hop + 10], hop, attention)
    assert stage.path.runs.graphs.captured == 2
    assert [len(part) for part in stage.path.parts([Mock(new=20), Mock(new=12), Mock(new=1)])] == [2, 1]
    assert [len(part) for part in stage.path.parts([Mock(new=1)] * 9)] == [8, 1]


def test_what_few_streams_need_is_recorded_and_the_largest_size(small, no_work):
    stage = stage_of(small, 6, kernels=True, most_frames=256)
    for frames, captured in ((100, 6), (128, 6), (129, 8), (None, 8)):
        stage.prepare(frames)
        assert stage.path.runs.graphs.captured == captured


@pytest.mark.parametrize(("sizes", "size"), [(FRAME_SIZES, 64), (TOKEN_SIZES, 32)])
def test_buckets(sizes, size):
    assert sizes.bucket(size, 3, True) == Bucket(size, 8, True)
    assert sizes.bucket(size + 1, 3, False) == Bucket(2 * size, 8, False)
    assert sizes.bucket(size, 9, True).rows >= 9
    largest = sizes.positions[-1]
    assert sizes.is_common(sizes.bucket(largest, 256, True))
    large = sizes.bucket(largest + 3, 3, True)
    assert (large, sizes.is_common(large)) == (Bucket(largest + 64, 8, True), False)
    assert sizes.bucket(1000, 300, False).rows >= 300


def test_short_rows_with_pages_have_recordings_of_their_own():
    runs = RecordedSizes(
        FRAME_SIZES.within(1024), True, torch.device("cpu"), lambda _: None, lambda one, *_: one, short=256
    )
    assert [one.positions for one in runs.common(None) if one.short] == [256, 192, 128, 64]
    assert all(one.paged for one in runs.common(None) if one.short)
    assert runs.of(7 * 32, 7, True, short=True) == Bucket(256, 16, True, short=True)
    assert not runs.of(7 * 32, 7, False, short=True).short
    assert not runs.of(300, 10, True, short=True).short
    assert FRAME_SIZES.is_common(runs.of(26, 1, True, short=True))


def test_tables_of_a_batch(small):
    stage = stage_of(small, 20, kernels=True)
    rows = [FlowRow(stage.open(voice(prompt)), TOKENS[:40], hop, BLOCKS) for prompt, hop in ((0, 5), (30, 9))]
    assert all(map(stage.planner.plan, rows))
    layout = EstimatorLayout(FRAME_SIZES.bucket(2 * (5 + 39), 2, True), 16)
    tables = layout.tables(torch.from_numpy(layout.numbers(rows, 2)))
    assert all(table.data_ptr() % 16 == 0 for table in (tables.first, tables.length, tables.tiles, tables.pages))
    assert tables.row.tolist() == [0] * 10 + [1] * 78 + [0] * 40
    assert tables.local.tolist() == [*range(10), *range(78), *[-1] * 40]
    assert tables.position[:88].tolist() == [*range(10), *range(78)]
    assert tables.ends[:88].tolist() == [10] * 10 + rows[1].span.frames.tolist()
    assert not tables.ends[88:].any()
    assert tables.first.tolist()[:2] == [0, 10]
    assert tables.length.tolist() == [10, 78, *[0] * 6]
    seen = [frame for _, first, count in tables.tiles.tolist() for frame in range(first, first + count)]
    assert seen == list(range(128))
    assert all(set(tables.row[first : first + count].tolist()) <= {row} for row, first, count in tables.tiles.tolist())
    assert tables.pages[1, :2].tolist() == list(rows[1].after.pages)
    assert Counter(tables.tiles[:, 0].tolist())[1] == 5


def test_streams_of_a_voice_share_its_features(small):
    stage = stage_of(small, 0, kernels=True)
    one, other, stranger = stage.open(voice(4)), stage.open(voice(4)), stage.open(voice(0))
    load_voices([one, other, stranger], small)
    assert one.features is other.features
    for stream in (one, stranger):
        made, stream.features = stream.features, None
        expected = voice_features(stream, small)
        check(made.speaker, expected.speaker)
        assert torch.equal(made.mel, expected.mel)
