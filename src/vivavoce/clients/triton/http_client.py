"""One utterance over Triton's HTTP interface.

`speak_http(HttpOptions) -> Audio`. A model that answers in one piece is asked at `/v2/models/{model}/infer`, one that
streams at `/v2/models/{model}/generate_stream`, which takes JSON only and which a server may lack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vivavoce.clients.triton.audio import Audio, join, read_reference
from vivavoce.clients.triton.failures import refused, silent, unreachable
from vivavoce.clients.triton.http_wire import error_words, event_samples, generate_body, infer_body, infer_samples
from vivavoce.clients.triton.model import ServedModel, served_model
from vivavoce.clients.triton.tensors import Samples, Tensor, request_tensors
from vivavoce.clients.triton.timeout import check_timeout
from vivavoce.clients.triton.utterance import Manner, Utterance
from vivavoce.errors import InvalidRequest, ModelNotFound, VivavoceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

_NOT_FOUND = 404
_NO_SUCH_PLACE = (_NOT_FOUND, 405)
"""What a server without an interface answers there, in words that are not Triton's; 405: it knows no POST there."""
_LONGEST_WORDS = 200


@dataclass(frozen=True)
class HttpOptions:
    """One request over HTTP."""

    utterance: Utterance
    url: str = "localhost:8000"
    """With or without http:// before it."""
    model: str = "cosyvoice2"
    manner: Manner = field(default_factory=Manner)
    binary: bool = False
    """Send and receive tensors in binary instead of JSON."""
    timeout_s: float = 120.0
    """For the connection, and for each piece of the answer."""

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)


def speak_http(options: HttpOptions) -> Audio:
    """Ask for one utterance and wait for all of it.

    Raises:
        InvalidRequest: the model lacks an input, or answers in chunks that cannot be had this way.
        InvalidAudio: the reference recording cannot be read.
        ModelNotFound: the server does not serve the model.
        ServerUnreachable: nobody answers, or not in time.
        ServerRefused: the server answers with an error, or with what is no audio.
    """
    import httpx

    source = options.utterance.reference
    reference = None if source is None else read_reference(source)
    address = options.url if "://" in options.url else f"http://{options.url}"
    with _explained(options), httpx.Client(base_url=address.rstrip("/"), timeout=options.timeout_s) as client:
        model = _served(client, options)
        tensors = request_tensors(options.utterance, options.manner, model, reference)
        samples = _streamed(client, options, tensors) if model.decoupled else _whole(client, options, tensors)
    if not len(samples):
        raise refused("no audio came; see its log")
    return Audio(samples, model.sample_rate)


def _served(client: httpx.Client, options: HttpOptions) -> ServedModel:
    response = client.get(f"/v2/models/{options.model}/config")
    words = error_words(response.content) if response.is_error else None
    if words is not None and (response.status_code == _NOT_FOUND or "unknown model" in words):
        raise ModelNotFound(
            f"model: {options.url} does not serve {options.model!r} ({words}); name one that its log calls READY"
        )
    _raise_for(response)
    try:
        return served_model(json.loads(response.content))
    except (AttributeError, TypeError, ValueError):  # no JSON, or of another shape
        raise refused(f"{options.url} answers, but not as a Triton server does; check the address") from None


def _whole(client: httpx.Client, options: HttpOptions, tensors: Sequence[Tensor]) -> Samples:
    body, headers = infer_body(tensors, binary=options.binary)
    response = client.post(f"/v2/models/{options.model}/infer", content=body, headers=headers)
    _raise_for(response)
    return infer_samples(response.content, response.headers)


def _streamed(client: httpx.Client, options: HttpOptions, tensors: Sequence[Tensor]) -> Samples:
    if options.binary:
        raise InvalidRequest(
            f"binary: the model {options.model!r} answers in chunks, which HTTP carries as JSON only; leave it out, "
            "or ask over gRPC: vivavoce client grpc"
        )
    path = f"/v2/models/{options.model}/generate_stream"
    chunks: list[Samples] = []
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    with client.stream("POST", path, content=generate_body(tensors), headers=headers) as response:
        if response.is_error:
            response.read()
            if response.status_code in _NO_SUCH_PLACE and error_words(response.content) is None:
                raise _no_streams(options)
            _raise_for(response)
        for line in response.iter_lines():
            samples = event_samples(line)
            if samples is not None:
                chunks.append(samples)
    return join(chunks, 0)[0] if chunks else np.zeros(0, np.float32)


def _no_streams(options: HttpOptions) -> VivavoceError:
    return InvalidRequest(
        f"model: {options.model!r} answers in chunks, and {options.url} has no generate_stream for it; ask over gRPC "
        "(vivavoce client grpc), or serve a repository that is filled with decoupled_mode False"
    )


def _raise_for(response: httpx.Response) -> None:
    if response.is_error:
        words = error_words(response.content) or " ".join(response.text.split())[:_LONGEST_WORDS]
        raise refused(f"{words or 'it says no more than that'} (HTTP {response.status_code})")


@contextmanager
def _explained(options: HttpOptions) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.TimeoutException:
        raise silent(options.url, options.timeout_s) from None
    except httpx.ConnectError as error:
        raise unreachable(options.url, str(error)) from None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidRequest(f"server_url: {options.url!r} is no address ({error}); write host:port") from None
    except httpx.HTTPError as error:
        raise refused(f"the connection broke off ({type(error).__name__}: {error})") from None
