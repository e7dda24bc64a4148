"""The engine in a process of its own: real processes, a tiny model that babbles."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import soundfile
import torch

from vivavoce.api import Vivavoce
from vivavoce.engine.admission import FEW_WAITING, AdmissionMode
from vivavoce.engine.backends import BACKEND_SETTINGS
from vivavoce.engine.request import AudioChunk, SamplingParams
from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.engine_process.model_service import ModelService, engine_settings
from vivavoce.errors import (
    CheckpointError,
    EngineStopped,
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    Overloaded,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.decoding_process import DecodingProcess
from vivavoce.frontend.session import AHEAD
from vivavoce.frontend.speech import FinishReason, Recording, SegmentText, SpeechRequest
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.voice import Voice
from vivavoce.server.settings import EngineSection, ModelSection, VoicesSection
from vivavoce_textnorm.lexicon import read_lexicons

pytestmark = pytest.mark.process

SHORT = SamplingParams(max_ratio=1.0, min_ratio=0.0, top_k=5)
"""Babble does not stop by itself: one speech token for each text token."""
TEXT = "One two three four five six seven eight. " * 16
"""More segments than the engine is given at once."""
ROUNDING = 0.005
"""Larger batches sum in another order; other tokens are another length or another wave."""


Loop = asyncio.AbstractEventLoop


def settings_for(model: Path, voices: Path, text_processes: int | None = 0) -> EngineProcessSettings:
    """Without the processes that read texts, whose start is a third of an engine's; None: with them."""
    return EngineProcessSettings(
        ModelSection(model=str(model), device="cpu", warm_up_s=0, text_processes=text_processes),
        EngineSection(admission=AdmissionMode.ALL),
        VoicesSection(place=str(voices)),
    )


@asynccontextmanager
async def started(settings: EngineProcessSettings, *command: str) -> AsyncIterator[EngineClient]:
    """A host of its own that is ready."""
    host = EngineClient(settings, *([command] if command else []))
    try:
        await host.start()
        yield host
    finally:
        await host.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    """Of the tests that share a host."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def host(loop: Loop, babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    """One host for several tests, with the voice anna and a lexicon for all, one for anna and one for the key me."""
    folder = tmp_path_factory.mktemp("lexicons")
    for name, words in {"all": "Ng\tEng", "voices/anna": "Ng\tAnna Ng", "keys/me": "Ng\tWing Wing Wing Wing"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.tsv").write_text(words, encoding="utf-8")
    settings = settings_for(babble, tmp_path_factory.mktemp("voices"), None)._replace(lexicons=read_lexicons(folder))
    starting = started(settings)
    host = loop.run_until_complete(starting.__aenter__())
    added = loop.run_until_complete(host.add_voice("", "anna", recording(), description="noise"))
    assert (added.name, added.kind, added.public) == ("anna", "stored", True)
    yield host
    loop.run_until_complete(starting.__aexit__(None, None, None))


def recording(seed: int = 0) -> Recording:
    """A second of something that is no silence, as a WAV file."""
    noise = np.random.default_rng(seed).normal(0, 0.1, 16_000).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, noise, 16_000, format="WAV", subtype="PCM_16")
    return Recording(file.getvalue(), "hello there")


def order(
    text: str | None = "Hello there, friend.", voice: str | Recording | None = "anna", **fields: object
) -> SpeechRequest:
    return SpeechRequest(text, voice, sampling=SHORT, **fields)  # type: ignore[arg-type]


async def spoken(host: EngineClient, wanted: SpeechRequest) -> tuple[np.ndarray, list[SegmentText]]:
    stream = await host.speak(wanted)
    samples, told = [], []
    async for event in stream:
        if isinstance(event, AudioChunk):
            assert event.segment in {one.place for one in told}
            samples.append(event.samples)
        else:
            told.append(event)
    assert stream.verdict is not None
    assert stream.verdict.reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert stream.verdict.segments_spoken == stream.verdict.segments_given == len({one.place for one in told})
    assert stream.verdict.speech_tokens is not None
    return np.concatenate(samples), told


async def until_ready(client: EngineClient) -> None:
    while not client.ready:
        await asyncio.sleep(0.01)


def differ(one: np.ndarray, other: np.ndarray) -> float:
    """By what share of its peak one differs from the other, which may be of another length."""
    return 1.0 if len(one) != len(other) else float(np.abs(one - other).max() / np.abs(other).max())


async def test_lexicons_are_those_of_owner_and_voice(loop: Loop, host: EngineClient) -> None:
    cases = {("", "anna"): "Anna Ng", ("me", "anna"): "Wing Wing Wing Wing", ("", None): "Eng"}
    tokens = {}
    for (owner, voice), said in cases.items():
        wanted = order("Ng has 3.", voice, owner=owner)
        assert (await host.normalize(wanted)).spoken == f"{said} has three."
        stream = await host.speak(wanted)
        assert [event async for event in stream]
        assert stream.verdict is not None
        tokens[said] = stream.verdict.text_tokens or 0
    assert tokens["Eng"] < tokens["Anna Ng"] < tokens["Wing Wing Wing Wing"]
    longest = "Wing Wing Wing Wing Wing Wing"
    own = order("Ng has 3.", owner="me", lexicon={"Ng": longest, "has": "had"})  # a request's own words win
    assert (await host.normalize(own)).spoken == f"{longest} had three."
    stream = await host.speak(own)
    assert [event async for event in stream]
    assert stream.verdict is not None
    assert (stream.verdict.text_tokens or 0) > tokens["Wing Wing Wing Wing"]
    official = await host.normalize(order("Ng has 3.", reading="official"))
    assert [(one.spoken, one.rule) for one in official.changes] == [("Ng has three.", "official")]
    with pytest.raises(VoiceNotFound):
        await host.normalize(order("Ng", "nobody"))
    assert (await host.normalize(order("N\0g <think>Hm.</think>"))).spoken == "Anna Ng"


async def test_it_speaks_lists_adds_and_removes(loop: Loop, host: EngineClient) -> None:
    assert host.about.sample_rate == 24_000
    assert {"[laughter]", "<strong>"} <= host.about.marks
    assert "anna" in {voice.name for voice in await host.voices("")}
    before = await host.statistics()
    first, _ = await spoken(host, order())
    again, _ = await spoken(host, order())
    other, _ = await spoken(host, order(seed=1))
    assert np.array_equal(first, again)
    assert differ(first, other) > ROUNDING
    after = await host.statistics()
    assert before is not None
    assert after is not None
    assert after.engine.requests.finished - before.engine.requests.finished == 3
    assert after.starts == 1
    await host.add_voice("me", "mine", recording(1))
    assert {voice.name for voice in await host.voices("me")} >= {"anna", "mine"}
    await spoken(host, order(voice="mine", owner="me"))
    with pytest.raises(VoiceNotFound):
        await host.speak(order(voice="mine"))
    await host.remove_voice("me", "mine")
    with pytest.raises(VoiceNotFound):
        await host.speak(order(voice="mine", owner="me"))


async def test_a_voice_of_another_model_is_extracted_beside_the_streams(loop: Loop, host: EngineClient) -> None:
    store = FolderStore(Path(host._settings.voices.place))
    assert store.load("anna").recording == recording().content
    foreign = Voice(torch.zeros(192), "f" * 16, "foreign", "hello there", recording=recording().content)
    store.save(foreign)
    before = await host.statistics()
    first, _ = await spoken(host, order(voice="foreign"))
    own, _ = await spoken(host, order(voice="anna"))
    assert np.array_equal(first, own), "the same recording"
    stored = store.load("foreign")
    assert [stored.fingerprint, *(one.fingerprint for one in stored.others)] == [
        "f" * 16,
        store.load("anna").fingerprint,
    ]
    after = await host.statistics()
    assert before is not None
    assert after is not None
    assert after.voices_extracted - before.voices_extracted == 1


def test_the_settings_of_backends_reach_the_engine() -> None:
    chosen = {"lm_backend": "vllm", "flow_backend": "tensorrt", "trt_concurrent": 2, "tp": 3, "pp": 4}
    model = ModelSection(**chosen, trust_model_code=True)
    settings = engine_settings(model, EngineSection())
    assert {name: getattr(settings, name) for name in BACKEND_SETTINGS} == {**chosen, "trust_model_code": True}


def test_a_voice_without_consent_is_refused_where_the_operator_wants_one(synthesizer: Vivavoce, tmp_path: Path) -> None:
    extractor, store = synthesizer.front_end.extractor, FolderStore(tmp_path)
    registry = VoiceRegistry(extractor, store, {}, extractor.fingerprint, require_consent=True)
    decoding = cast(DecodingProcess, SimpleNamespace(decode=decode_audio))
    service = ModelService(synthesizer.engine, synthesizer.front_end, registry, 1 << 24, decoding)
    for consent, problem in (
        (None, "^consent: is missing, .*; send consent .* and consent_by"),
        (Consent("All."), "^consent_by: is missing, .*; send the name of the person"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            asyncio.run(service.add_voice("", "anna", recording(), consent=consent))
    assert store.names() == []
    added = asyncio.run(service.add_voice("", "anna", recording(), consent=Consent("All.", "Anna")))
    assert (added.consent, added.consent_by) == ("All.", "Anna")
    assert store.load("anna").consent == Consent("All.", "Anna", added.consent_at)


def test_recordings_are_kept_unless_the_operator_says_no(synthesizer: Vivavoce, tmp_path: Path) -> None:
    extractor, store = synthesizer.front_end.extractor, FolderStore(tmp_path)
    large = io.BytesIO()
    soundfile.write(large, np.random.default_rng(0).normal(0, 0.5, (96_000, 4)), 96_000, format="WAV", subtype="DOUBLE")
    for keep in (True, False):
        registry = VoiceRegistry(extractor, store, {}, extractor.fingerprint, keep_recordings=keep)
        decoding = cast(DecodingProcess, SimpleNamespace(decode=decode_audio))
        service = ModelService(synthesizer.engine, synthesizer.front_end, registry, 1 << 24, decoding)
        for name, content in (("small", recording().content), ("large", large.getvalue())):
            asyncio.run(service.add_voice("", name, Recording(content, ""), "", replace=not keep))
            assert store.load(name).has_prompt
        kept = store.load("small").recording, store.load("large").recording
        assert kept[0] == (recording().content if keep else b"")
        assert kept[1][:4] == (b"fLaC" if keep else b"")
        if keep:
            audio = decode_audio(kept[1])
            assert (audio.sample_rate, audio.duration_s) == (48_000, 1.0)
            assert len(kept[1]) < 1 << 17
            again = extractor.extract(kept[1])
            assert torch.cosine_similarity(again.embedding, store.load("large").embedding, dim=0) > 0.999


async def test_neighbours_do_not_change_a_long_text_whose_segments_are_told(loop: Loop, host: EngineClient) -> None:
    alone, told = await spoken(host, order(TEXT))
    assert len(told) > AHEAD + 1
    assert (told[0].start, told[-1].end) == (0, len(TEXT))
    assert all(one.end == other.start for one, other in pairwise(told))
    several = await asyncio.gather(*(spoken(host, order(TEXT, seed=seed)) for seed in (0, 1)))
    assert differ(several[0][0], alone) <= ROUNDING < differ(several[1][0], alone)


async def test_bad_input_is_refused_and_nobody_else_is_harmed(loop: Loop, host: EngineClient) -> None:
    going = asyncio.ensure_future(spoken(host, order(TEXT)))
    refusals: list[tuple[SpeechRequest, type[VivavoceError]]] = [
        (order("..."), InvalidText),
        (order("x" * 20_001), InvalidText),
        (order(voice="nobody"), VoiceNotFound),
        (order(voice="../../etc/passwd"), VivavoceError),
        (order(voice=Recording(b"no audio")), InvalidAudio),
        (order(voice=Recording(recording().content, "word " * 401)), InvalidText),
        (order(mode="instruct"), InvalidRequest),
        (order(policy="fast"), InvalidRequest),
    ]
    for wanted, kind in refusals:
        with pytest.raises(kind):
            await host.speak(wanted)
    empty = await host.speak(order(None))
    await empty.end()
    with pytest.raises(InvalidText):
        await anext(aiter(empty))
    unharmed, _ = await going
    assert differ((await spoken(host, order(TEXT)))[0], unharmed) <= ROUNDING


async def test_cosyvoice_1_is_served_at_its_own_rate_and_policy(babble_v1: Path, tmp_path: Path) -> None:
    async with started(settings_for(babble_v1, tmp_path)) as first:
        assert first.about.sample_rate == 22_050
        for policy in (None, "official"):
            samples, _ = await spoken(first, order("Hello there, friend.", None, policy=policy))
            assert len(samples) % 256 == 0
        with pytest.raises(InvalidRequest, match=r"^chunk policy: CosyVoice 1 has no equal; use off"):
            await first.speak(order("Hello there, friend.", None, policy="equal"))
        arriving = await first.speak(order(None, None))
        for piece in ("The ferry has left without its captain, and nobody knows why. Who", " does?"):
            await arriving.push(piece)
        await arriving.end()
        told = [event async for event in arriving if isinstance(event, SegmentText)]
        assert [one.place for one in told] == [0, 1]


async def test_it_tells_when_its_last_request_is_over(loop: Loop, host: EngineClient) -> None:
    stream = await host.speak(order(TEXT))
    waiting = asyncio.ensure_future(host.until_idle())
    await anext(aiter(stream))
    assert not waiting.done()
    stream.cancel()
    await asyncio.wait_for(waiting, 60.0)
    assert host.active == 0


async def test_a_cancelled_request_is_freed(loop: Loop, host: EngineClient) -> None:
    stream = await host.speak(order(TEXT))
    async for event in stream:
        if isinstance(event, AudioChunk):
            stream.cancel()
    assert stream.verdict is not None
    assert stream.verdict.reason is FinishReason.CANCELLED
    waiting = await host.speak(order(None))
    waiting.cancel()
    asking = asyncio.ensure_future(host.speak(order(TEXT)))
    await asyncio.sleep(0)
    asking.cancel()
    await spoken(host, order())  # what was asked before it has been taken up by now
    figures = await host.statistics()
    assert figures is not None
    assert figures.engine.requests.unfinished == 0
    assert figures.engine.slots.used == 0


async def test_a_text_that_arrives_is_spoken_sentence_by_sentence(babble: Path, tmp_path: Path) -> None:
    model = shutil.copytree(babble, tmp_path / "model")
    card = model / "vivavoce.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "text_stream": "sentences"}))
    async with started(settings_for(model, tmp_path / "voices")) as host:
        await host.add_voice("", "anna", recording())
        stream = await host.speak(order(None))
        events = aiter(stream)
        await stream.push("One two three four five. Six sev")
        first = await anext(events)
        assert first == SegmentText(0, 0, 24)  # and its audio need not wait for the rest
        while not isinstance(await anext(events), AudioChunk):
            pass
        await stream.push("en eight nine ten eleven.")
        await stream.end()
        rest = [event async for event in events]
        assert SegmentText(1, 25, 57) in rest
        assert stream.verdict is not None
        assert (stream.verdict.segments_spoken, stream.verdict.segments_given) == (2, 2)


async def test_a_killed_process_is_replaced_voices_are_there_and_it_ends_with_its_server(
    babble: Path, tmp_path: Path
) -> None:
    async with started(settings_for(babble, tmp_path / "voices")) as host:
        await host.add_voice("", "anna", recording())
        before, _ = await spoken(host, order())
        stream = await host.speak(order(TEXT))
        victim = host.process_id
        assert victim is not None
        assert os.getpgid(victim) != os.getpgid(0), "a terminal's Ctrl-C would end it, too"
        events = aiter(stream)
        while not isinstance(await anext(events), AudioChunk):
            pass
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(EngineStopped, match="SIGKILL"):
            [event async for event in events]
        assert not host.ready
        with pytest.raises(EngineStopped, match="starting"):
            await host.speak(order())
        assert host.about.name  # what it was is still known
        await until_ready(host)
        assert host.process_id not in (None, victim)
        last = host.process_id or 0
        assert np.array_equal((await spoken(host, order()))[0], before)
        figures = await host.statistics()
        assert figures is not None
        assert figures.starts == 2
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


async def test_a_process_that_is_stuck_is_replaced(
    loop: Loop, host: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce.engine_process.client.PULSE_S", 0.1)
    monkeypatch.setattr("vivavoce.engine_process.client.STUCK_S", 2.0)
    victim = host.process_id
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    asking = asyncio.gather(host.voices(""), host.speak(order()), return_exceptions=True)
    for answer in await asking:
        assert isinstance(answer, EngineStopped)
        assert "SIGKILL" in str(answer)
    monkeypatch.setattr("vivavoce.engine_process.client.STUCK_S", 60.0)
    await until_ready(host)
    assert host.process_id not in (None, victim)


async def test_a_process_that_cannot_be_begun_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineStopped, match=r"cannot be begun.*before it could speak"):
        async with started(settings_for(tmp_path, tmp_path), str(tmp_path / "nothing")):
            pass


async def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(CheckpointError):
        async with started(settings_for(tmp_path / "model", tmp_path / "voices")):
            pass


def test_the_server_needs_no_torch() -> None:
    code = "import sys; import vivavoce.cli.server, vivavoce_fleet.engine_fleet; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def heard(host: EngineClient, wanted: SpeechRequest) -> int:
    return len((await spoken(host, wanted))[0])


async def test_on_a_slow_machine_a_request_waits_for_a_while(babble: Path, tmp_path: Path) -> None:
    section = EngineSection(headroom=1e-6, max_wait_s=0.2)  # no machine is as fast as that
    async with started(settings_for(babble, tmp_path)._replace(engine=section)) as host:
        await host.speak(order(TEXT, None))
        with pytest.raises(Overloaded, match=r"it was busy with other requests for 0\.2 s; try again in 10 s"):
            await host.speak(order(voice=None))


async def test_on_a_slow_machine_requests_wait_and_who_leaves_frees_the_place(babble: Path, tmp_path: Path) -> None:
    settings = settings_for(babble, tmp_path)
    section = EngineSection(headroom=1e-6, max_wait_s=600.0)  # no machine is as fast as that
    assert section.admission is AdmissionMode.AUTO
    async with started(settings._replace(engine=section)) as host:

        async def waiting(count: int) -> None:
            while (told := await host.statistics()) is None or told.engine.waiting != count:
                await asyncio.sleep(0.01)

        def asks() -> asyncio.Task[int]:
            return asyncio.create_task(heard(host, order(voice=None)))

        listened = await host.speak(order(TEXT, None))
        in_vain = [asks() for _ in range(FEW_WAITING)]
        await waiting(FEW_WAITING)
        with pytest.raises(Overloaded, match="it is busy"):
            await host.speak(order(voice=None))
        in_vain.pop().cancel()
        await waiting(FEW_WAITING - 1)
        for one in in_vain:
            one.cancel()
        await waiting(0)
        greedy = replace(order(voice=None), owner="greedy")
        waits = [asyncio.create_task(heard(host, greedy)) for _ in range(FEW_WAITING // 2)]
        await waiting(FEW_WAITING // 2)
        with pytest.raises(Overloaded, match="4 of them are yours, the limit is 4"):
            await host.speak(greedy)
        modest = asyncio.create_task(heard(host, replace(greedy, owner="modest")))
        await waiting(FEW_WAITING // 2 + 1)
        for one in (*waits, modest):
            one.cancel()
        await waiting(0)
        arriving = await host.speak(order(None, None))  # its text comes, and waits as others do
        await arriving.push("Hello there, friend. ")
        await arriving.end()
        await waiting(1)
        listened.cancel()
        assert [event async for event in arriving]
        replaced = await host.speak(order(TEXT, None))
        replaced.cancel()
        assert await asks()
