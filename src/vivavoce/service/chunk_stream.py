"""A stream's chunks with what was learnt from them: where each segment of the text is in the audio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from vivavoce.engine.handle import Handle
from vivavoce.engine.request import AudioChunk
from vivavoce.service.marks import Mark, StreamMarks


class ChunkStream(Iterator[AudioChunk]):
    """Chunks in order, each as soon as it is made; leaving it early cancels the request."""

    def __init__(self, handle: Handle, marks: StreamMarks, sample_rate: int) -> None:
        self._handle, self._marks, self._sample_rate = handle, marks, sample_rate
        self._chunks = iter(handle)

    def __next__(self) -> AudioChunk:
        chunk = next(self._chunks)
        self._marks.hear(chunk)
        return chunk

    def close(self) -> None:
        """Give it up: nothing more is made. After the end: nothing happens."""
        self._chunks.close()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Of the segments heard so far: which characters of the text each speaks, and when.

        The last one's end moves with each chunk; whether a segment was cut for its length is known at the end.
        """
        return self._marks.marks(self._sample_rate, self._handle.cut)


class AsyncChunkStream(AsyncIterator[AudioChunk]):
    """`ChunkStream` for an event loop."""

    def __init__(self, handle: Handle, marks: StreamMarks, sample_rate: int) -> None:
        self._handle, self._marks, self._sample_rate = handle, marks, sample_rate
        self._chunks = aiter(handle)

    async def __anext__(self) -> AudioChunk:
        chunk = await anext(self._chunks)
        self._marks.hear(chunk)
        return chunk

    async def aclose(self) -> None:
        """Give it up: nothing more is made. After the end: nothing happens."""
        await self._chunks.aclose()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """See `ChunkStream.marks`."""
        return self._marks.marks(self._sample_rate, self._handle.cut)
