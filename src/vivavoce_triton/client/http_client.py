"""Request one utterance over Triton's HTTP interface.

If a model gives a single response, the request goes to `/v2/models/{model}/infer`. For a streaming model it goes to
`/v2/models/{model}/generate_stream`, which accepts only JSON and is missing in some servers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.samples import Samples
from vivavoce_triton.client.utterance import Manner, Utterance, check_timeout
from vivavoce_triton.client.wire import (
    WAVEFORM,
    ServedModel,
    ServerRefused,
    ServerUnreachable,
    Tensor,
    decoded,
    finite,
    not_served,
    read_reference,
    refused,
    request_tensors,
    served_model,
    unreachable,
)

if TYPE_CHECKING:
    import httpx

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header with the length of the JSON part of a body; binary tensors follow this part."""
_NOT_FOUND = 404
_NO_SUCH_PLACE = (_NOT_FOUND, 405)
"""HTTP statuses of a server that lacks a path of Triton's HTTP API, unless the body is a Triton error."""
_LONGEST_WORDS = 200
_DATA = "data:"


@dataclass(frozen=True)
class HttpOptions:
    """One HTTP request.

    url: with or without http://; binary: send and receive tensors in binary instead of JSON; timeout_s: limit for the
    connection and for each part of the response.
    """

    utterance: Utterance
    url: str = "localhost:8000"
    model: str = "cosyvoice2"
    manner: Manner = field(default_factory=Manner)
    binary: bool = False
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)


class SpokenAudio(NamedTuple):
    """samples: [n] float32 in ±1."""

    samples: Samples
    sample_rate: int


def speak_http(options: HttpOptions) -> SpokenAudio:
    """Request one utterance and wait for all of its audio.

    `InvalidRequest`: the model lacks an input, or cannot stream over HTTP. `ModelNotFound`: the server lacks the model.
    `ServerUnreachable`: no connection, or no response in time. `ServerRefused`: the server sent an error, or no audio.
    """
    from vivavoce_hub.download import open_client

    source = options.utterance.reference
    reference = None if source is None else read_reference(source)
    address = options.url if "://" in options.url else f"http://{options.url}"
    with _explained(options), open_client(address, base_url=address.rstrip("/"), timeout=options.timeout_s) as client:
        model = _served(client, options)
        tensors = request_tensors(options.utterance, options.manner, model, reference)
        samples = _streamed(client, options, tensors) if model.decoupled else _whole(client, options, tensors)
    if not len(samples):
        raise refused("no audio came; see its log")
    return SpokenAudio(samples, model.sample_rate)


def _served(client: httpx.Client, options: HttpOptions) -> ServedModel:
    response = client.get(f"/v2/models/{options.model}/config")
    words = _error_words(response.content) if response.is_error else None
    if words is not None and (response.status_code == _NOT_FOUND or "unknown model" in words):
        raise not_served(options.url, options.model, words)
    _raise_for(response)
    try:
        return served_model(json.loads(response.content))
    except (AttributeError, TypeError, ValueError):  # not JSON, or JSON of another structure
        raise refused(f"{options.url} is not a Triton server; check the address") from None


def _whole(client: httpx.Client, options: HttpOptions, tensors: Sequence[Tensor]) -> Samples:
    inputs: list[dict[str, Any]] = []
    blocks = [tensor.raw() for tensor in tensors] if options.binary else []
    for index, tensor in enumerate(tensors):
        content = {"parameters": {"binary_data_size": len(blocks[index])}} if blocks else {"data": tensor.plain()}
        inputs.append({"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, **content})
    outputs = [{"name": WAVEFORM, "parameters": {"binary_data": options.binary}}]
    body = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    headers = {"Content-Type": "application/json"}
    if options.binary:
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(body))}
    response = client.post(f"/v2/models/{options.model}/infer", content=b"".join([body, *blocks]), headers=headers)
    _raise_for(response)
    try:
        return _infer_samples(response.content, response.headers)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise _unreadable(error) from None


def _infer_samples(body: bytes, headers: Mapping[str, str]) -> Samples:
    length = headers.get(HEADER_LENGTH)
    offset = len(body) if length is None else int(length)
    outputs = json.loads(body[:offset])["outputs"]
    output = next(output for output in outputs if output["name"] == WAVEFORM)
    if "data" in output:
        return finite(np.asarray(output["data"], dtype=np.float32).reshape(-1))
    for other in outputs[: outputs.index(output)]:
        offset += int(other.get("parameters", {}).get("binary_data_size", 0))
    count = int(output["parameters"]["binary_data_size"])
    if offset + count > len(body):
        raise ValueError(f"{count} bytes of audio were announced, {max(0, len(body) - offset)} arrived")
    return decoded(body[offset : offset + count], output["datatype"])


def _streamed(client: httpx.Client, options: HttpOptions, tensors: Sequence[Tensor]) -> Samples:
    if options.binary:
        raise InvalidRequest(
            f"binary: the model {options.model!r} answers in chunks, which HTTP carries as JSON only; leave it out, "
            "or ask over gRPC: vivavoce client grpc"
        )
    # Each input is a single value or a list; the server derives its shape.
    values = {one.name: one.values if isinstance(one.values, str) else one.plain() for one in tensors}
    chunks = [np.zeros(0, np.float32)]
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    path = f"/v2/models/{options.model}/generate_stream"
    with client.stream("POST", path, content=json.dumps(values).encode(), headers=headers) as response:
        if response.is_error:
            response.read()
            if response.status_code in _NO_SUCH_PLACE and _error_words(response.content) is None:
                raise InvalidRequest(
                    f"model: {options.model!r} answers in chunks, and {options.url} has no generate_stream for it; ask "
                    "over gRPC (vivavoce client grpc), or serve a repository that is filled with decoupled_mode False"
                )
            _raise_for(response)
        for line in response.iter_lines():
            if line.startswith(_DATA):
                chunks += _event_samples(line.removeprefix(_DATA))
    return np.concatenate(chunks)


def _event_samples(content: str) -> list[Samples]:
    """Return the audio in the data of a server-sent event: 0 or 1 chunks."""
    try:
        event = json.loads(content)
        if "error" in event:
            raise refused(str(event["error"]))
        return [finite(np.asarray(event[WAVEFORM], dtype=np.float32).reshape(-1))] if WAVEFORM in event else []
    except (TypeError, ValueError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> ServerRefused:
    return refused(
        f"its answer cannot be read ({type(error).__name__}: {error}); is it a Triton server with such a model?"
    )


def _error_words(body: bytes) -> str | None:
    """Return Triton's error message, from JSON or a server-sent event, or None if the body is not a Triton error."""
    try:
        return str(json.loads(body.strip().removeprefix(_DATA.encode()))["error"])
    except (KeyError, TypeError, ValueError):
        return None


def _raise_for(response: httpx.Response) -> None:
    if response.is_error:
        words = _error_words(response.content) or " ".join(response.text.split())[:_LONGEST_WORDS]
        raise refused(f"{words or 'no further message'} (HTTP {response.status_code})")


@contextmanager
def _explained(options: HttpOptions) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.TimeoutException:
        raise ServerUnreachable(
            f"timeout: no response from {options.url} for {options.timeout_s:g} s; allow more, or see what keeps it "
            "busy"
        ) from None
    except httpx.ConnectError as error:
        raise unreachable(options.url, str(error)) from None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidRequest(f"server_url: {options.url!r} is not an address ({error}); write host:port") from None
    except httpx.HTTPError as error:
        raise refused(f"the connection broke off ({type(error).__name__}: {error})") from None
