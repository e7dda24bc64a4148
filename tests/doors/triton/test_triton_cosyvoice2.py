"""`cosyvoice2` over the real staged models and a language model that says what the test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend, InferenceResponse, TritonError, initialize_args, refused, unary
from speaking_helpers import RATE, ask, hum, wave, waves
from staged_fakes import ScriptedLanguageModel, asked_of, one_at_a_time, read

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.audio_tokenizer import AudioTokenizer
from vivavoce.doors.triton.models.cosyvoice2 import CosyVoice2
from vivavoce.doors.triton.models.speaker_embedding import SpeakerEmbedding
from vivavoce.doors.triton.models.token2wav import Token2Wav
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SpeechRequest, SynthesisRequest
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.service.audio.types import Audio
from vivavoce.service.modes import Mode, condition
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.text.tokenizer import TextTokenizer
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.store import VoiceStore
from vivavoce.service.voices.voice import Voice

TEXT = "Good morning."
TOKENS = 60


def script(text: tuple[int, ...]) -> list[int]:
    """Tokens of its own for every text."""
    generator = np.random.default_rng(list(text))
    return generator.integers(0, 6_561, TOKENS).tolist()


@pytest.fixture(scope="module")
def vocabulary(babble: Path) -> MergedVocabulary:
    return MergedVocabulary(len(TextTokenizer.from_folder(babble / BACKBONE)), 6_561)


@pytest.fixture(scope="module")
def staged(babble: Path) -> Iterator[dict[str, Any]]:
    """The models without a language model, which keep nothing from test to test."""
    args, backend = initialize_args({"model_dir": str(babble), "device": "cpu"}), FakeBackend()
    made = {
        "audio_tokenizer": AudioTokenizer.load(args, backend),
        "speaker_embedding": SpeakerEmbedding.load(args, backend),
        "token2wav": Token2Wav.load(args, backend),
    }
    yield made
    for model in made.values():
        model.close()


class Server:
    """A repository: `cosyvoice2`, and behind it what it asks."""

    def __init__(
        self, backend: FakeBackend, model: CosyVoice2, language: ScriptedLanguageModel, staged: dict[str, Any]
    ) -> None:
        self.backend, self.model, self.language, self.token2wav = backend, model, language, staged["token2wav"]

    def stream(self, text: str, **given: Any) -> list[InferenceResponse]:
        request = ask(self.backend, text, **given)
        assert self.model.execute([request]) is None
        return list(request.answers())

    def hear(self, text: str, **given: Any) -> np.ndarray:
        return np.concatenate(waves(self.stream(text, **given)))


@pytest.fixture
def serve(
    babble: Path, staged: dict[str, Any], vocabulary: MergedVocabulary, tmp_path: Path
) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(*, decoupled: bool = True, inner_cancel: bool = False, voices: str = "", **parameters: str) -> Server:
        language = ScriptedLanguageModel(vocabulary, script)
        inner = {name: one_at_a_time(unary(model)) for name, model in staged.items()}
        inner["tensorrt_llm"] = language.streaming if decoupled else language.whole
        backend = FakeBackend(inner, inner_cancel=inner_cancel)
        given = {"model_dir": str(babble), "voices_dir": voices or str(tmp_path / "voices"), **parameters}
        args = initialize_args(given, name="cosyvoice2", model_transaction_policy={"decoupled": decoupled})
        servers.append(Server(backend, CosyVoice2.load(args, backend), language, staged))
        return servers[-1]

    yield make
    for server in servers:
        server.model.close()
        assert len(server.token2wav._streams) == 0


def halved(voice: Voice, mode: Mode) -> Any:
    """What is left of a voice on its way between the models."""
    whole = condition(voice, mode)
    return type(whole)(
        embedding=whole.embedding.half().float(),
        lm_prompt_text=whole.lm_prompt_text,
        lm_prompt_tokens=whole.lm_prompt_tokens,
        flow_tokens=whole.flow_tokens,
        flow_mel=whole.flow_mel.half().float(),
    )


def own(
    synthesizer: Synthesizer,
    conditioning: Any,
    tokens: Sequence[int],
    policy: ChunkPolicy | None,
    seed: int = 42,
    speed: float = 1.0,
) -> list[np.ndarray]:
    """The package's own chunks of the tokens."""
    segment = SynthesisRequest(conditioning, speech_tokens=tuple(tokens), seed=seed, speed=speed)
    return [chunk.samples for chunk in synthesizer.engine.submit(SpeechRequest((segment,), policy))]


def alike(heard: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    together = np.concatenate(heard), np.concatenate(expected)
    return len(together[0]) == len(together[1]) and np.allclose(*together, atol=1e-4)


def speaker(babble: Path, name: str = "babble-a") -> Any:
    return halved(built_in_voices(babble)[name], Mode.SFT)


def spoken(synthesizer: Synthesizer, text: str) -> list[int]:
    return script(synthesizer.text.encode(text))


@pytest.mark.parametrize("rule", ["exponential", "equal"])
def test_a_stream_is_the_package_s_own(
    serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path, rule: str
) -> None:
    server = serve(dynamic_chunk_strategy=rule)
    heard = waves(server.stream(TEXT, seed=9, speed=1.25))
    tokens = spoken(synthesizer, TEXT)
    expected = own(synthesizer, speaker(babble), tokens, ChunkPolicy.parse(rule), seed=9, speed=1.25)
    assert [len(chunk) for chunk in heard] == [len(chunk) for chunk in expected]
    assert alike(heard, expected)


def test_by_the_clock_it_is_all_spoken(serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path) -> None:
    heard = waves(serve(dynamic_chunk_strategy="time_based").stream(TEXT))
    expected = own(synthesizer, speaker(babble), spoken(synthesizer, TEXT), ChunkPolicy.equal())
    assert sum(map(len, heard)) == sum(map(len, expected))


def test_whole_answers(serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path) -> None:
    server = serve(decoupled=False)
    texts = ["One.", "Two."]
    for text, answer in zip(texts, server.model.execute([ask(server.backend, text) for text in texts]), strict=True):
        assert alike([wave(answer)], own(synthesizer, speaker(babble), spoken(synthesizer, text), None))
    assert not server.language.asked[0]["streaming"].item()


def test_what_the_language_model_is_asked(
    serve: Callable[..., Server], synthesizer: Synthesizer, vocabulary: MergedVocabulary
) -> None:
    server, recording = serve(), hum(1.0)
    server.stream(TEXT, reference_wav=recording, reference_text="It is 5.", seed=3)
    [asked] = server.language.asked
    voice = synthesizer.extractor.extract(Audio(recording, RATE), "It is 5.")
    text = synthesizer.text.encode(TEXT)
    ids = (vocabulary.sos, *voice.prompt_text, *text, vocabulary.task)
    speech = [vocabulary.speech(token) for token in voice.speech_tokens.tolist()]
    assert asked["input_ids"].tolist() == [[*ids, *speech]]
    assert asked["input_ids"].dtype == asked["input_lengths"].dtype == asked["end_id"].dtype == np.int32
    assert asked["random_seed"].dtype == np.uint64
    assert {name: value.item() for name, value in asked.items() if name != "input_ids"} == {
        "input_lengths": len(ids) + len(speech),
        "request_output_len": 20 * len(text),
        "min_length": 2 * len(text),
        "end_id": vocabulary.eos_ids[0],
        "pad_id": vocabulary.eos_ids[0],
        "streaming": True,
        "exclude_input_in_output": True,
        "runtime_top_p": pytest.approx(0.95),
        "runtime_top_k": 50,
        "temperature": pytest.approx(0.8),
        "repetition_penalty": pytest.approx(1.1),
        "random_seed": 3,
    }


def test_a_recording(serve: Callable[..., Server], synthesizer: Synthesizer) -> None:
    server, recording = serve(), hum(1.3)
    heard = waves(server.stream(TEXT, reference_wav=recording, reference_text="Hm."))
    voice = synthesizer.extractor.extract(Audio(recording, RATE), "Hm.")
    conditioning = halved(voice, Mode.ZERO_SHOT)
    tokens = script((*conditioning.lm_prompt_text, *synthesizer.text.encode(TEXT)))
    assert alike(heard, own(synthesizer, conditioning, tokens, ChunkPolicy.exponential()))
    server.stream(TEXT, reference_wav=recording, reference_text="Hm.")
    server.stream(TEXT, reference_wav=recording, reference_text="Hm, hm.")
    assert len(asked_of(server.backend, "audio_tokenizer")) == 2  # the second time it was remembered
    assert len(asked_of(server.backend, "speaker_embedding")) == 2


def test_only_the_first_step_brings_the_voice(serve: Callable[..., Server]) -> None:
    server = serve()
    server.stream(TEXT, reference_wav=hum(1.0))
    steps = asked_of(server.backend, "token2wav")
    assert len({step.request_id() for step in steps}) == 1
    assert ["prompt_speech_feat" in read(step) for step in steps] == [True] + [False] * (len(steps) - 1)
    assert [read(step)["finalize"].item() for step in steps] == [False] * (len(steps) - 1) + [True]


def test_voices(serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path, tmp_path: Path) -> None:
    stored = synthesizer.extractor.extract(Audio(hum(1.0), RATE), "Hm.").named("anna")
    VoiceStore(tmp_path / "store").save(stored)
    server = serve(voices=str(tmp_path / "store"), default_voice="babble-b")
    tokens = spoken(synthesizer, TEXT)
    policy = ChunkPolicy.exponential()
    assert alike([server.hear(TEXT)], own(synthesizer, speaker(babble, "babble-b"), tokens, policy))
    assert alike([server.hear(TEXT, voice="babble-a")], own(synthesizer, speaker(babble), tokens, policy))
    conditioning = halved(stored, Mode.ZERO_SHOT)
    tokens = script((*stored.prompt_text, *synthesizer.text.encode(TEXT)))
    assert alike([server.hear(TEXT, voice="anna")], own(synthesizer, conditioning, tokens, policy))
    [unknown] = server.stream(TEXT, voice="berta")
    assert "voice: 'berta' is not registered (known: babble-a, babble-b, anna)" in refused(
        unknown, TritonError.NOT_FOUND
    )


def test_an_instruction_stands_for_the_transcript(
    serve: Callable[..., Server], synthesizer: Synthesizer, vocabulary: MergedVocabulary
) -> None:
    server = serve()
    server.stream(TEXT, reference_wav=hum(1.0), reference_text="Hm.", instruct_text="Speak slowly.")
    text = (*synthesizer.instruction("Speak slowly."), *synthesizer.text.encode(TEXT))
    assert server.language.asked[0]["input_ids"].tolist() == [[vocabulary.sos, *text, vocabulary.task]]


def test_long_texts_are_spoken_one_segment_after_the_other(
    serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path
) -> None:
    text = " ".join(["This is a sentence that is not short at all, and there are more of its kind to come."] * 3)
    parts = synthesizer.requests(text, built_in_voices(babble)["babble-a"], SpeakOptions(seed=7))
    assert len(parts) > 1
    server = serve()
    expected = [
        chunk
        for part in parts
        for chunk in own(synthesizer, speaker(babble), script(part.text), ChunkPolicy.exponential(), seed=part.seed)
    ]
    assert alike(waves(server.stream(text, seed=7)), expected)
    assert [asked["random_seed"].item() for asked in server.language.asked] == [part.seed for part in parts]


def test_each_of_eight_gets_its_own(serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path) -> None:
    server = serve()
    texts = [f"Say {word}." for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    requests = [ask(server.backend, text) for text in texts]
    assert server.model.execute(requests) is None
    for text, request in zip(texts, requests, strict=True):
        expected = own(synthesizer, speaker(babble), spoken(synthesizer, text), ChunkPolicy.exponential())
        assert alike(waves(request.answers()), expected)


def test_a_slow_request_holds_up_nobody(serve: Callable[..., Server], synthesizer: Synthesizer) -> None:
    server = serve()
    slow, quick = ask(server.backend, "Slow."), ask(server.backend, "Quick.")
    gate = server.language.gates[synthesizer.text.encode("Slow.")] = threading.Event()
    server.model.execute([slow, quick])
    answers = slow.answers()
    first = wave(next(answers))  # it has begun, and waits for its 41st token
    assert sum(map(len, waves(quick.answers()))) > len(first)
    assert not gate.is_set()
    gate.set()
    assert sum(map(len, waves(answers))) > 0


@pytest.mark.parametrize("inner_cancel", [False, True])
def test_who_leaves_ends_the_inner_work(
    serve: Callable[..., Server], synthesizer: Synthesizer, inner_cancel: bool
) -> None:
    server = serve(inner_cancel=inner_cancel)
    request = ask(server.backend, "Slow.")
    gate = server.language.gates[synthesizer.text.encode("Slow.")] = threading.Event()
    server.model.execute([request])
    answers = request.answers()
    wave(next(answers))
    request.leave()
    gate.set()
    *_, last = answers
    assert "client has left" in refused(last, TritonError.CANCELLED)
    server.model.close()
    assert server.language.given[0] < TOKENS
    assert len(server.language.stopped) == (0 if inner_cancel else 1)
    assert len(server.token2wav._streams) == 0


def test_who_has_left_before_is_not_begun(serve: Callable[..., Server]) -> None:
    server = serve()
    request = ask(server.backend, TEXT)
    request.leave()
    server.model.execute([request])
    [answer] = request.answers()
    assert "client has left" in refused(answer, TritonError.CANCELLED)
    assert server.backend.asked == []


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("", {}, "target_text: is empty"),
        ("...", {}, "nothing in '...' can be spoken"),
        (TEXT, {"reference_wav": 0 * hum(1.0)}, "reference_wav: is silent"),
        (TEXT, {"reference_wav": hum(1.0), "reference_text": "\x00"}, "text"),
    ],
)
@pytest.mark.parametrize("decoupled", [True, False])
def test_refusals_harm_nobody(
    serve: Callable[..., Server], text: str, given: dict[str, Any], message: str, decoupled: bool
) -> None:
    server = serve(decoupled=decoupled)
    bad, good = ask(server.backend, text, **given), ask(server.backend, TEXT)
    answers = server.model.execute([bad, good])
    [error], heard = (list(bad.answers()), list(good.answers())) if decoupled else ([answers[0]], answers[1:])
    assert message in refused(error)
    assert sum(map(len, waves(heard))) > 0


@pytest.mark.parametrize("model", ["audio_tokenizer", "speaker_embedding", "tensorrt_llm", "token2wav"])
@pytest.mark.parametrize("decoupled", [True, False])
def test_inner_errors_reach_the_client(serve: Callable[..., Server], model: str, decoupled: bool) -> None:
    server = serve(decoupled=decoupled)

    def fail(request: Any) -> Any:
        response = InferenceResponse(error=TritonError("no room: come again in 3 s", TritonError.UNAVAILABLE))
        return iter([response]) if decoupled and model == "tensorrt_llm" else response

    server.backend.models[model] = fail
    request = ask(server.backend, TEXT, reference_wav=hum(1.0))
    answers = server.model.execute([request])
    [error] = answers if answers is not None else request.answers()
    assert refused(error, TritonError.UNAVAILABLE) == "no room: come again in 3 s"


def test_a_model_that_is_left_out(serve: Callable[..., Server]) -> None:
    server = serve()
    del server.backend.models["audio_tokenizer"]
    [error] = server.stream(TEXT, reference_wav=hum(1.0))
    assert "'audio_tokenizer' is not ready" in refused(error, TritonError.INTERNAL)


def test_no_speech_is_an_error(serve: Callable[..., Server]) -> None:
    server = serve()
    server.language.script = lambda text: []
    [error] = server.stream(TEXT)
    assert "made no speech of this text" in refused(error, TritonError.INTERNAL)


def test_what_ends_speech_is_not_spoken(serve: Callable[..., Server], synthesizer: Synthesizer, babble: Path) -> None:
    """Any of the three ends may come; of two of them a server does not know, and goes on."""
    server = serve()
    server.language.script = lambda text: [*script(text)[:30], 6_562, *script(text)[30:]]
    expected = own(synthesizer, speaker(babble), spoken(synthesizer, TEXT)[:30], ChunkPolicy.exponential())
    assert alike(waves(server.stream(TEXT)), expected)
    assert server.language.given == [31]
    assert len(server.language.stopped) == 1


def test_cached_voices_only(serve: Callable[..., Server]) -> None:
    server = serve(use_spk2info_cache="True")
    [error] = server.stream(TEXT, reference_wav=hum(1.0))
    assert "reference_wav: this server speaks in cached voices only" in refused(error)
    assert len(server.hear(TEXT)) > 0


def test_the_engine_backend_is_given_the_bias_of_the_head(
    serve: Callable[..., Server], babble: Path, vocabulary: MergedVocabulary
) -> None:
    server = serve(triton_backend="tensorrtllm")
    server.stream(TEXT)
    [bias] = server.language.asked[0]["embedding_bias"]
    assert bias.dtype == np.float32
    assert bias.shape == (vocabulary.padded_size,)
    speech = slice(vocabulary.speech(0), vocabulary.sos)
    head = torch.load(babble / "llm.pt", weights_only=True)["llm_decoder.bias"]
    assert np.array_equal(bias[speech], head.float().numpy())
    assert np.isneginf(np.delete(bias, np.r_[speech])).all()


def test_the_tokenizer_must_count_as_the_model_does(
    serve: Callable[..., Server], babble: Path, vocabulary: MergedVocabulary, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="has no speech tokens"):
        serve(llm_tokenizer_dir=str(babble / BACKBONE))
    merged = TextTokenizer.from_folder(babble / BACKBONE)
    merged._tokenizer.add_tokens(list(vocabulary.added_tokens()))
    (tmp_path / "tokenizer.json").write_text(merged.to_json())
    assert len(serve(llm_tokenizer_dir=str(tmp_path)).hear(TEXT)) > 0
    longer = TextTokenizer.from_folder(babble / BACKBONE)
    longer._tokenizer.add_tokens(["one more", *vocabulary.added_tokens()])
    (tmp_path / "tokenizer.json").write_text(longer.to_json())
    with pytest.raises(CheckpointError, match=f"begins speech at id {vocabulary.text_size + 1}, the model"):
        serve(llm_tokenizer_dir=str(tmp_path))


def test_an_unknown_rule(serve: Callable[..., Server]) -> None:
    with pytest.raises(InvalidRequest, match="'never' is unknown"):
        serve(dynamic_chunk_strategy="never")


def test_more_than_are_taken_are_refused(
    serve: Callable[..., Server], synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce.doors.triton.models.cosyvoice2.MOST_TAKEN", 1)
    server = serve()
    gate = server.language.gates[synthesizer.text.encode("Slow.")] = threading.Event()
    slow, more = ask(server.backend, "Slow."), ask(server.backend, TEXT)
    server.model.execute([slow, more])
    [refusal] = more.answers()
    assert "1 requests wait already; send this one again in 5 s" in refused(refusal, TritonError.UNAVAILABLE)
    gate.set()
    assert sum(map(len, waves(slow.answers()))) > 0
    assert len(server.hear(TEXT)) > 0
