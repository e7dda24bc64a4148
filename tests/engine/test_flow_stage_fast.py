"""The flow stage with kernels makes the mel that it makes without, and the same in any company."""

from collections import Counter
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("triton")

from tests.engine.flow_stage.flow_oracle import perform, run, say, speech, voice
from tests.fast_flow import coarse_cuts, products_in_order, quick_interpreter, with_small_flow
from vivavoce.engine.flow_stage import (
    Attention,
    FlowChunk,
    FlowStage,
)
from vivavoce.engine.flow_stage.lane import voice_features
from vivavoce.engine.flow_stage.packed_tables import Bucket, TableShape
from vivavoce.engine.flow_stage.voices import load_voices
from vivavoce.models.flow.packed import PackedUNet
from vivavoce.models.flow.packed_encoder import PackedEncoder

BLOCKS = Attention.BLOCKS
TOKENS = speech(150)


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter(), coarse_cuts():
        yield


@pytest.fixture(scope="module")
def small(models):
    return with_small_flow(models)


@pytest.fixture
def ordered():
    with products_in_order():
        yield


def stage_of(models, pages, **options):
    with torch.inference_mode():
        stage = FlowStage(models, state_bytes=0, **options)
        size = sum(shelf.page_bytes for shelf in stage._pool.shelves)
        stage = FlowStage(models, state_bytes=(pages + 1) * size, **options)
    assert stage.statistics().pages_total == pages
    return stage


def check(mel, expected):
    torch.testing.assert_close(mel, expected, atol=1e-4, rtol=0)


def evict(stage):
    prompts = stage._prompts
    for key in [key for key, state in prompts._states.items() if prompts._unused(state)]:
        prompts._drop(key)
    for stream in stage._streams:
        stage._drop(stream)


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
    return perform(stage, opened, TOKENS, schedule, evict, compute, ahead)


MIXED = ([((30, 0), [3, 9]), ((30, 0), [14]), ((3, 0), [2, 1])], [([0, 1], ""), ([2, 0], "evict"), ([2], "abandon")])
"""Streams as (prompt tokens, voice, hops), and batches as (streams, what happens before)."""
CROWDED = ([((30, 1), [4]), ((45, 0), [6, 1]), ((0, 0), [20])], [([0, 1, 2], "prompts"), ([1], "evict")])


@pytest.mark.parametrize(
    ("schedule", "pages", "apart", "ahead"),
    [
        pytest.param(MIXED, 40, False, 3, id="with_state"),
        pytest.param(MIXED, 0, False, 3, id="without_state", marks=pytest.mark.long),
        pytest.param(CROWDED, 4, True, 3, id="short_of_pages"),
        pytest.param(MIXED, 0, False, 0, id="without_state_and_lookahead"),
    ],
)
@torch.inference_mode()
def test_a_schedule_gives_what_the_plain_stage_gives(small, schedule, pages, apart, ahead):
    fast = mels_of(stage_of(small, pages, kernels=True), schedule, apart=apart, ahead=ahead)
    for mel, expected in zip(fast, mels_of(stage_of(small, 40), schedule, apart=False, ahead=ahead), strict=True):
        check(mel, expected)


@pytest.mark.parametrize("attention", [Attention.FULL, Attention.GRID])
@torch.inference_mode()
def test_whole_rows(small, attention):
    fast, plain = stage_of(small, 0, kernels=True), stage_of(small, 0)
    given = [(voice(30), 1), (voice(0), 31), (voice(2), 1)]
    made, expected = (
        run(stage, [FlowChunk(stage.open(v), TOKENS[: hop + 3], hop, attention) for v, hop in given])
        for stage in (fast, plain)
    )
    for mel, wanted in zip(made, expected, strict=True):
        check(mel, wanted)


@torch.inference_mode()
def test_jobs_take_turns_in_the_same_buffers(small):
    stage, plain = stage_of(small, 20, kernels=True), stage_of(small, 20)
    given = [(voice(30), 4), (voice(30, 1), 6), (voice(3), 16)]
    jobs = [stage.start([FlowChunk(stage.open(one), TOKENS[:40], hop, BLOCKS)]) for one, hop in given]
    for mel, (one, hop) in zip(take_turns(jobs), given, strict=True):
        check(mel, say(plain, plain.open(one), TOKENS[:40], hop, BLOCKS))


@torch.inference_mode()
def test_what_pages_and_buffers_held_before_does_not_matter(small):
    stage, plain = stage_of(small, 6, kernels=True), stage_of(small, 6)
    for shelf in stage._pool.shelves:
        shelf.keys[1:] = float("nan")
        shelf.tails[1:] = float("nan")
    opened = [one.open(voice(30)) for one in (stage, plain)]
    for hop in (8, 3):
        fast, expected = (
            say(one, stream, TOKENS[: stream.spoken + hop + 3], hop, BLOCKS)
            for one, stream in zip((stage, plain), opened, strict=True)
        )
        check(fast, expected)


@torch.inference_mode()
def test_a_batch_whose_second_part_fails_leaves_no_trace(small, monkeypatch):
    stage, plain = stage_of(small, 20, kernels=True), stage_of(small, 20)
    opened, undisturbed = ([one.open(voice(prompt)) for prompt in (4, 0)] for one in (stage, plain))

    def work(streams, hop):
        return [FlowChunk(one, TOKENS[: one.spoken + hop + 3], hop, BLOCKS) for one in streams]

    run(stage, work(opened, 5))
    run(plain, work(undisturbed, 5))
    begin, begun = stage._lanes.begin, []

    def begin_one(rows):
        if begun:
            raise MemoryError
        begun.append(begin(rows))
        return begun[0]

    with monkeypatch.context() as patch:
        patch.setattr(stage._lanes, "_most_rows", 1)
        patch.setattr(stage._lanes, "begin", begin_one)
        # So long that the rows need pages of their own.
        with pytest.raises(MemoryError):
            stage.start(work(opened, 40))
    assert [row.stream for row in begun[0].rows] == opened[:1]
    assert stage.balanced()
    assert stage.statistics().pages_in_use == 2
    assert not any(stream.busy for stream in opened)
    for mel, expected in zip(run(stage, work(opened, 3)), run(plain, work(undisturbed, 3)), strict=True):
        check(mel, expected)


@torch.inference_mode()
def test_deterministic_rows_are_equal_to_the_bit(small, ordered):
    """Alone and in company, with state and without."""
    hops = [7, 4]
    conditionings = [voice(30), voice(0)]

    def speak(stage, stream, company):
        mels = []
        for hop in hops:
            others = [FlowChunk(one, TOKENS[5 : one.spoken + hop + 9], hop + 1, BLOCKS) for one in company]
            work = [*others, FlowChunk(stream, TOKENS[: stream.spoken + hop + 3], hop, BLOCKS)]
            mels.append(run(stage, work)[-1])
        return torch.cat(mels)

    alone = stage_of(small, 20, kernels=True, deterministic=True)
    expected = speak(alone, alone.open(conditionings[0]), [])
    check(expected, speak(plain := stage_of(small, 20), plain.open(conditionings[0]), []))
    together = stage_of(small, 20, kernels=True, deterministic=True)
    company = [together.open(one) for one in conditionings[1:]]
    assert torch.equal(speak(together, together.open(conditionings[0]), company), expected)
    forgetful = stage_of(small, 0, kernels=True, deterministic=True)
    assert torch.equal(speak(forgetful, forgetful.open(conditionings[0]), []), expected)


def test_deterministic_needs_kernels(small):
    with pytest.raises(ValueError, match="set kernels"):
        FlowStage(small, state_bytes=0, deterministic=True)


@torch.inference_mode()
def test_prepared_sizes_are_recorded_once(small, monkeypatch):
    # What they compute is not looked at here.
    monkeypatch.setattr(PackedUNet, "step", lambda self, batch: None)
    monkeypatch.setattr(PackedEncoder, "encode", lambda self, batch: None)
    stage = stage_of(small, 6, kernels=True, most_frames=64)
    stage.prepare()
    graphs = stage._lanes._buffers._graphs
    assert graphs.captured == 2
    say(stage, stage.open(voice(4)), TOKENS[:20], 10, BLOCKS)
    say(stage, stage.open(voice(4)), TOKENS[:20], 10, Attention.FULL)
    assert graphs.captured == 2
    # Past the largest size a batch is not recorded.
    say(stage, stage.open(voice(4)), TOKENS[:40], 30, Attention.FULL)
    assert graphs.captured == 2
    assert [len(part) for part in stage._lanes.parts([Mock(new=20), Mock(new=12), Mock(new=1)])] == [2, 1]
    assert [len(part) for part in stage._lanes.parts([Mock(new=1)] * 9)] == [8, 1]


@torch.inference_mode()
def test_what_few_streams_need_is_recorded_and_the_largest_size(small, monkeypatch):
    monkeypatch.setattr(PackedUNet, "step", lambda self, batch: None)
    monkeypatch.setattr(PackedEncoder, "encode", lambda self, batch: None)
    stage = stage_of(small, 6, kernels=True, most_frames=256)
    graphs = stage._lanes._buffers._graphs
    for frames, captured in ((100, 6), (128, 6), (129, 8), (None, 8)):
        stage.prepare(frames)
        assert graphs.captured == captured


def test_buckets():
    assert Bucket.of(64, 3, True) == Bucket(64, 8, True)
    assert Bucket.of(65, 3, False) == Bucket(128, 8, False)
    assert Bucket.of(64, 9, True).rows >= 9
    assert Bucket.of(16384, 256, True).is_common
    large = Bucket.of(16390, 3, True)
    assert (large.frames, large.rows, large.is_common) == (16448, 8, False)
    assert Bucket.of(2000, 300, False).rows >= 300
    with pytest.raises(ValueError, match="split"):
        Bucket.of(1 << 20, 1, False)


@torch.inference_mode()
def test_tables_of_a_batch(small):
    stage = stage_of(small, 20, kernels=True)
    rows = [
        stage._planner.chunk(FlowChunk(stage.open(voice(prompt)), TOKENS[:40], hop, BLOCKS))
        for prompt, hop in ((0, 5), (30, 9))
    ]
    shape = TableShape(Bucket.of(2 * (5 + 39), 2, True), 16)
    tables = shape.views(torch.from_numpy(shape.numbers(rows, 2)))
    assert all(table.data_ptr() % 16 == 0 for table in (tables.first, tables.length, tables.tiles, tables.pages))
    assert tables.row.tolist() == [0] * 10 + [1] * 78 + [0] * 40
    assert tables.local.tolist() == [*range(10), *range(78), *[-1] * 40]
    assert tables.position[:88].tolist() == [*range(10), *range(78)]
    assert tables.ends[:88].tolist() == [10] * 10 + rows[1].sight.frames.tolist()
    assert not tables.ends[88:].any()
    assert tables.first.tolist()[:2] == [0, 10]
    assert tables.length.tolist() == [10, 78, *[0] * 6]
    seen = [frame for _, first, count in tables.tiles.tolist() for frame in range(first, first + count)]
    assert seen == list(range(128))
    assert all(set(tables.row[first : first + count].tolist()) <= {row} for row, first, count in tables.tiles.tolist())
    assert tables.pages[1, :2].tolist() == list(rows[1].after.pages)
    assert Counter(tables.tiles[:, 0].tolist())[1] == 5


@torch.inference_mode()
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
