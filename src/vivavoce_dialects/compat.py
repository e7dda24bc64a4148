"""CosyVoice's own Python interface: a script written for it runs here after a change of its import lines.

    from vivavoce.compat import AutoModel

    cosyvoice = AutoModel(model_dir="pretrained_models/CosyVoice2-0.5B")
    for i, j in enumerate(cosyvoice.inference_zero_shot("Hello.", "What I say there.", "me.wav")):
        torchaudio.save(f"{i}.wav", j["tts_speech"], cosyvoice.sample_rate)

Names, arguments and results are those of https://github.com/FunAudioLLM/CosyVoice, as its README and examples show
them; docs/from-cosyvoice.md lists the differences.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import SPEAKERS, YAML_OF, detect_generation
from vivavoce.checkpoint.known_models import known_model
from vivavoce.engine.chunk_policy import policy_for
from vivavoce.engine.request import AudioChunk, EngineRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import (
    DownloadError,
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    ModelNotFound,
    VivavoceError,
    check_kind,
)
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import choose_device, choose_dtype, count_text_processes, model_folder
from vivavoce.frontend.session import RequestSession
from vivavoce.frontend.speech import Mode, SpeakOptions
from vivavoce.frontend.speech_options import MAX_SEED
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.names import unknown_voice
from vivavoce.frontend.voices.voice import Voice, built_in_voices, voices_to_spk2info
from vivavoce.models.features import SAMPLE_RATE
from vivavoce_hub.download import download

log = logging.getLogger("vivavoce.compat")  # scripts import this module by that name

Folder = str | Path
Text = str | Iterable[str]
"""A text, or a generator of its pieces: speech is made while they arrive."""
Prompt = str | Path | BinaryIO | Tensor
"""A recording: a path, an open file, or 16 kHz samples [1, n] as `load_wav` gives them."""
Pieces = Generator[dict[str, Tensor], None, None]
"""Dicts with the audio under "tts_speech": [1, n] float32 on the CPU."""
_Chunks = Generator[AudioChunk, None, None] | RequestSession


_OLD_KEYWORDS = {"prompt_speech_16k": "prompt_wav", "source_speech_16k": "source_wav"}
_DROPPED_KEYWORDS = ("load_onnx", "use_flow_cache")
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _with_old_keywords(call: _Call) -> _Call:
    """Accept the keywords of older CosyVoice versions, too, and log a warning for each."""

    @functools.wraps(call)
    def taking(*given: Any, **keywords: Any) -> Any:
        for old in keywords.keys() & {*_OLD_KEYWORDS, *_DROPPED_KEYWORDS}:
            new, value = _OLD_KEYWORDS.get(old), keywords.pop(old)
            if new is None:
                log.warning("old keyword: %(old)s has no effect; leave it out", {"old": old})
            elif new in keywords:
                raise TypeError(f"{call.__name__}() has both {old} and {new}, its new name; leave {old} out")
            else:
                log.warning("old keyword: %(old)s is called %(new)s now", {"old": old, "new": new})
                keywords[new] = value
        return call(*given, **keywords)

    return cast(_Call, taking)


class CosyVoice:
    """A model of the first generation, such as CosyVoice-300M; the base of the other generations.

    The methods that speak are generators: nothing happens before the first `next`. With stream=False they yield the
    audio of each text segment, with stream=True chunks, as soon as they are made. Closing or dropping a generator
    cancels its speech. One object serves any number of threads, whose work is batched; its engine stops when the object
    is deleted. Each call draws its seed from torch's generator.

    model_dir: an official folder, or a published model's name or id, which is downloaded if it is missing; fp16: use
    float16 on CUDA (the default there), without effect elsewhere; load_jit, load_trt: the flow's backends jit and
    tensorrt (if both are given: tensorrt, with trt_concurrent contexts); load_vllm: the language model's backend vllm;
    see docs/backends.md. As in the official code, load_trt is False without CUDA. For CosyVoice 1 these flags change
    nothing, and a warning is logged. trust_model_code: run code of the folder that was not exported on this machine.
    VivavoceError: the folder is of another generation, or cannot be used.
    """

    _generation = Generation.V1

    @_with_old_keywords
    def __init__(
        self, model_dir: Folder, load_jit: bool = False, load_trt: bool = False, fp16: bool = False,
        trt_concurrent: int = 1, *, trust_model_code: bool = False,
    ) -> None:  # fmt: skip
        flags = {"load_jit": load_jit, "load_trt": load_trt}
        self._load(model_dir, fp16, trt_concurrent, trust_model_code, **flags)

    def _load(self, model_dir: Folder, fp16: bool, trt_concurrent: int, trust: bool, **flags: bool) -> None:
        folder, device = _find_folder(model_dir), choose_device("auto")
        generation = detect_generation(folder)
        if generation is not self._generation:
            raise InvalidRequest(
                f"model_dir: {folder.name} holds {YAML_OF[generation]}, which is not for {type(self).__name__}; use "
                f"{_CLASSES[generation].__name__}, or AutoModel"
            )
        given = {name for name, value in flags.items() if value}
        if given and generation is Generation.V1:
            ignored = {"flags": ", ".join(sorted(given))}
            log.warning("official flags: %(flags)s: they have no effect on vivavoce's own engine", ignored)
            given.clear()
        if device.type != "cuda":
            for name in sorted(given & {"load_trt"} | ({"fp16"} if fp16 else set())):
                log.warning("official flags: %(name)s: without a CUDA device it is set to False", {"name": name})
            given.discard("load_trt")
            fp16 = False
        flow = "tensorrt" if "load_trt" in given else "jit" if "load_jit" in given else "torch"
        settings = EngineSettings(
            lm_backend="vllm" if "load_vllm" in given else "torch",
            flow_backend=flow,
            trt_concurrent=trt_concurrent if flow == "tensorrt" else 1,
            trust_model_code=trust,
        )
        dtype = choose_dtype("float16" if fp16 else "auto", device, folder)
        processes = count_text_processes(None, device, 0)
        engine, front_end = load_model(folder, (device,), dtype, settings=settings, text_processes=processes)
        front_end = replace(front_end, extractor=replace(front_end.extractor, as_recorded=True))
        text = front_end.text.as_written()
        plain = replace(front_end, text=text, extractor=replace(front_end.extractor, text=text))
        # The key is text_frontend: True normalises and splits texts, False speaks them as they are written.
        self._tts = {True: Vivavoce(engine, front_end), False: Vivavoce(engine, plain)}
        self._folder, self._voices, self._added = folder, built_in_voices(folder), dict[str, Voice]()
        self.model_dir, self.fp16, self.sample_rate = str(model_dir), fp16, self._tts[True].sample_rate

    def list_available_spks(self) -> list[str]:
        """The names of the model's speakers and of added ones."""
        return list(self._voices)

    list_avaliable_spks = list_available_spks  # the official code's first spelling

    @_with_old_keywords
    def add_zero_shot_spk(self, prompt_text: str, prompt_wav: Prompt, zero_shot_spk_id: str) -> bool:
        """Add the voice of a recording under a name. Other objects of the folder have it after `save_spkinfo`."""
        check_kind("zero_shot_spk_id", zero_shot_spk_id, str, "give the speaker a name")
        if not zero_shot_spk_id:
            raise InvalidRequest("zero_shot_spk_id: is empty; give the speaker a name")
        voice = self._voice(prompt_wav, prompt_text).named(zero_shot_spk_id)
        self._voices[zero_shot_spk_id] = self._added[zero_shot_spk_id] = voice
        return True

    def save_spkinfo(self) -> None:
        """Write the added speakers into the folder's spk2info.pt, and keep the speakers that are there already."""
        voices_to_spk2info(self._added.values(), self._folder / SPEAKERS, keep=True)

    def inference_sft(
        self, tts_text: Text, spk_id: str, stream: bool = False, speed: float = 1.0, text_frontend: bool = True
    ) -> Pieces:
        """Speak as one of the model's speakers; only the speaker's embedding is used."""
        yield from self._speak(tts_text, self._named(spk_id), stream, speed, text_frontend, Mode.SFT)

    @_with_old_keywords
    def inference_zero_shot(
        self, tts_text: Text, prompt_text: str, prompt_wav: Prompt, zero_shot_spk_id: str = "",
        stream: bool = False, speed: float = 1.0, text_frontend: bool = True,
    ) -> Pieces:  # fmt: skip
        """Speak with the voice and manner of a recording with the transcript prompt_text, or of an added speaker."""
        voice = self._voice(prompt_wav, prompt_text, zero_shot_spk_id, text_frontend)
        yield from self._speak(tts_text, voice, stream, speed, text_frontend, Mode.ZERO_SHOT)

    @_with_old_keywords
    def inference_cross_lingual(
        self, tts_text: Text, prompt_wav: Prompt, zero_shot_spk_id: str = "",
        stream: bool = False, speed: float = 1.0, text_frontend: bool = True,
    ) -> Pieces:  # fmt: skip
        """Speak with the voice of a recording in any language, or of an added speaker."""
        voice = self._voice(prompt_wav, "", zero_shot_spk_id)
        yield from self._speak(tts_text, voice, stream, speed, text_frontend, Mode.CROSS_LINGUAL)

    def inference_instruct(
        self, tts_text: Text, spk_id: str, instruct_text: str,
        stream: bool = False, speed: float = 1.0, text_frontend: bool = True,
    ) -> Pieces:  # fmt: skip
        """Speak as one of the model's speakers, in the way that instruct_text describes."""
        yield from self._speak(
            tts_text, self._named(spk_id), stream, speed, text_frontend, Mode.INSTRUCT, instruct_text
        )

    def inference_instruct2(self, *_: Any, **__: Any) -> Pieces:
        """Always raises InvalidRequest: only models of later generations have this mode."""
        raise InvalidRequest(
            "inference_instruct2: CosyVoice has no such mode; use inference_instruct, or a later model"
        )

    @_with_old_keywords
    def inference_vc(self, source_wav: Prompt, prompt_wav: Prompt, stream: bool = False, speed: float = 1.0) -> Pieces:
        """Repeat the words of source_wav (30 s at most) in the voice of prompt_wav."""
        tts, seed = self._tts[True], int(torch.randint(MAX_SEED, ()))
        source, voice = _recording(source_wav), self._voice(prompt_wav)
        request = tts.front_end.plan_conversion(source, voice, speed, seed)
        policy = policy_for(self._generation, None) if stream else None
        yield from _pieces(iter(tts.engine.submit(EngineRequest((request,), policy))), stream)

    def _named(self, spk_id: str) -> Voice:
        check_kind("spk_id", spk_id, str, "give the name of a speaker")
        if spk_id not in self._voices:
            raise unknown_voice(spk_id, self._voices)
        return self._voices[spk_id]

    def _voice(self, wav: Prompt, says: str = "", spk_id: str = "", text_frontend: bool = True) -> Voice:
        return self._named(spk_id) if spk_id else self._tts[text_frontend].voice(_recording(wav), says)

    def _speak(
        self, text: Text, voice: Voice, stream: bool, speed: float, text_frontend: bool, mode: Mode, instruct: str = ""
    ) -> Pieces:
        tts, seed = self._tts[text_frontend], int(torch.randint(MAX_SEED, ()))
        how: dict[str, Any] = {"reading": "official", "guard": False}  # as the official code does
        options = SpeakOptions(mode=mode, instruct=instruct or None, speed=speed, seed=seed, **how)
        try:
            if stream or not isinstance(text, str):  # the pieces of a generator arrive while speech is made
                chunks: _Chunks = tts.stream(text, voice, options=options)
            else:
                requests = tts.front_end.requests(text, voice, options)
                chunks = iter(tts.engine.submit(EngineRequest(tuple(requests))))
            yield from _pieces(chunks, stream)
        except InvalidText as error:
            if not error.nothing_to_say:
                raise
            log.warning("nothing spoken: %(error)s", {"error": error})


class CosyVoice2(CosyVoice):
    """A model of the second generation, CosyVoice2-0.5B; see `CosyVoice`."""

    _generation = Generation.V2

    @_with_old_keywords
    def __init__(
        self, model_dir: Folder, load_jit: bool = False, load_trt: bool = False, load_vllm: bool = False,
        fp16: bool = False, trt_concurrent: int = 1, *, trust_model_code: bool = False,
    ) -> None:  # fmt: skip
        flags = {"load_jit": load_jit, "load_trt": load_trt, "load_vllm": load_vllm}
        self._load(model_dir, fp16, trt_concurrent, trust_model_code, **flags)

    def inference_instruct(self, *_: Any, **__: Any) -> Pieces:
        """Always raises InvalidRequest: only models of the first generation have this mode."""
        raise InvalidRequest(f"inference_instruct: {type(self).__name__} has no such mode; use inference_instruct2")

    @_with_old_keywords
    def inference_instruct2(
        self, tts_text: Text, instruct_text: str, prompt_wav: Prompt, zero_shot_spk_id: str = "",
        stream: bool = False, speed: float = 1.0, text_frontend: bool = True,
    ) -> Pieces:  # fmt: skip
        """Speak with the voice of a recording or of an added speaker, in the way that instruct_text describes."""
        voice = self._voice(prompt_wav, "", zero_shot_spk_id)
        yield from self._speak(tts_text, voice, stream, speed, text_frontend, Mode.INSTRUCT, instruct_text)


class CosyVoice3(CosyVoice2):
    """A model of the third generation, Fun-CosyVoice3-0.5B; see `CosyVoice`."""

    _generation = Generation.V3

    @_with_old_keywords
    def __init__(
        self, model_dir: Folder, load_trt: bool = False, load_vllm: bool = False, fp16: bool = False,
        trt_concurrent: int = 1, *, trust_model_code: bool = False,
    ) -> None:  # fmt: skip
        self._load(model_dir, fp16, trt_concurrent, trust_model_code, load_trt=load_trt, load_vllm=load_vllm)


_CLASSES = {Generation.V1: CosyVoice, Generation.V2: CosyVoice2, Generation.V3: CosyVoice3}


def AutoModel(model_dir: Folder, **flags: Any) -> CosyVoice:  # noqa: N802 - the official name
    """Load a folder of any generation; flags: arguments of the generation's class."""
    folder = _find_folder(model_dir)
    return _CLASSES[detect_generation(folder)](folder, **flags)


def load_wav(wav: str | Path | BinaryIO, target_sr: int, min_sr: int = 16_000) -> Tensor:
    """Return mono samples [1, n] float32 at target_sr. InvalidAudio: unreadable file, or its rate is below min_sr."""
    if not isinstance(target_sr, int) or target_sr < 1:
        raise InvalidRequest(f"target_sr: {target_sr!r} is not a rate; give one in hertz, such as 16000")
    audio = decode_audio(wav, field="wav")
    if audio.sample_rate < min_sr and audio.sample_rate != target_sr:
        raise InvalidAudio(f"wav: has {audio.sample_rate} Hz, at least {min_sr} are needed; record it at a higher rate")
    return resample_sinc(torch.from_numpy(audio.samples)[None], audio.sample_rate, target_sr)


def set_all_random_seed(seed: int) -> None:
    """Seed Python, NumPy and torch; speech draws its seeds from torch's generator."""
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(seed)


def _pieces(chunks: _Chunks, stream: bool) -> Pieces:
    with closing(chunks):
        for _, together in groupby(chunks, key=lambda chunk: chunk.index if stream else chunk.segment):
            samples = np.concatenate([chunk.samples for chunk in together])
            if len(samples):
                yield {"tts_speech": torch.from_numpy(samples)[None]}


def _recording(wav: Prompt) -> AudioSource:
    if wav is None or (isinstance(wav, str) and not wav):
        raise InvalidAudio("prompt_wav: is empty; give a recording, or a speaker's name as zero_shot_spk_id")
    return Path(wav) if isinstance(wav, str) else (wav, SAMPLE_RATE) if isinstance(wav, Tensor) else wav


def _find_folder(model_dir: Folder) -> Path:
    """Return the folder; if it does not exist, download the published model named like the path's last part."""
    if not model_dir or not isinstance(model_dir, (str, Path)):
        raise InvalidRequest(f"model_dir: {model_dir!r} is not a folder; give one, or the name of a published model")
    try:
        return model_folder(model_dir)
    except (ModelNotFound, DownloadError):
        try:
            known = known_model(Path(model_dir).name)
        except VivavoceError:
            known = None
        if known is None:
            raise
    log.warning("model folder: %(folder)s does not exist; using the published model", {"folder": str(model_dir)})
    return download(known.name, source="modelscope" if str(model_dir) == known.modelscope_id else "hf")
