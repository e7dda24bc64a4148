"""One request to the Triton server, read as fast as it answers: how fast a listener is does not hold it up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from vivavoce.clients.triton.connection import Connection
from vivavoce.clients.triton.failures import ServerUnreachable, refused
from vivavoce.clients.triton.model import ServedModel
from vivavoce.clients.triton.tensors import Samples, Tensor
from vivavoce.errors import EngineStopped, ModelNotFound, StageFailed, VivavoceError

log = logging.getLogger(__name__)


class UpstreamCall:
    """Begins at once. What waits here is a sentence's audio at most."""

    def __init__(self, connection: Connection, model: ServedModel, tensors: Sequence[Tensor], request_id: str) -> None:
        self._connection, self._model = connection, model
        self._tensors, self._request_id = tensors, request_id
        self._chunks: asyncio.Queue[Samples | None] = asyncio.Queue()
        self._error: VivavoceError | None = None
        self._reading = asyncio.create_task(self._read())

    async def chunks(self) -> AsyncIterator[Samples]:
        """Audio [n], n ≥ 1, in order; EngineStopped or ServerRefused at the end of what came."""
        while (chunk := await self._chunks.get()) is not None:
            yield chunk
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """End it on the server; the chunks end."""
        self._reading.cancel()

    async def _read(self) -> None:
        # An answer that is whole is read to the call's own end, never cancelled: see `Connection.stream`.
        silent = True
        try:
            async with aclosing(self._answer()) as chunks:
                async for chunk in chunks:
                    silent = False
                    self._chunks.put_nowait(chunk)
            if silent:
                raise refused(f"the model {self._model.name!r} gave no audio; see its log")
        except VivavoceError as error:
            self._error = as_told_here(error)
        except Exception:
            log.exception("the answer of the model %r could not be read", self._model.name)
            self._error = StageFailed("upstream: an internal error, which was logged; ask again")
        finally:
            self._chunks.put_nowait(None)

    async def _answer(self) -> AsyncGenerator[Samples, None]:
        if not self._model.decoupled:
            whole = await self._connection.whole(self._model, self._tensors, self._request_id)
            if len(whole):
                yield whole
            return
        async with aclosing(self._connection.stream(self._model, self._tensors, self._request_id)) as chunks:
            async for chunk in chunks:
                yield chunk


def as_told_here(error: VivavoceError) -> VivavoceError:
    """An upstream server that is away, or lacks its model, is to our clients an engine that has stopped.

    Where it is they need not know; the log says it.
    """
    if isinstance(error, (ServerUnreachable, ModelNotFound)):
        log.warning("upstream: %s", error)
        return away()
    return error


def away() -> EngineStopped:
    """The server that speaks cannot be asked now."""
    return EngineStopped("upstream: the Triton server that speaks here is away; try again in some seconds")
