"""CosyVoice's own Python interface: its scripts run, and what they get is what the Python API speaks."""

from __future__ import annotations

import gc
import os
import re
import runpy
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

import vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import (
    DownloadError,
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    ModelNotFound,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.speech_options import MAX_SEED
from vivavoce.frontend.text.text_front_end import MAX_SEGMENT_TOKENS
from vivavoce.models.build import build_models
from vivavoce_dialects import compat
from vivavoce_export.network_files import export_part, part_of
from vivavoce_runtimes.estimators import ExportedEstimator

DATA = Path(__file__).parents[1] / "data"
ASSETS = {"zero_shot_prompt.wav": "speech_24k_float.wav", "cross_lingual_prompt.wav": "speech_22k_int16.wav"}
PAGE = Path(__file__).parents[2] / "docs" / "from-cosyvoice.md"
WAV = str(DATA / "audio" / "speech_24k_float.wav")
SAID = "What I say there."
LONG = "Hello there, how are you? I am well, thank you very much. " * 4
SHORT = vivavoce.SamplingParams(exact_tokens=20, min_ratio=0.0, max_ratio=1.0)
V1, V2, V3 = Generation
NAMES = {
    V1: ("CosyVoice-300M", "CosyVoice-300M-SFT", "CosyVoice-300M-Instruct"),
    V2: ("CosyVoice2-0.5B",),
    V3: ("Fun-CosyVoice3-0.5B",),
}
RATES = {V1: 22_050, V2: 24_000, V3: 24_000}
SPEAKERS = ("中文女", "中文男")
LATE_S = 20.0


@pytest.fixture(scope="module")
def folders(babble_v1, babble, babble_v3, tmp_path_factory):
    """A copy for each generation, without the card that limits its scripts: a release has none; V1 has its speakers."""
    copies = {}
    for generation, source in {V1: babble_v1, V2: babble, V3: babble_v3}.items():
        copies[generation] = tmp_path_factory.mktemp("official") / NAMES[generation][0]
        shutil.copytree(source, copies[generation])
        (copies[generation] / "vivavoce.json").unlink()
    speakers = torch.load(babble_v1 / "spk2info.pt", weights_only=True).values()
    torch.save(dict(zip(SPEAKERS, speakers, strict=True)), copies[V1] / "spk2info.pt")
    return copies


@pytest.fixture(autouse=True, scope="module")
def _quick_on_the_cpu(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compat, "SpeakOptions", partial(SpeakOptions, sampling=SHORT))
        patch.setattr(compat, "choose_device", lambda _: torch.device("cpu"))
        patch.setenv("VIVAVOCE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def cosyvoice(folders):
    return compat.CosyVoice2(folders[V2])


@pytest.fixture(scope="module")
def tts(folders, tmp_path_factory):
    return vivavoce.load(folders[V2], device="cpu", voices=tmp_path_factory.mktemp("voices"))


def joined(pieces) -> np.ndarray:
    return torch.cat([piece["tts_speech"] for piece in pieces], dim=1)[0].numpy()


def seeded(number: int) -> int:
    """Seed torch, and say which seed the next call will draw."""
    compat.set_all_random_seed(number)
    seed = int(torch.randint(MAX_SEED, ()))
    compat.set_all_random_seed(number)
    return seed


@pytest.fixture
def saved_by(folders, tmp_path, monkeypatch):
    """Run a script with the original's paths, in a folder that has them: how many files of each name it saves."""
    saved: dict[str, int] = {}
    rates: set[int] = set()

    def save(path: str, speech: torch.Tensor, sample_rate: int) -> None:
        assert (speech.dtype, speech.dim(), speech.shape[0], speech.device.type) == (torch.float32, 2, 1, "cpu")
        assert speech.isfinite().all()
        assert speech.shape[1] > 0.1 * sample_rate
        rates.add(sample_rate)
        name = path.rpartition("_")[0]
        saved[name] = saved.get(name, 0) + 1

    def run(script: Callable[[], object], generation: Generation) -> dict[str, int]:
        for name in NAMES[generation]:
            shutil.copytree(folders[generation], tmp_path / "pretrained_models" / name)
        (tmp_path / "asset").mkdir()
        for name, source in ASSETS.items():
            shutil.copy(DATA / "audio" / source, tmp_path / "asset" / name)
        script()
        assert rates == {RATES[generation]}
        return saved

    monkeypatch.setitem(sys.modules, "torchaudio", SimpleNamespace(save=save))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "generation", "pieces"),
    [
        ("cosyvoice.py", V1, {"sft": 1, "zero_shot": 1, "cross_lingual": 1, "vc": 1, "instruct": 1}),
        (
            "cosyvoice2.py",
            V2,
            {"zero_shot": 1, "zero_shot_spk": 1, "fine_grained_control": 1, "instruct": 1, "zero_shot_bistream": 1},
        ),
        (
            "cosyvoice2_by_class.py",
            V2,
            {"zero_shot": 2, "fine_grained_control": 1, "instruct": 1, "vc": 1},
        ),
        (
            "cosyvoice3.py",
            V3,
            {"zero_shot": 1, "fine_grained_control": 1, "instruct": 1, "instruct_fast": 1, "hotfix": 1},
        ),
    ],
)
def test_scripts_of_the_readme_run(script, generation, pieces, saved_by):
    assert saved_by(lambda: runpy.run_path(str(DATA / "compat" / script)), generation) == pieces


def test_the_example_of_the_page_runs(saved_by):
    page = PAGE.read_text(encoding="utf-8").partition("\n## Python classes\n")[2]
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    run = partial(exec, compile(code, "compat.md", "exec"), {})
    assert saved_by(run, V2) == {"zero_shot": 1}


def test_the_page_has_every_public_name():
    page = PAGE.read_text(encoding="utf-8")
    methods = {name for one in (compat.CosyVoice, compat.CosyVoice2) for name in vars(one) if not name.startswith("_")}
    for name in methods - {"list_avaliable_spks"} | {"AutoModel", "CosyVoice3", "load_wav", "set_all_random_seed"}:
        assert f"`{name}" in page


def test_a_piece_for_each_segment(cosyvoice, tts):
    seed = seeded(1)
    pieces = list(cosyvoice.inference_zero_shot(LONG, SAID, WAV))
    speech = tts.speak(LONG, Path(WAV), transcript=SAID, seed=seed, sampling=SHORT)
    assert len(pieces) == len(speech.marks) > 1
    assert [p["tts_speech"].shape[1] for p in pieces] == [
        round((mark.end_s - mark.start_s) * speech.sample_rate) for mark in speech.marks
    ]
    assert np.array_equal(joined(pieces), speech.samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generation", "mode", "given", "manner"),
    [
        (V2, "sft", {"spk_id": "babble-b"}, {"voice": "babble-b", "mode": "sft"}),
        (V2, "zero_shot", {"prompt_text": SAID, "prompt_wav": WAV}, {"voice": Path(WAV), "transcript": SAID}),
        (V2, "cross_lingual", {"prompt_wav": WAV}, {"voice": Path(WAV), "mode": "cross_lingual"}),
        (
            V2,
            "instruct2",
            {"instruct_text": "slowly", "prompt_wav": WAV},
            {"voice": Path(WAV), "instructions": "slowly"},
        ),
        (
            V3,
            "instruct2",
            {"instruct_text": "You are a helpful assistant. slowly<|endofprompt|>", "prompt_wav": WAV},
            {"voice": Path(WAV), "instructions": "slowly"},
        ),
        (
            V1,
            "instruct",
            {"spk_id": SPEAKERS[1], "instruct_text": "slowly"},
            {"voice": SPEAKERS[1], "instructions": "slowly"},
        ),
    ],
)
def test_modes_and_streams_are_those_of_the_python_api(generation, mode, given, manner, cosyvoice, tts, folders):
    text = "Hello there."
    if generation is not V2:
        cosyvoice, tts = compat.AutoModel(folders[generation]), vivavoce.load(folders[generation], device="cpu")
    speak = partial(getattr(cosyvoice, f"inference_{mode}"), text, **given, speed=1.25)
    seed = seeded(2)
    chunks = [chunk.samples for chunk in tts.stream(text, **manner, speed=1.25, seed=seed, sampling=SHORT)]
    pieces = list(speak(stream=True))
    assert [p["tts_speech"].shape[1] for p in pieces] == [len(chunk) for chunk in chunks if len(chunk)]
    assert np.array_equal(joined(pieces), np.concatenate(chunks))
    seeded(2)
    whole = tts.speak(text, **manner, speed=1.25, seed=seed, sampling=SHORT).samples
    assert np.array_equal(joined(speak()), whole)
    assert not np.array_equal(joined(speak()), whole)  # the next call draws another seed


def test_recordings_of_every_form_are_the_same_voice(cosyvoice):
    def speech(prompt):
        seeded(3)
        return joined(cosyvoice.inference_cross_lingual("Hello.", prompt))

    samples = compat.load_wav(WAV, 16_000)
    with pytest.raises(InvalidRequest, match="target_sr: 0 is not a rate"):
        compat.load_wav(WAV, 0)
    for nothing in (None, "", 5):
        with pytest.raises(InvalidRequest, match=f"model_dir: {nothing!r} is not a folder"):
            compat.CosyVoice2(nothing)
    assert (samples.shape, samples.dtype) == ((1, 19_200), torch.float32)
    with open(WAV, "rb") as file:
        assert np.array_equal(speech(file), speech(WAV))
    assert np.array_equal(speech(Path(WAV)), speech(WAV))
    assert np.array_equal(speech(samples[0]), speech(samples))
    assert np.array_equal(
        compat.load_wav(WAV, 24_000)[0].numpy(), soundfile.read(WAV, dtype="float32")[0].astype(np.float32)
    )


def test_text_that_arrives(cosyvoice):
    asked = []

    def written():
        asked.append(True)
        yield from ("Hello there, ", "how are ", "you?")

    seeded(4)
    pieces = cosyvoice.inference_zero_shot(written(), SAID, WAV)
    assert not asked  # a program may start what writes the text after this call
    (whole,) = pieces
    seeded(4)
    chunks = list(cosyvoice.inference_zero_shot(written(), SAID, WAV, stream=True))
    assert len(chunks) > 1
    assert np.array_equal(joined([whole]), joined(chunks))


def test_text_as_it_is_written(cosyvoice):
    def speech(text, text_frontend):
        seeded(5)
        return joined(cosyvoice.inference_zero_shot(text, "I am 42.", WAV, text_frontend=text_frontend))

    assert np.array_equal(speech("It is eleven forty two.", True), speech("It is 11:42.", True))
    assert not np.array_equal(speech("It is 11:42.", False), speech("It is 11:42.", True))
    seeded(5)
    plain = cosyvoice.inference_zero_shot("It is 11:42.", "I am forty-two.", WAV, text_frontend=False)
    assert not np.array_equal(speech("It is 11:42.", False), joined(plain))  # the prompt is not read out either
    text = LONG[:MAX_SEGMENT_TOKENS]  # babble has a token for each letter
    assert len(list(cosyvoice.inference_sft(text, "babble-a", text_frontend=False))) == 1
    assert len(list(cosyvoice.inference_sft(text, "babble-a"))) > 1


def test_voice_conversion(cosyvoice, tts):
    source = str(DATA / "audio" / "speech_22k_int16.wav")
    seed = seeded(6)
    (whole,) = cosyvoice.inference_vc(source, WAV, speed=1.25)
    assert np.array_equal(joined([whole]), tts.convert(Path(source), Path(WAV), speed=1.25, seed=seed).samples)
    chunks = list(cosyvoice.inference_vc(compat.load_wav(source, 16_000), WAV, stream=True))
    assert len(chunks) > 1
    assert abs(joined(chunks).size - 1.25 * joined([whole]).size) < 2_000


def test_a_generator_that_is_dropped_frees_its_slot(cosyvoice, monkeypatch):
    monkeypatch.setattr(compat, "SpeakOptions", SpeakOptions)
    engine = cosyvoice._tts[True].engine
    for text in (LONG, iter([LONG, LONG])):
        for stream in (True, False):
            pieces = cosyvoice.inference_sft(text, "babble-a", stream=stream)
            if stream:
                assert next(pieces)["tts_speech"].numel()
                assert not engine.idle
            del pieces
            until = time.monotonic() + LATE_S
            while not engine.idle:
                assert time.monotonic() < until
                time.sleep(0.01)


def test_several_threads(cosyvoice):
    made: dict[str, np.ndarray] = {}

    def speak(text: str) -> None:
        made[text] = joined(cosyvoice.inference_sft(text, "babble-a", stream=True))

    threads = [threading.Thread(target=speak, args=(text,)) for text in ("One, two, three.", "Four, five, six.")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATE_S)
    assert [one.size for one in made.values()] == [20 * 960, 20 * 960]


def test_speakers_are_added_and_saved_beside_those_that_are_there(folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(folders[V2], folder)
    before = {"中文女": {"embedding": torch.ones(1, 192), "speech_feat": torch.rand(1, 30, 80)}}
    torch.save(before, folder / "spk2info.pt")
    os.chmod(folder / "spk2info.pt", 0o640)
    cosyvoice = compat.CosyVoice2(folder)
    assert cosyvoice.list_available_spks() == cosyvoice.list_avaliable_spks() == ["中文女"]
    assert cosyvoice.add_zero_shot_spk(SAID, compat.load_wav(WAV, 16_000), "me") is True
    assert cosyvoice.list_available_spks() == ["中文女", "me"]
    seeded(7)
    first = joined(cosyvoice.inference_zero_shot("Hello.", "", "", zero_shot_spk_id="me"))
    cosyvoice.save_spkinfo()

    saved = torch.load(folder / "spk2info.pt", weights_only=True)
    assert list(saved) == ["中文女", "me"]
    assert all(torch.equal(saved["中文女"][key], value) for key, value in before["中文女"].items())
    assert {"prompt_text", "llm_embedding", "flow_prompt_speech_token", "prompt_speech_feat"} <= set(saved["me"])
    assert (folder / "spk2info.pt").stat().st_mode & 0o777 == 0o640
    again = compat.AutoModel(model_dir=str(folder))
    assert again.list_available_spks() == ["中文女", "me"]
    seeded(7)
    assert np.array_equal(joined(again.inference_zero_shot("Hello.", "", "", "me")), first)
    for pieces in (
        again.inference_cross_lingual("Hello.", "", zero_shot_spk_id="me"),
        again.inference_instruct2("Hello.", "slowly", "", zero_shot_spk_id="me"),
        again.inference_sft("Hello.", "me"),
    ):
        assert joined(pieces).size == 20 * 960


def test_a_folder_without_speakers_gets_its_first(folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(folders[V2], folder)
    (folder / "spk2info.pt").unlink()
    cosyvoice = compat.AutoModel(folder)
    assert cosyvoice.list_available_spks() == []
    with pytest.raises(VoiceNotFound, match="'中文女' is not registered"):
        next(cosyvoice.inference_sft("Hello.", "中文女"))
    cosyvoice.add_zero_shot_spk(SAID, WAV, "me")
    cosyvoice.save_spkinfo()
    assert list(torch.load(folder / "spk2info.pt", weights_only=True)) == ["me"]


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (VoiceNotFound, "voice: 'nobody' is not registered", lambda c: next(c.inference_sft("Hi.", "nobody"))),
        (
            VoiceNotFound,
            "voice: 'nobody' is not registered",
            lambda c: next(c.inference_zero_shot("Hi.", "", "", zero_shot_spk_id="nobody")),
        ),
        (InvalidAudio, "'no.wav' does not exist", lambda c: next(c.inference_zero_shot("Hi.", SAID, "no.wav"))),
        (InvalidAudio, "prompt_wav: is empty; give", lambda c: next(c.inference_cross_lingual("Hi.", ""))),
        (InvalidAudio, "prompt_wav: is empty; give", lambda c: next(c.inference_cross_lingual("Hi.", None))),
        (InvalidRequest, "needs the reference's transcript", lambda c: next(c.inference_zero_shot("Hi.", "", WAV))),
        (InvalidRequest, "speed: 3.0 is outside", lambda c: next(c.inference_sft("Hi.", "babble-a", speed=3.0))),
        (InvalidText, "NoneType is not text", lambda c: next(c.inference_sft(None, "babble-a"))),
        (InvalidRequest, "zero_shot_spk_id: 5 is of type int", lambda c: c.add_zero_shot_spk(SAID, WAV, 5)),
        (InvalidRequest, "spk_id: \\['me'\\] is of type list", lambda c: next(c.inference_sft("Hi.", ["me"]))),
        (InvalidRequest, "zero_shot_spk_id: is empty", lambda c: c.add_zero_shot_spk(SAID, WAV, "")),
        (
            InvalidRequest,
            "inference_instruct: CosyVoice2 has no such mode; use inference_instruct2",
            lambda c: c.inference_instruct("Hi.", "babble-a", "slowly"),
        ),
        (
            InvalidRequest,
            "inference_instruct2: CosyVoice has no such mode",
            lambda c: compat.CosyVoice.inference_instruct2(c, "Hi.", "slowly", WAV),
        ),
        (InvalidAudio, "wav: has 8000 Hz, at least 16000 are needed", lambda _: compat.load_wav("8k.wav", 16_000)),
    ],
)
def test_what_cannot_be_done(cosyvoice, error, message, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write("8k.wav", np.zeros(8_000, np.float32), 8_000)
    with pytest.raises(error, match=message) as caught:
        call(cosyvoice)
    assert isinstance(caught.value, VivavoceError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "  ", "……", "!?", iter([""])])
def test_nothing_to_say_gives_no_piece_and_a_warning(cosyvoice, text, caplog):
    assert list(cosyvoice.inference_sft(text, "babble-a")) == []
    assert any(message.startswith("nothing spoken: text: ") for message in caplog.messages)


NO_CUDA = "official flags: {}: without a CUDA device it is set to False"


def test_flags_change_nothing_for_cosyvoice_1(folders, caplog):
    cosyvoice = compat.CosyVoice(folders[V1], True, True, True, 4)
    assert [record.getMessage() for record in caplog.records if record.name == "vivavoce.compat"] == [
        "official flags: load_jit, load_trt: they have no effect on vivavoce's own engine",
        NO_CUDA.format("fp16"),
    ]
    assert (cosyvoice.fp16, cosyvoice.sample_rate) == (False, RATES[V1])
    assert cosyvoice.model_dir == str(folders[V1])


def test_keywords_of_former_versions_are_taken_with_a_warning(folders, caplog):
    old = compat.CosyVoice2(folders[V2], load_jit=False, load_onnx=False, load_trt=False, use_flow_cache=True)
    wav = compat.load_wav(WAV, 16_000)
    assert len(joined(old.inference_zero_shot("Hi.", SAID, prompt_speech_16k=wav)))
    assert len(joined(old.inference_cross_lingual("Hi.", prompt_speech_16k=wav)))
    assert len(joined(old.inference_instruct2("Hi.", "Be calm.", prompt_speech_16k=wav)))
    assert len(joined(old.inference_vc(source_speech_16k=wav, prompt_speech_16k=wav)))
    assert old.add_zero_shot_spk(SAID, prompt_speech_16k=wav, zero_shot_spk_id="me")
    told = [record.getMessage() for record in caplog.records if record.name == "vivavoce.compat"]
    assert sorted(told[:2]) == [
        f"old keyword: {name} has no effect; leave it out" for name in ("load_onnx", "use_flow_cache")
    ]
    assert told[2:].count("old keyword: prompt_speech_16k is called prompt_wav now") == 5
    assert told.count("old keyword: source_speech_16k is called source_wav now") == 1
    with pytest.raises(TypeError, match="use_flow_cash"):
        compat.CosyVoice2(folders[V2], use_flow_cash=True)
    with pytest.raises(TypeError, match="both prompt_speech_16k and prompt_wav"):
        old.inference_vc(wav, prompt_wav=wav, prompt_speech_16k=wav)


def test_a_class_reads_its_own_yaml(folders, tmp_path):
    folder = shutil.copytree(folders[V2], tmp_path / "mine")
    (folder / "cosyvoice.yaml").write_text("sample_rate: 22050\n")
    for official in (compat.CosyVoice2, compat.AutoModel):
        assert official(folder).sample_rate == 24_000
    with pytest.raises(InvalidRequest, match=r"mine holds cosyvoice2\.yaml, which is not for CosyVoice;"):
        compat.CosyVoice(folder)


class Loaded(Exception):
    """With the settings that a model was loaded with."""


@pytest.mark.parametrize(
    ("official", "generation", "flags", "device", "chosen", "told"),
    [
        (compat.CosyVoice2, V2, (True,), "cpu", {"flow_backend": "jit"}, ()),
        (compat.CosyVoice2, V2, (True, True, True, True, 4), "cpu",
         {"lm_backend": "vllm", "flow_backend": "jit"}, ("fp16", "load_trt")),
        (compat.CosyVoice2, V2, (True, True, False, True, 4), "cuda",
         {"flow_backend": "tensorrt", "trt_concurrent": 4}, ()),
        (compat.CosyVoice2, V2, (False, False, False, True, 4), "cuda", {}, ()),
        (compat.CosyVoice3, V3, (True, True, True, 2), "cuda",
         {"lm_backend": "vllm", "flow_backend": "tensorrt", "trt_concurrent": 2}, ()),
        (compat.CosyVoice3, V3, (False, False), "cpu", {}, ()),
    ],
)  # fmt: skip
def test_flags_choose_backends_in_the_original_s_order(
    official, generation, flags, device, chosen, told, folders, caplog, monkeypatch
):
    def load(*_, settings, **__):
        raise Loaded(settings)

    monkeypatch.setattr(compat, "choose_device", lambda name: torch.device(device))
    monkeypatch.setattr(compat, "load_model", load)
    with pytest.raises(Loaded) as loaded:
        official(folders[generation], *flags, trust_model_code=True)
    assert loaded.value.args == (EngineSettings(**chosen, trust_model_code=True),)
    messages = [record.getMessage() for record in caplog.records if record.name == "vivavoce.compat"]
    assert messages == [NO_CUDA.format(name) for name in told]


def test_load_jit_runs_what_was_exported(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    folder = Path(shutil.copytree(folders[V2], tmp_path / "CosyVoice2-0.5B"))
    models = build_models(folder, torch.device("cpu"))
    export_part(part_of(models, "estimator"), "jit", folder)
    cosyvoice = compat.CosyVoice2(folder, load_jit=True)
    assert isinstance(cosyvoice._tts[True].engine.stages.flow.path.estimator, ExportedEstimator)
    (piece,) = cosyvoice.inference_sft("Hello.", "babble-a")
    assert piece["tts_speech"].isfinite().all()


def test_automodel_takes_the_class_of_the_folder_and_its_flags(folders):
    cosyvoice = compat.AutoModel(model_dir=str(folders[V3]), load_trt=False, load_vllm=False, fp16=False)
    assert type(cosyvoice) is compat.CosyVoice3
    assert isinstance(cosyvoice, compat.CosyVoice2)
    assert isinstance(cosyvoice, compat.CosyVoice)
    with pytest.raises(TypeError, match="load_jit"):  # as officially: its class has no such flag
        compat.AutoModel(model_dir=folders[V3], load_jit=True)


def test_the_wrong_class_and_no_folder(folders, tmp_path):
    with pytest.raises(InvalidRequest) as caught:
        compat.CosyVoice3(folders[V2])
    assert str(caught.value) == (
        "model_dir: CosyVoice2-0.5B holds cosyvoice2.yaml, which is not for CosyVoice3; use CosyVoice2, or AutoModel"
    )
    with pytest.raises(ModelNotFound, match="'pretrained_models/mine' is neither a folder"):
        compat.AutoModel(model_dir="pretrained_models/mine")


@pytest.mark.parametrize(
    ("model_dir", "name", "source"),
    [
        ("pretrained_models/CosyVoice2-0.5B", "CosyVoice2-0.5B", "hf"),
        ("CosyVoice2-0.5B", "CosyVoice2-0.5B", "hf"),
        ("FunAudioLLM/CosyVoice2-0.5B", "CosyVoice2-0.5B", "hf"),
        ("iic/CosyVoice2-0.5B", "CosyVoice2-0.5B", "modelscope"),
        ("pretrained_models/Fun-CosyVoice3-0.5B", "Fun-CosyVoice3-0.5B", "hf"),
        ("FunAudioLLM/Fun-CosyVoice3-0.5B-2512", "Fun-CosyVoice3-0.5B", "modelscope"),
    ],
)
def test_a_published_model_is_fetched_where_its_folder_is_missing(model_dir, name, source, tmp_path, monkeypatch):
    def download(*asked: str, **how: str) -> Path:
        raise DownloadError(f"asked for {asked} {how}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compat, "download", download)
    with pytest.raises(DownloadError) as caught:
        compat.AutoModel(model_dir)
    assert str(caught.value) == f"asked for {(name,)} {{'source': '{source}'}}"


def test_the_engine_ends_with_its_object(folders):
    def engines() -> int:
        return sum(thread.name == "vivavoce-engine" for thread in threading.enumerate())

    before = engines()
    cosyvoice = compat.AutoModel(folders[V2])
    assert joined(cosyvoice.inference_sft("Hello.", "babble-a")).size
    assert engines() == before + 1
    del cosyvoice
    gc.collect()
    until = time.monotonic() + LATE_S
    while engines() > before:
        assert time.monotonic() < until
        time.sleep(0.01)
