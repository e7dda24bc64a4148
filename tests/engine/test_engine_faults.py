"""What fails, and who is hurt by it: the requests of that batch, and nobody else."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.engine_helpers import (
    BOTH,
    MUTE,
    arriving,
    given,
    inject,
    offline,
    running,
    same,
    segment,
    stream,
    voice,
)
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.flow_stage import AttentionMode, FlowRow
from vivavoce.engine.flow_stage.padded import PaddedSolver
from vivavoce.engine.request import Conditioning, InputMode
from vivavoce.engine.scheduler import Scheduler
from vivavoce.errors import EngineStopped, OutOfMemory, StageFailed
from vivavoce.models.flow.model import Path

NEIGHBOUR = stream(segment(40, seed=1))
VICTIM = stream(segment(30, seed=2, voice=MUTE), policy=ChunkPolicy.official())
"""Its chunks share no flow batch with a neighbour's."""
CUDA_OOM = torch.cuda.OutOfMemoryError("CUDA out of memory")


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="vivavoce")


@pytest.fixture(params=[True, False], ids=["one processor", "two queues"])
def engine(models, request):
    """Planned as on a CPU, and as on a GPU, whose queues work at the same time."""
    with running(models, exclusive=request.param) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(models):
    with running(models) as engine:
        return engine.submit(NEIGHBOUR).result()


FLOW_FAULTS = {
    "begin": lambda engine: (engine.stages.flow, "start", lambda n, work: is_official(work)),
    "step": lambda engine: (PaddedSolver, "step", lambda n, self, number: number == 3 and is_official(self.rows)),
    "finish": lambda engine: (PaddedSolver, "finish", lambda n, self: is_official(self.rows)),
    "result": lambda engine: (FlowRow, "first_frame", lambda n, self, upsampling: is_official([self])),
    "vocoder": lambda engine: (engine.stages.vocoder, "run", lambda n, rows: any_victim(rows)),
    "vocoder within": lambda engine: (engine.stages.vocoder.vocoding, "vocode", lambda n, rows: any_victim(rows)),
}


def is_official(work):
    return any(getattr(one, "attention", None) is AttentionMode.GRID for one in work)


def any_victim(rows):
    return any(row.stream.seed == VICTIM.segments[0].seed for row in rows)


def place(monkeypatch, fault, error):
    owner, name, when = fault
    return inject(monkeypatch, owner, name, error, when)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("fault", FLOW_FAULTS)
def test_a_failing_batch_hurts_its_own(engine, monkeypatch, alone, fault):
    where = place(monkeypatch, FLOW_FAULTS[fault](engine), RuntimeError("no"))
    neighbour, victim = engine.submit(NEIGHBOUR), engine.submit(VICTIM)
    with pytest.raises(StageFailed, match="RuntimeError"):
        victim.result()
    same(neighbour.result().samples, alone.samples)
    assert where.raised >= 1
    assert engine.statistics.requests.failed == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("step", CUDA_OOM),
        ("finish", RuntimeError("DefaultCPUAllocator: can't allocate memory")),
        ("vocoder", MemoryError()),
    ],
)
def test_what_does_not_fit_alone_is_out_of_memory(models, monkeypatch, alone, fault, error):
    with running(models) as engine:
        place(monkeypatch, FLOW_FAULTS[fault](engine), error)
        neighbour, victim = engine.submit(NEIGHBOUR), engine.submit(VICTIM)
        with pytest.raises(OutOfMemory):
            victim.result()
        same(neighbour.result().samples, alone.samples)


@pytest.mark.parametrize(("error", "wanted"), [(RuntimeError("no"), StageFailed), (CUDA_OOM, OutOfMemory)])
def test_a_prompt_that_cannot_be_read_hurts_itself_alone(engine, monkeypatch, alone, error, wanted):
    neighbour = engine.submit(NEIGHBOUR)
    chunks = iter(neighbour)
    heard = [next(chunks).samples]
    lm = engine.stages.lm
    inject(monkeypatch, lm, "prefill", error, lambda n, runs: any(len(run.rows) > 40 for run in runs.values()))
    long = segment(5, text=tuple(range(65, 105)))
    victim, spared = engine.submit(stream(long)), engine.submit(offline(segment(5)))
    with pytest.raises(wanted):
        victim.result()
    heard += [chunk.samples for chunk in chunks]
    same(np.concatenate(heard), alone.samples)
    assert len(spared.result().samples) == 5 * 960


def test_a_failing_decode_step_hurts_those_that_decode(engine, monkeypatch):
    starved = engine.submit(arriving(segment(None, text=(65, 66)), InputMode.TOKENS))
    assert starved.text.wait_until_wanted()
    inject(monkeypatch, engine.stages.lm, "decode", CUDA_OOM)
    victim, spared = engine.submit(VICTIM), engine.submit(stream(given(20)))
    with pytest.raises(OutOfMemory):
        victim.result()
    assert len(spared.result().samples) == 20 * 960
    starved.text.push((67, 68, 69, 70))
    starved.text.close()
    assert len(starved.result().samples) > 0


def test_a_failing_readback_hurts_all_that_hold_a_slot(engine, monkeypatch, alone):
    spared = engine.submit(stream(given(20)))
    lm = engine.stages.lm
    inject(monkeypatch, lm, "collect", RuntimeError("no"), lambda number, **_: lm.free_slots < lm.slots)
    victim = engine.submit(VICTIM)
    with pytest.raises(StageFailed):
        victim.result()
    assert len(spared.result().samples) == 20 * 960
    monkeypatch.undo()
    same(engine.submit(NEIGHBOUR).result().samples, alone.samples)


@pytest.mark.slow
@BOTH
def test_stages_work_after_a_failure_as_before(engine, monkeypatch, alone):
    """What a failed batch wrote is not read by those that come after it."""
    for number in (1, 2, 7):
        inject(monkeypatch, Path, "step", RuntimeError("no"), lambda n, *_, number=number: n == number)
        with pytest.raises(StageFailed):
            engine.submit(NEIGHBOUR).result()
        monkeypatch.undo()
        same(engine.submit(NEIGHBOUR).result().samples, alone.samples)


COMPANY = [stream(segment(20, seed=1)), stream(given(25, seed=2)), offline(segment(8, seed=3), segment(6, seed=4)),
           stream(given(10, seed=5, voice=voice(9, prompt=8)))]  # fmt: skip
LARGE = {
    "begin": lambda engine: (engine.stages.flow, "start", lambda n, work: len(work) > 1),
    "step": lambda engine: (PaddedSolver, "step", lambda n, self, number: number == 2 and len(self.rows) > 1),
    "vocoder": lambda engine: (engine.stages.vocoder, "run", lambda n, pieces: len(pieces) > 1),
    "once": lambda engine: (PaddedSolver, "step", lambda n, self, number: n == 5),
}


@pytest.fixture(scope="module")
def each_alone(models):
    with running(models) as engine:
        return [engine.submit(one).result() for one in COMPANY]


@pytest.mark.slow
@pytest.mark.parametrize("fault", LARGE)
def test_a_batch_that_does_not_fit_is_tried_in_halves(models, monkeypatch, each_alone, fault):
    with running(models, exclusive=False) as engine:
        where = place(monkeypatch, LARGE[fault](engine), CUDA_OOM)
        handles = [engine.submit(one) for one in COMPANY]
        for handle, before in zip(handles, each_alone, strict=True):
            spoken = handle.result()
            assert spoken.tokens == before.tokens
            same(spoken.samples, before.samples)
        assert where.raised >= 1
        assert engine.statistics.requests.failed == 0


def test_those_who_leave_while_it_is_tried_again_are_forgotten(models, monkeypatch, each_alone):
    with running(models) as engine:
        handles = [engine.submit(one) for one in COMPANY]

        def no_room(number, lanes, *_):
            fails = len(lanes.rows) > 1
            if fails:
                handles[1].cancel()
            return fails

        inject(monkeypatch, PaddedSolver, "step", CUDA_OOM, no_room)
        for place in (0, 2, 3):
            same(handles[place].result().samples, each_alone[place].samples)


def test_a_voice_of_wrong_tensors_hurts_itself(engine, alone):
    broken = Conditioning(embedding=torch.zeros(192).bfloat16(), flow_tokens=torch.zeros(8, dtype=torch.int64))
    neighbour, victim = engine.submit(NEIGHBOUR), engine.submit(stream(segment(4, voice=broken)))
    with pytest.raises(StageFailed):
        victim.result()
    same(neighbour.result().samples, alone.samples)


@pytest.mark.slow
@BOTH
def test_numbers_that_overflow_are_never_heard(engine, alone):
    loud = replace(voice(), flow_mel=torch.full((60, 80), 3e38))
    neighbour, victims = engine.submit(NEIGHBOUR), [stream(segment(20, voice=loud)), offline(segment(20, voice=loud))]
    for victim in [engine.submit(one) for one in victims]:
        with pytest.raises(StageFailed, match="dtype float32"):
            victim.result()
    same(neighbour.result().samples, alone.samples)


def test_a_failing_scheduler_ends_the_engine(engine, monkeypatch):
    streams = [engine.submit(NEIGHBOUR), engine.submit(offline(segment(50)))]
    starved = engine.submit(arriving(None, InputMode.SEGMENTS))
    assert starved.text.wait_until_wanted()
    inject(monkeypatch, Scheduler, "plan", ZeroDivisionError())
    for handle in (*streams, starved):
        with pytest.raises(EngineStopped):
            handle.result()
    assert not engine.healthy
    assert engine.statistics.requests.unfinished == 0
    with pytest.raises(EngineStopped):
        engine.submit(NEIGHBOUR)
