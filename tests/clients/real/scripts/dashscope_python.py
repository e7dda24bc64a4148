"""DashScope's package for Python, which speaks with CosyVoice in Aliyun's cloud."""

import json
import os
import time
from array import array
from pathlib import Path

import dashscope
from dashscope.audio.tts_v2 import AudioFormat, ResultCallback, SpeechSynthesizer, SpeechSynthesizerObjectPool
from dashscope.common.error import RequestFailure
from telling import TEXT, URL, VOICE, call

SOCKETS = URL.replace("http", "ws", 1)
dashscope.api_key = "none"
dashscope.base_websocket_api_url = f"{SOCKETS}/api-ws/v1/inference"
PCM = AudioFormat.PCM_24000HZ_MONO_16BIT
LATE_S = 60.0


class Heard(ResultCallback):
    """What comes, by the package's own threads."""

    def __init__(self) -> None:
        self.audio, self.events, self.errors, self.is_complete = b"", [], [], False

    def on_data(self, data: bytes) -> None:
        self.audio += data

    def on_event(self, message: str) -> None:
        self.events.append(json.loads(message)["payload"]["output"])

    def on_complete(self) -> None:
        self.is_complete = True

    def on_error(self, message: str) -> None:
        self.errors.append(json.loads(message)["header"])

    def wait_for(self, what: str) -> None:
        until = time.monotonic() + LATE_S
        while not getattr(self, what):
            assert time.monotonic() < until, what
            time.sleep(0.01)


def made(**options: object) -> SpeechSynthesizer:
    return SpeechSynthesizer(**{"model": "cosyvoice-v2", "voice": VOICE, "format": PCM, **options})


def refusal_of(**options: object) -> str:
    try:
        made(**options).call(TEXT)
    except RequestFailure as failure:
        return f"{failure.name}: {failure.message}"
    raise AssertionError("it was not refused")


def words_of(heard: Heard) -> str:
    """The words of all sentences; their times are in order."""
    timed = [word for one in heard.events for word in one["sentence"]["words"]]
    times = [moment for word in timed for moment in (word["begin_time"], word["end_time"])]
    assert times == sorted(times), times
    return " ".join(word["text"].strip(".,") for word in timed)


with call("call, as docs/from-cosyvoice.md shows it"):
    from dashscope.audio.tts_v2 import SpeechSynthesizer

    synthesizer = SpeechSynthesizer(model="cosyvoice-v2", voice=VOICE)
    Path("hello.mp3").write_bytes(synthesizer.call("Hello there, all of you."))
    assert Path("hello.mp3").stat().st_size > 1000
    Path("hello.mp3").unlink()
with call("call, its default format", ".mp3", rate=22_050) as file:
    file.write_bytes(made(format=AudioFormat.DEFAULT, model="cosyvoice-v3-flash").call(TEXT))
for kind in AudioFormat:
    if kind is not AudioFormat.DEFAULT:
        rate = 48_000 if kind.format == "opus" else kind.sample_rate
        with call(f"call {kind.name}", f".{kind.format}", rate=rate) as file:
            file.write_bytes(made(format=kind).call(TEXT))
with call("call speech_rate=1.5", ".pcm", rate=24_000, speed=1.5) as file:
    file.write_bytes(made(speech_rate=1.5, seed=3, language_hints=["en"], instruction="Calmly.").call(TEXT))
with call("call volume", ".pcm", rate=24_000) as file:
    quiet, loud = made(volume=25).call(TEXT), made(volume=100).call(TEXT)
    assert len(quiet) == len(loud)
    assert sum(map(abs, array("h", loud))) > 3 * sum(map(abs, array("h", quiet)))  # loud peaks are cut at full scale
    file.write_bytes(loud)
with call("call with SSML", ".pcm", rate=24_000) as file:
    file.write_bytes(made().call(f"<speak>{TEXT}</speak>"))
with call("call with hot_fix", ".pcm", rate=24_000) as file:
    first, _, rest = TEXT.partition(" ")
    file.write_bytes(made(hot_fix={"replace": [{"Xyzzy": first}]}).call(f"Xyzzy {rest}"))
with call("call with a callback", ".pcm", rate=24_000) as file:
    heard = Heard()
    made(callback=heard).call(TEXT)
    heard.wait_for("is_complete")
    assert [one["type"] for one in heard.events] == ["sentence-begin", "sentence-end"]
    assert heard.events[0]["original_text"] == TEXT
    file.write_bytes(heard.audio)
with call("streaming_call, streaming_complete, words", ".pcm", rate=24_000) as file:
    heard = Heard()
    speech = made(callback=heard, additional_params={"word_timestamp_enabled": True})
    for word in TEXT.split():
        speech.streaming_call(f"{word} ")
    speech.streaming_complete()
    assert heard.is_complete
    assert words_of(heard) == TEXT.strip(".")
    assert speech.get_response()["payload"]["usage"]["characters"] == len(TEXT) + 1
    file.write_bytes(heard.audio)
with call("streaming_flush", ".pcm", rate=24_000) as file:
    heard = Heard()
    speech = made(callback=heard)
    speech.streaming_call(TEXT)
    speech.streaming_flush()
    heard.wait_for("audio")  # before the text has ended
    speech.streaming_complete()
    file.write_bytes(heard.audio)
with call("streaming_cancel"):
    heard = Heard()
    speech = made(callback=heard)
    speech.streaming_call(f"{TEXT} " * 50)
    heard.wait_for("audio")
    began = time.monotonic()
    speech.streaming_cancel()
    assert time.monotonic() - began < 5
    assert heard.is_complete
    assert not heard.errors
with call("SpeechSynthesizerObjectPool", ".pcm", rate=24_000) as file:
    pool = SpeechSynthesizerObjectPool(max_size=1)
    sockets, audio = set(), []
    for _ in range(2):
        speech = pool.borrow_synthesizer("cosyvoice-v2", VOICE, format=PCM, seed=5)
        audio.append(speech.call(TEXT))
        sockets.add(speech.ws)
        pool.return_synthesizer(speech)
    pool.shutdown()
    speech.close()
    assert len(sockets) == 1
    assert audio[0] == audio[1]
    file.write_bytes(audio[0])
with call("refusals"):
    assert refusal_of(voice="longxiaochun").startswith("InvalidParameter: voice: 'longxiaochun' is not registered")
    assert refusal_of(pitch_rate=1.2).startswith("InvalidParameter: payload.parameters.pitch: 1.2 is not supported")
    assert refusal_of(speech_rate=3).startswith("InvalidParameter: payload.parameters.rate: ")
    assert refusal_of(model="sambert-zhichu-v1").startswith("ModelNotFound: model: 'sambert-zhichu-v1'")
    fix = {"pronunciation": [{"bridge": "qiao2"}]}
    assert refusal_of(hot_fix=fix).startswith("InvalidParameter: payload.parameters.hot_fix.pronunciation: 'qiao2'")
dashscope.base_websocket_api_url = f"{os.environ['SECURE_URL'].replace('http', 'ws', 1)}/api-ws/v1/inference"
with call("call, wss, a wrong key"):
    assert refusal_of().startswith("InvalidApiKey: API key: ")
with call("call, wss, with a key", ".pcm", rate=24_000) as file:
    dashscope.api_key = os.environ["KEY"]
    file.write_bytes(made().call(TEXT))
