"""A Triton server's gRPC interface with one model, whose behaviour the text asks for. Needs tritonclient."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

CHUNKS = (np.full(1200, 0.1, np.float32), np.full(1200, 0.2, np.float32), np.full(600, 0.3, np.float32))
"""What is answered to any text without a meaning here."""
INPUTS = ("target_text", "reference_wav", "reference_wav_len", "reference_text", "seed", "speed")
WAIT_S = 20.0


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """texts: "late" fails after a chunk, "cut" ends without an end, "empty" holds no audio, "nan" no numbers, "mute" no
    waveform; "slow" goes on until it is cancelled; "together" waits until three such are there."""

    def __init__(self, *, decoupled: bool = True, batched: bool = True, sample_rate: str | None = None) -> None:
        self._decoupled, self._batched, self._sample_rate = decoupled, batched, sample_rate
        self.seen: list[dict[str, Any]] = []
        """Each request's inputs, and its id."""
        self.started, self.cancelled = threading.Event(), threading.Event()
        self.barrier = threading.Barrier(3)
        self.address = ""

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name != "cosyvoice2":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        config = model_config_pb2.ModelConfig(name="cosyvoice2", max_batch_size=16 if self._batched else 0)
        config.model_transaction_policy.decoupled = self._decoupled
        for name in INPUTS:
            config.input.add(name=name)
        config.output.add(name="waveform")
        if self._sample_rate is not None:
            config.parameters["sample_rate"].string_value = self._sample_rate
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer, count = service_pb2.ModelStatisticsResponse(), len(self.seen)
        idle, busy = answer.model_stats.add(name="idle", version="1"), answer.model_stats.add(name="busy", version="2")
        idle.inference_count = 7
        busy.inference_count = busy.execution_count = busy.inference_stats.success.count = count
        busy.inference_stats.queue.count, busy.inference_stats.queue.ns = count, 2_000_000 * count
        batch = busy.batch_stats.add(batch_size=1)
        batch.compute_infer.count, batch.compute_infer.ns = count, 3_000_000 * count
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        text = self._read(request)
        if text == "bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "target_text: bad; say something else")
        return self._answer(np.concatenate(CHUNKS))

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for request in requests:
            yield from self._stream(request, context)

    def _stream(self, request: Any, context: Any) -> Iterator[Any]:
        text = self._read(request)
        assert request.parameters["triton_enable_empty_final_response"].bool_param
        if text == "slow":
            context.add_callback(self.cancelled.set)  # before it answers: who has the first chunk may leave at once
        if text == "together":
            self.barrier.wait(WAIT_S)
        for place, chunk in enumerate(() if text == "empty" else CHUNKS):
            if text in ("late", "cut") and place == 1:
                if text == "late":
                    yield service_pb2.ModelStreamInferResponse(error_message="target_text: late; say something else")
                return
            samples = np.full_like(chunk, np.nan) if text == "nan" else chunk
            yield service_pb2.ModelStreamInferResponse(infer_response=self._answer(samples, mute=text == "mute"))
            if text == "slow":
                self.started.set()
                self.cancelled.wait(WAIT_S)
        end = service_pb2.ModelInferResponse(model_name="cosyvoice2")
        end.parameters["triton_final_response"].bool_param = True
        yield service_pb2.ModelStreamInferResponse(infer_response=end)

    def _answer(self, samples: np.ndarray, *, mute: bool = False) -> Any:
        answer = service_pb2.ModelInferResponse(model_name="cosyvoice2")
        shape = (1, len(samples)) if self._batched else samples.shape
        answer.outputs.add(name="other" if mute else "waveform", datatype="FP32", shape=shape)
        answer.raw_output_contents.append(samples.tobytes())
        return answer

    def _read(self, request: Any) -> str:
        seen: dict[str, Any] = {"id": request.id}
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            dtype = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}.get(tensor.datatype)
            value = raw[4:].decode() if dtype is None else np.frombuffer(raw, dtype).reshape(tensor.shape)
            assert dtype is not None or int.from_bytes(raw[:4], "little") == len(raw) - 4
            seen[tensor.name] = value
        self.seen.append(seen)
        return str(seen["target_text"])


@contextmanager
def serving(fake: FakeTriton) -> Iterator[FakeTriton]:
    """The same, at `fake.address`."""
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    fake.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield fake
    finally:
        server.stop(None).wait()
