"""What the runner of flow and vocoder decides for a sequence when it opens its streams."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import FlowSteps, SegmentRequest
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.synthesis_runner import SynthesisRunner


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("policy", "on_cuda", "asked"),
    [(ChunkPolicy.low_latency(), True, True), (ChunkPolicy.low_latency(), False, False), (None, True, False)],
)
def test_a_gpu_computes_the_state_of_a_voice_that_comes_again(
    policy: ChunkPolicy | None, on_cuda: bool, asked: bool, is_new: bool
) -> None:
    stream = SimpleNamespace(voice=b"anna", known=None, meet=Mock(return_value=is_new))
    flow = Mock(**{"open.return_value": stream, "lacks_prompt.return_value": True})
    runner = SynthesisRunner(flow, Mock(), Mock(on_cuda=on_cuda), Mock(), Statistics())
    sequence = Mock(
        segment=SegmentRequest(Mock(), (1,)),
        request=SimpleNamespace(policy=policy, asked=True),
        flow_steps=FlowSteps.OFFICIAL,
        lacks_prompt=False,
    )
    runner.open(sequence)
    assert stream.meet.called is asked
    assert sequence.lacks_prompt is (policy is not None and not (asked and is_new))
