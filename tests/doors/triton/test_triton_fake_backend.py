"""The stand-in behaves as models may rely on, and no better."""

import asyncio

import numpy as np
import pytest

from tests.doors.triton.fake_backend import (
    FakeBackend,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
    output,
    refused,
)

FINAL = FakeBackend.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def doubled(request):
    value = FakeBackend.get_input_tensor_by_name(request, "x").as_numpy()
    return InferenceResponse([Tensor("y", 2 * value), Tensor("z", value)])


def counting(request):
    for number in range(3):
        yield InferenceResponse([Tensor("y", np.array([number]))])
    yield InferenceResponse()


def inner(backend, name, outputs=("y",), **tensors):
    inputs = [Tensor(key, value) for key, value in tensors.items()]
    return backend.InferenceRequest(model_name=name, requested_output_names=list(outputs), inputs=inputs)


def test_strings_arrive_as_bytes():
    assert Tensor("text", np.array([["hé", b"x"]], dtype=object)).as_numpy().tolist() == [["hé".encode(), b"x"]]


def test_inner_requests_reach_their_model():
    backend = FakeBackend({"double": doubled, "count": counting})
    response = inner(backend, "double", x=np.array([3])).exec()
    assert output(response, "y").tolist() == [6]
    assert backend.get_output_tensor_by_name(response, "z") is None
    assert output(asyncio.run(inner(backend, "double", x=np.array([4])).async_exec()), "y").tolist() == [8]
    *numbers, empty = inner(backend, "count").exec(decoupled=True)
    assert [output(one, "y").item() for one in numbers] == [0, 1, 2]
    assert empty.output_tensors() == []
    assert [one.model_name() for one in backend.asked] == ["double", "double", "count"]


def test_inner_requests_that_cannot_be_answered():
    backend = FakeBackend({"count": counting})
    assert "'nobody' is not ready" in refused(inner(backend, "nobody").exec(), TritonError.INTERNAL)
    with pytest.raises(TritonModelException, match="is decoupled"):
        inner(backend, "count").exec()


def test_cancelling_an_inner_request_needs_a_newer_server():
    old, new = FakeBackend({"count": counting}), FakeBackend({"count": counting}, inner_cancel=True)
    assert not hasattr(inner(old, "count").exec(decoupled=True), "cancel")
    inner(new, "count").exec(decoupled=True).cancel()
    assert new.asked[0].get_response_sender().is_cancelled()


def test_a_sender_sends_until_the_end():
    request = FakeBackend().request("id", x=np.array([1]))
    sender = request.get_response_sender()
    with pytest.raises(TritonModelException, match="must be provided"):
        sender.send()
    sender.send(InferenceResponse([Tensor("y", np.array([7]))]))
    sender.send(flags=FINAL)
    with pytest.raises(TritonModelException, match="closed"):
        sender.send(flags=FINAL)
    assert [output(one, "y").item() for one in request.answers()] == [7]
    assert not sender.is_cancelled()
    request.leave()
    assert sender.is_cancelled()
