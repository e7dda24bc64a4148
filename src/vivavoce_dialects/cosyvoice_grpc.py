"""CosyVoice's own gRPC service: a request holds one text, and its audio is streamed back in pieces."""

from __future__ import annotations

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce_grpc.calls import FINISH_REASON, PROTOCOL, REQUEST_ID, Call, Metadata, parsed
from vivavoce_grpc.protos import message

PROMPT_RATE = 16_000
"""Samples per second of `prompt_audio`, which has no header."""
WARNING = "x-warning"
ADMISSION = "x-admission-seconds"
"""Metadata key: seconds until the request was admitted, spent on the text, the voice and the wait for a slot."""


async def infer(call: Call) -> Metadata:
    deadline, speak, response = call.port.deadline(call), call.port.dispatcher.speak, message("cosyvoice.Response")
    async with call.port.speaking(call) as content:
        wanted, identity = _speech_request(content, call.principal.owner), call.request_id
        active = await speak(call.principal, wanted, protocol=PROTOCOL, request_id=identity, deadline=deadline)
        async with active:
            waited = (ADMISSION, f"{active.admission_s:.3f}")
            notes = ((WARNING, "; ".join(active.request.notes)),) if active.request.notes else ()
            await call.context.send_initial_metadata(((REQUEST_ID, identity), waited, *notes))
            async for event in active:
                if isinstance(event, AudioChunk):
                    pcm = to_int16(event.samples).astype("<i2").tobytes()
                    sending = call.context.write(response(tts_audio=pcm).SerializeToString())
                    await active.sent_within(call.port.patience_s, sending)
    return ((FINISH_REASON, active.whole().reason.value),)


def _speech_request(content: bytes, owner: str) -> SpeechRequest:
    request = parsed("cosyvoice.Request", content)
    kind = request.WhichOneof("RequestPayload")
    if kind is None:
        raise InvalidRequest(
            "request: holds nothing to do; set one of sft_request, zero_shot_request, cross_lingual_request, "
            "instruct_request"
        )
    payload = getattr(request, kind)

    def given(field: str) -> str:
        value: str = getattr(payload, field)
        if not value:
            raise InvalidRequest(f"{field}: is missing; a {payload.DESCRIPTOR.name} needs it")
        return value

    text, mode = given("tts_text"), kind.removesuffix("_request")
    voice = given("spk_id") if mode in ("sft", "instruct") else None
    instruct = given("instruct_text") if mode == "instruct" else None
    if voice is not None:
        return SpeechRequest(text, voice, owner, mode=mode, instruct=instruct, reading="official")
    transcript, samples = given("prompt_text") if mode == "zero_shot" else "", payload.prompt_audio
    if not samples:
        raise InvalidAudio(f"prompt_audio: is missing; send 16-bit mono samples at {PROMPT_RATE} Hz")
    if samples[:4] == b"RIFF" and samples[8:12] == b"WAVE":  # a WAV file, whose header has the rate
        return SpeechRequest(text, Recording(samples, transcript), owner, mode=mode, reading="official")
    if len(samples) % 2:
        raise InvalidAudio(
            f"prompt_audio: {len(samples)} bytes are not a whole number of 16-bit samples; "
            f"send mono samples at {PROMPT_RATE} Hz, without a header"
        )
    recording = Recording(wav_header(PROMPT_RATE, len(samples) // 2) + samples, transcript)
    return SpeechRequest(text, recording, owner, mode=mode, reading="official")
