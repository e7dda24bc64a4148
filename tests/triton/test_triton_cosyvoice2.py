"""`cosyvoice2`, `cosyvoice2_dit` and `cosyvoice3` over their real models and a language model, scripted or real."""

from __future__ import annotations

import io
import re
import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from fake_backend import FakeBackend, InferenceResponse, TritonError, initialize_args, refused, sending, unary
from fake_endpoint import said, serving
from speaking_helpers import RATE, ScriptedLanguageModel, Speaker, alike, ask, audio, hum, near, read, wave

from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE, detect_generation
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest
from vivavoce.errors import CheckpointError
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.speech import Mode, SpeakOptions
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.model_repository import ModelSet, RepositoryPlan, rendered_files
from vivavoce_triton.models.backend import Parameters
from vivavoce_triton.models.cosyvoice2 import CosyVoice2Model
from vivavoce_triton.models.inner_models import TOP_K, TOP_P
from vivavoce_triton.models.other_layouts import MelVocoder, Token2Mel, Token2WavDit
from vivavoce_triton.models.reference_models import AudioTokenizer, PlainAudioTokenizer, SpeakerEmbedding
from vivavoce_triton.models.tensorrt_llm import TensorrtLLM
from vivavoce_triton.models.token2wav import Token2Wav

TEXT = "Good morning."
RECORDING = hum(1.0)
TOKENS = 60
STREAM = ChunkPolicy.exponential()
READERS = {"audio_tokenizer": AudioTokenizer, "speaker_embedding": SpeakerEmbedding}
STAGES = {
    "cosyvoice2": {**READERS, "token2wav": Token2Wav},
    "cosyvoice2_dit": {**READERS, "token2wav_dit": Token2WavDit},
    "cosyvoice3": {**READERS, "audio_tokenizer": PlainAudioTokenizer, "token2wav": Token2Mel, "vocoder": MelVocoder},
}
"""Of each layout, by the model that speaks."""
SETS = {models.speaking: models for models in (ModelSet.STAGED, ModelSet.COSYVOICE3, ModelSet.DIT)}


def script(text):
    """Tokens of its own for every text."""
    return np.random.default_rng(list(text)).integers(0, 6_561, TOKENS).tolist()


SAID = script((72, 105))
OF_V3 = ("cosyvoice2", "babble_v3")
LAYOUTS = [("cosyvoice2", "babble"), OF_V3, ("cosyvoice3", "babble_v3"), ("cosyvoice2_dit", "babble")]
ALL = pytest.mark.parametrize("layout", LAYOUTS, ids=["v2", "v3", "cosyvoice3", "dit"], indirect=True)
"""Each model that speaks, of each generation that it serves; the first is that of the other tests."""
BOTH = pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["v2", "v3"], indirect=True)


def arguments(folder, *, name="model", streams=False, **more):
    given = {"model_dir": str(folder), "device": "cpu", **more}
    return Parameters(initialize_args(given, name=name, model_transaction_policy={"decoupled": streams}))


@pytest.fixture(scope="module")
def layout(request):
    """The model that speaks, and the name of its folder's fixture."""
    return getattr(request, "param", LAYOUTS[0])


@pytest.fixture(scope="module")
def folder(request, layout):
    return request.getfixturevalue(layout[1])


@pytest.fixture(scope="module")
def vocabulary(folder):
    return MergedVocabulary(len(TextTokenizer.from_folder(folder / BACKBONE)), 6_561, detect_generation(folder))


@pytest.fixture(scope="module")
def synthesizer(folder, babble, synthesizer):
    if folder == babble:
        yield synthesizer
        return
    with closing(Vivavoce(*load_model(folder, (torch.device("cpu"),)))) as own:
        yield own


@pytest.fixture(scope="module")
def staged(layout, folder):
    """The models without a language model, which keep nothing from test to test."""
    made = {name: stage.load(arguments(folder), FakeBackend()) for name, stage in STAGES[layout[0]].items()}
    yield made
    for model in made.values():
        model.close()


class Server(Speaker):
    """A repository: `cosyvoice2`, and behind it what it asks."""

    def __init__(self, model, backend, language, staged, encode):
        super().__init__(model)
        self.backend, self.language, self._encode = backend, language, encode
        (self.streams,) = (one.streams for one in staged.values() if isinstance(one, Token2Wav))

    def hold(self, text):
        """Set what is returned, and the language model goes on with this text."""
        gate = self.language.gates[self._encode(text)] = threading.Event()
        return gate

    def asked_of(self, model):
        """The tensors of the requests to an inner model, in order."""
        return [read(request) for request in self.backend.asked if request.model_name() == model]


@pytest.fixture
def serve(layout, folder, staged, vocabulary, synthesizer, tmp_path):
    servers = []

    def make(*, decoupled=True, language=None, inner_cancel=False, **parameters):
        scripted = ScriptedLanguageModel(vocabulary, script)
        inner = {name: unary(model) for name, model in staged.items()}
        inner["tensorrt_llm"] = language or (scripted.streaming if decoupled else scripted.whole)
        backend = FakeBackend(inner, inner_cancel=inner_cancel)
        given = {"voices_dir": str(tmp_path / "voices"), **parameters}
        model = CosyVoice2Model.load(arguments(folder, name=layout[0], streams=decoupled, **given), backend)
        servers.append(Server(model, backend, scripted, staged, synthesizer.front_end.text.encode))
        return servers[-1]

    yield make
    plan = RepositoryPlan({"model_dir": str(folder)}, models=SETS[layout[0]])
    files = rendered_files(plan)
    for server in servers:
        server.model.close()
        assert len(server.streams) == 0
        for asked in server.backend.asked:  # the real server refuses others
            config = files[f"{asked.model_name()}/config.pbtxt"].decode()
            assert set(read(asked)) <= set(re.findall(r'^input { name: "(\w+)"', config, re.MULTILINE))


class Own:
    """The package's own audio of what the script says of a text, in what is left of a voice between the models."""

    def __init__(self, synthesizer, folder):
        self.synthesizer, self.voices = synthesizer, built_in_voices(folder)

    def chunks(self, text, policy=STREAM, *, voice="babble-a", mode=Mode.SFT, tokens=None, seed=42, speed=1.0):
        known = self.voices[voice] if isinstance(voice, str) else voice
        whole = self.synthesizer.front_end.conditioning(known, SpeakOptions(mode=mode))
        halved = replace(whole, embedding=whole.embedding.half().float(), flow_mel=whole.flow_mel.half().float())
        said = tokens or script((*whole.lm_text, *self.synthesizer.front_end.text.encode(text)))
        segment = SegmentRequest(halved, speech_tokens=tuple(said), seed=seed, speed=speed)
        return [chunk.samples for chunk in self.synthesizer.engine.submit(EngineRequest((segment,), policy))]

    def __call__(self, text, *given, **more):
        return np.concatenate(self.chunks(text, *given, **more))


@pytest.fixture
def equal(layout):
    """`cosyvoice3` vocodes a stream's start again with each chunk, and so adds up phases in another order."""
    return near if layout[0] == "cosyvoice3" else alike


@pytest.fixture
def own(synthesizer, folder):
    return Own(synthesizer, folder)


@pytest.fixture
def anna(synthesizer):
    """The voice of a recording."""
    return synthesizer.front_end.extractor.extract(Audio(RECORDING, RATE), "Hm.").named("anna")


@ALL
@pytest.mark.parametrize("rule", ["exponential", "equal"])
def test_a_stream_is_the_package_s_own(serve, own, equal, rule):
    heard = [wave(answer) for answer in serve(dynamic_chunk_strategy=rule).stream(TEXT, seed=9, speed=1.25)]
    expected = own.chunks(TEXT, ChunkPolicy.parse(rule), seed=9, speed=1.25)
    assert [len(chunk) for chunk in heard] == [len(chunk) for chunk in expected]
    assert equal(np.concatenate(heard), np.concatenate(expected))


@ALL
def test_whole_answers(serve, own, equal):
    server, texts = serve(decoupled=False), ["One.", "Two."]
    for text, answer in zip(texts, server.model.execute([ask(text) for text in texts]), strict=True):
        assert equal(wave(answer), own(text, None))
    assert not server.language.asked[0]["streaming"].item()


@ALL
def test_what_the_language_model_is_asked(serve, anna, synthesizer, vocabulary):
    server = serve()
    server.stream(TEXT, reference_wav=RECORDING, reference_text="Hm.", seed=3)
    [asked] = server.language.asked
    text = synthesizer.front_end.text.encode(TEXT)
    speech = [vocabulary.speech(token) for token in anna.speech_tokens.tolist()]
    prompt = synthesizer.front_end.conditioning(anna).lm_text
    assert prompt[len(prompt) - len(anna.prompt_text) :] == anna.prompt_text
    system = synthesizer.front_end.text.encode("You are a helpful assistant.<|endofprompt|>")
    assert (prompt[: len(system)] == system) is (vocabulary.generation is Generation.V3)
    ids = [vocabulary.sos, *prompt, *text, vocabulary.task, *speech]
    assert asked["input_ids"].tolist() == [ids]
    assert asked["input_ids"].dtype == asked["input_lengths"].dtype == asked["end_id"].dtype == np.int32
    assert asked["random_seed"].dtype == np.uint64
    assert {name: value.item() for name, value in asked.items() if name != "input_ids"} == {
        "input_lengths": len(ids),
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


@ALL
def test_a_recording_is_extracted_once(serve, own, equal, anna):
    server = serve()
    heard = server.hear(TEXT, reference_wav=RECORDING, reference_text="Hm.")
    assert equal(heard, own(TEXT, voice=anna, mode=Mode.ZERO_SHOT))
    for transcript, times in (("Hm.", 1), ("Hm, hm.", 2)):
        server.stream(TEXT, reference_wav=RECORDING, reference_text=transcript)
        assert len(server.asked_of("audio_tokenizer")) == len(server.asked_of("speaker_embedding")) == times


def test_a_stored_voice_of_another_model_is_extracted_again(serve, own, anna, tmp_path):
    file = io.BytesIO()
    soundfile.write(file, RECORDING, RATE, format="WAV", subtype="FLOAT")
    FolderStore(tmp_path / "voices").save(replace(anna, fingerprint="f" * 16, recording=file.getvalue()))
    server = serve()
    for _ in range(2):
        assert alike(server.hear(TEXT, voice="anna"), own(TEXT, voice=anna, mode=Mode.ZERO_SHOT))
    assert len(server.asked_of("audio_tokenizer")) == 1


def test_only_the_first_step_brings_the_voice(serve):
    server = serve()
    server.stream(TEXT, reference_wav=RECORDING)
    steps = server.asked_of("token2wav")
    assert len({one.request_id() for one in server.backend.asked if one.model_name() == "token2wav"}) == 1
    assert ["prompt_speech_feat" in step for step in steps] == [True] + [False] * (len(steps) - 1)
    assert [step["finalize"].item() for step in steps] == [False] * (len(steps) - 1) + [True]


def test_voices(serve, own, anna, tmp_path):
    FolderStore(tmp_path / "voices").save(anna)
    server = serve(default_voice="babble-b")
    assert alike(server.hear(TEXT), own(TEXT, voice="babble-b"))
    assert alike(server.hear(TEXT, voice="babble-a"), own(TEXT))
    assert alike(server.hear(TEXT, voice="anna"), own(TEXT, voice=anna, mode=Mode.ZERO_SHOT))
    [unknown] = server.stream(TEXT, voice="berta")
    said = refused(unknown, TritonError.NOT_FOUND)
    assert "voice: 'berta' is not registered (known: babble-a, babble-b, anna)" in said


def test_long_texts_are_spoken_one_segment_after_the_other(serve, own):
    text = " ".join(["This is a sentence that is not short at all, and there are more of its kind to come."] * 3)
    parts = own.synthesizer.front_end.requests(text, own.voices["babble-a"], SpeakOptions(seed=7))
    assert len(parts) > 1
    server = serve()
    expected = [own(text, tokens=script(part.text), seed=part.seed) for part in parts]
    assert alike(server.hear(text, seed=7), np.concatenate(expected))
    assert [asked["random_seed"].item() for asked in server.language.asked] == [part.seed for part in parts]


def test_a_slow_request_holds_up_nobody(serve):
    server = serve()
    gate = server.hold("Slow.")
    slow, quick = ask("Slow."), ask("Quick.")
    server.model.execute([slow, quick])
    answers = slow.answers()
    first = wave(next(answers))  # it has begun, and waits for its 41st token
    assert len(audio(quick.answers())) > len(first)
    assert not gate.is_set()
    gate.set()
    assert len(audio(answers)) > 0


@pytest.mark.parametrize("inner_cancel", [False, True])
def test_who_leaves_ends_the_inner_work(serve, inner_cancel):
    server = serve(inner_cancel=inner_cancel)
    gate, request = server.hold("Slow."), server.begin("Slow.")
    answers = request.answers()
    wave(next(answers))
    request.leave()
    gate.set()
    *_, last = answers
    assert "client has disconnected" in refused(last, TritonError.CANCELLED)
    server.model.close()
    assert server.language.given[0] < TOKENS
    assert len(server.language.stopped) == (0 if inner_cancel else 1)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("...", {}, "nothing in '...' can be spoken"),
        (TEXT, {"reference_wav": 0 * RECORDING}, "reference_wav: is silent"),
        (TEXT, {"reference_wav": RECORDING, "reference_text": "a" * 20_001}, "20001"),
    ],
)
@pytest.mark.parametrize("decoupled", [True, False])
def test_refusals_harm_nobody(serve, text, given, message, decoupled):
    bad, good = ask(text, **given), ask(TEXT)
    answers = serve(decoupled=decoupled).model.execute([bad, good])
    [error], heard = ([*bad.answers()], [*good.answers()]) if decoupled else (answers[:1], answers[1:])
    assert message in refused(error)
    assert len(audio(heard)) > 0


@pytest.mark.parametrize("model", ["audio_tokenizer", "speaker_embedding", "tensorrt_llm", "token2wav"])
@pytest.mark.parametrize("decoupled", [True, False])
def test_inner_errors_reach_the_client(serve, model, decoupled):
    words, server = "no room: come again in 3 s", serve(decoupled=decoupled)
    answer = InferenceResponse(error=TritonError(words, TritonError.UNAVAILABLE))
    server.backend.models[model] = lambda request: answer
    request = ask(TEXT, reference_wav=RECORDING)
    [error] = server.model.execute([request]) or request.answers()
    assert refused(error, TritonError.UNAVAILABLE) == words


def test_no_speech_is_an_error(serve):
    server = serve()
    server.language.script = lambda text: []
    [error] = server.stream(TEXT)
    assert "generated no speech for this text" in refused(error, TritonError.INTERNAL)


@BOTH
def test_what_ends_speech_is_not_spoken(serve, own, vocabulary):
    """Any of the ends may come; of all but one of them a server does not know, and goes on."""
    server, other_end = serve(), vocabulary.eos_ids[-1] - vocabulary.text_size
    server.language.script = lambda text: [*SAID[:30], other_end, *SAID[30:]]
    assert alike(server.hear("Hi."), own("Hi.", tokens=SAID[:30]))
    assert server.language.given == [31]
    assert len(server.language.stopped) == 1


@pytest.mark.parametrize("layout", [OF_V3], indirect=True)
@pytest.mark.parametrize("decoupled", [True, False])
def test_a_long_silence_of_cosyvoice3_is_shortened(serve, own, decoupled):
    """However the language model's tokens come: this one gives them one by one, or all at once."""
    server, silence = serve(decoupled=decoupled), [1, 2, 28, 29, 55, 248, 494, 2241, 2242]
    server.language.script = lambda text: [*SAID[:20], *silence, *SAID[20:], *silence]
    spoken = [*SAID[:20], *silence[:5], *SAID[20:], *silence[:5]]
    [whole] = [None] if decoupled else server.model.execute([ask("Hi.")])
    expected = own("Hi.", STREAM if decoupled else None, tokens=spoken)
    assert alike(server.hear("Hi.") if decoupled else wave(whole), expected)


@pytest.mark.parametrize("layout", [OF_V3], indirect=True)
def test_a_text_may_bring_cosyvoice3_s_system_prompt(serve, synthesizer, vocabulary):
    server, encode = serve(), synthesizer.front_end.text.encode
    server.stream("Speak softly.<|endofprompt|>Hi.")
    ids = [vocabulary.sos, *encode("Speak softly.<|endofprompt|>"), *encode("Hi."), vocabulary.task]
    assert server.language.asked[0]["input_ids"].tolist() == [ids]


@ALL
@pytest.mark.parametrize("decoupled", [True, False])
def test_an_endpoint_in_the_language_model_s_place(serve, own, equal, decoupled):
    with serving([said(f"<|s_{token}|>") for token in SAID[:30]]) as endpoint:
        server = serve(decoupled=decoupled, llm_api_base=endpoint.address, llm_model_name="speech")
        [whole] = [None] if decoupled else server.model.execute([ask(TEXT, seed=4)])
        heard = server.hear(TEXT, seed=4) if decoupled else wave(whole)
    assert equal(heard, own(TEXT, STREAM if decoupled else None, tokens=SAID[:30], seed=4))
    [(_, asked)] = endpoint.asked
    assert (asked["model"], asked["seed"]) == ("speech", 4)
    assert asked["messages"][0]["content"].endswith(TEXT)
    assert server.language.asked == []


def test_cached_voices_only(serve):
    server = serve(use_spk2info_cache="True")
    [error] = server.stream(TEXT, reference_wav=RECORDING)
    assert "reference_wav: this server accepts stored voices only" in refused(error)
    assert len(server.hear(TEXT)) > 0


@BOTH
def test_the_engine_backend_is_given_the_bias_of_the_head(serve, folder, vocabulary):
    server = serve(triton_backend="tensorrtllm")
    server.stream(TEXT)
    [bias] = server.language.asked[0]["embedding_bias"]
    assert (bias.dtype, bias.shape) == (np.float32, (vocabulary.padded_size,))
    head = torch.load(folder / "llm.pt", weights_only=True)
    own = head.get("llm_decoder.bias", torch.zeros(len(head["llm_decoder.weight"])))
    assert np.array_equal(bias[vocabulary.head], own.float().numpy())
    assert np.isneginf(np.delete(bias, vocabulary.head)).all()


def test_the_tokenizer_must_count_as_the_model_does(serve, babble, vocabulary, tmp_path):
    with pytest.raises(CheckpointError, match="has no speech tokens"):
        serve(llm_tokenizer_dir=str(babble / BACKBONE))
    for more in ([], ["one more"]):
        merged = TextTokenizer.from_folder(babble / BACKBONE)
        merged._tokenizer.add_tokens([*more, *vocabulary.added_tokens()])
        (tmp_path / "tokenizer.json").write_text(merged.to_json())
        if not more:
            assert len(serve(llm_tokenizer_dir=str(tmp_path)).hear(TEXT)) > 0
    with pytest.raises(CheckpointError, match=f"begins speech at id {vocabulary.text_size + 1}, but the model"):
        serve(llm_tokenizer_dir=str(tmp_path))


def test_more_than_are_taken_are_refused(serve, monkeypatch):
    monkeypatch.setattr("vivavoce_triton.models.cosyvoice2.MOST_TAKEN", 1)
    server = serve()
    gate, slow = server.hold("Slow."), server.begin("Slow.")
    [refusal] = server.stream(TEXT)
    assert "1 requests wait already; send this one again in 5 s" in refused(refusal, TritonError.UNAVAILABLE)
    gate.set()
    assert len(audio(slow.answers())) > 0
    assert len(server.hear(TEXT)) > 0


@BOTH
@pytest.mark.parametrize("decoupled", [True, False])
def test_with_the_real_language_model_as_well(serve, folder, synthesizer, decoupled):
    language = TensorrtLLM.load(arguments(folder, streams=decoupled, exclude_input_in_output="true"), FakeBackend())
    server = serve(decoupled=decoupled, language=(sending if decoupled else unary)(language))
    voice = built_in_voices(folder)["babble-a"]
    voice = replace(voice, embedding=voice.embedding.half().float())
    options = SpeakOptions(seed=4, sampling=SamplingParams(top_p=TOP_P, top_k=TOP_K))
    try:
        if not decoupled:
            [answer] = server.model.execute([ask("Hi.", seed=4)])
            assert alike(wave(answer), synthesizer.speak("Hi.", voice, options=options).samples)
            return
        chunks = synthesizer.stream("Hi.", voice, options=options, policy=STREAM)
        assert alike(server.hear("Hi.", seed=4), np.concatenate([chunk.samples for chunk in chunks]))
        leaving = server.begin("Good morning, how are you? " * 40)
        answers = leaving.answers()
        wave(next(answers))
        leaving.leave()
        *_, last = answers
        assert "client has disconnected" in refused(last, TritonError.CANCELLED)
        assert len(server.hear("Hi.")) > 0
        assert any("stop" in asked for asked in server.asked_of("tensorrt_llm"))
        assert language._running == {}
    finally:
        server.model.close()
        language.close()
