"""What the runner of flow and vocoder decides for a sequence when it opens its streams."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import FlowSteps, SegmentRequest
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.synthesis_runner import SynthesisRunner


@pytest.mark.parametrize(
    ("policy", "on_cuda", "short", "met"),
    [
        (ChunkPolicy.low_latency(), True, 0, 1),
        (ChunkPolicy.low_latency(), True, 32, 0),  # the prompt's state lets the first chunk be short
        (ChunkPolicy.low_latency(), False, 0, 0),
        (None, True, 0, 0),
    ],
)
def test_only_a_stream_that_continues_its_voices_state_makes_the_voice_known(
    policy: ChunkPolicy | None, on_cuda: bool, short: int, met: int
) -> None:
    stream = SimpleNamespace(voice=b"anna", known=None, meet=Mock(return_value=True))
    flow = Mock(**{"open.return_value": stream, "lacks_prompt.return_value": True, "short.frames": short})
    runner = SynthesisRunner(flow, Mock(), Mock(on_cuda=on_cuda), Mock(), Statistics())
    sequence = Mock(
        segment=SegmentRequest(Mock(), (1,)),
        request=SimpleNamespace(policy=policy, asked=True),
        flow_steps=FlowSteps.OFFICIAL,
        prompt_later=False,
    )
    runner.open(sequence)
    assert stream.meet.call_count == met
    assert sequence.prompt_later is bool(met)
