"""pipecat's services for ElevenLabs: over HTTP, and by the WebSocket of several contexts."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import aiohttp
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.workers.runner import WorkerRunner
from telling import TEXT, URL, VOICE, call

SECURE_URL, KEY = os.environ["SECURE_URL"], os.environ["KEY"]
LLM = [LLMFullResponseStartFrame(), *(LLMTextFrame(f"{word} ") for word in TEXT.split()), LLMFullResponseEndFrame()]


class Sink(FrameProcessor):
    """Keeps audio and words."""

    def __init__(self) -> None:
        super().__init__()
        self.audio, self.words, self.faults, self.rate = b"", [], [], 0
        self.heard, self.stopped = asyncio.Event(), asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio, self.rate = self.audio + frame.audio, frame.sample_rate
            self.heard.set()
        elif isinstance(frame, TTSTextFrame):
            self.words.append(frame.text)
        elif isinstance(frame, ErrorFrame):
            self.faults.append(frame.error)
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def speak(service: FrameProcessor, rate: int, frames: Iterable[Frame], interrupted: bool = False) -> Sink:
    sink = Sink()
    worker = PipelineWorker(Pipeline([service, sink]), params=PipelineParams(audio_out_sample_rate=rate))
    runner = WorkerRunner(handle_sigint=False)

    async def ask() -> None:
        await asyncio.sleep(0.2)
        if interrupted:
            await worker.queue_frames([TTSSpeakFrame(f"{TEXT} {TEXT} {TEXT}")])
            await asyncio.wait_for(sink.heard.wait(), 60)
            await worker.queue_frames([InterruptionFrame()])
            await asyncio.sleep(0.5)
            sink.audio, sink.words = b"", []
            sink.stopped.clear()
        await worker.queue_frames(list(frames))
        await asyncio.wait_for(sink.stopped.wait(), 60)
        await asyncio.sleep(0.5)
        await worker.queue_frame(EndFrame())

    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), ask())
    assert not sink.faults, sink.faults
    assert sink.rate == rate, sink.rate
    return sink


def keep(sink: Sink, file: Path) -> None:
    file.write_bytes(sink.audio)
    assert " ".join(sink.words).split() == TEXT.split(), sink.words


async def main() -> None:
    settings = ElevenLabsTTSService.Settings(voice=VOICE)
    for rate in (8_000, 16_000, 24_000, 44_100):
        with call(f"ElevenLabsTTSService, {rate} Hz", ".pcm", rate=rate) as file:
            service = ElevenLabsTTSService(api_key="none", url=URL.replace("http", "ws", 1), settings=settings)
            keep(await speak(service, rate, [TTSSpeakFrame(TEXT)]), file)
    with call("ElevenLabsTTSService, a language model's words, wss", ".pcm", rate=24_000) as file:
        service = ElevenLabsTTSService(api_key=KEY, url=SECURE_URL.replace("http", "ws", 1), settings=settings)
        keep(await speak(service, 24_000, LLM), file)
    with call("ElevenLabsTTSService, interrupted and asked again, wss", ".pcm", rate=24_000) as file:
        service = ElevenLabsTTSService(api_key=KEY, url=SECURE_URL.replace("http", "ws", 1), settings=settings)
        keep(await speak(service, 24_000, LLM, interrupted=True), file)
    async with aiohttp.ClientSession() as session:
        for rate, url, key in ((16_000, URL, "none"), (24_000, SECURE_URL, KEY)):
            with call(f"ElevenLabsHttpTTSService, {rate} Hz, {url.partition(':')[0]}", ".pcm", rate=rate) as file:
                http = ElevenLabsHttpTTSService.Settings(voice=VOICE)
                service = ElevenLabsHttpTTSService(api_key=key, base_url=url, aiohttp_session=session, settings=http)
                keep(await speak(service, rate, LLM), file)


asyncio.run(main())
