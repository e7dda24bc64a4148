"""What each mode gives to the language model and to the flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from tests.parity.check import Check, Skip, close, equal, equal_ids, guarded
from tests.parity.compare_audio import compare_mels
from tests.parity.reference import Golden, Reference
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, read_spk2info, write_spk2info
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidAudio
from vivavoce.frontend.front_end import FrontEnd, load_front_end
from vivavoce.frontend.modes import CONVERSION, condition
from vivavoce.frontend.speech import Mode, SpeakOptions
from vivavoce.frontend.voices.voice import Voice

T = TypeVar("T")
LLM_PROMPT, FLOW_PROMPT, SOURCE = "llm_prompt_speech_token", "flow_prompt_speech_token", "source_speech_token"


def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    front_end = load_front_end(reference.folder(*golden.checkpoint))
    for case, settings in golden.meta["cases"].items():
        name = f"{golden.label} {case}"
        if "inputs" in settings:
            yield from guarded(name, _inputs(name, settings["inputs"], golden, reference, front_end))
        else:
            yield _saved_keys(name, settings["keys"], front_end)


def _inputs(
    name: str, inputs: dict[str, Any], golden: Golden, reference: Reference, front_end: FrontEnd
) -> Iterator[Check]:
    for field, description in inputs.items():
        if field.endswith("_len"):
            length = int(golden.arrays[description["array"]][0])
            yield equal(f"{name} {field}", length, inputs[field.removesuffix("_len")]["shape"][1])
    wanted = {field: golden.arrays[d["array"]] for field, d in inputs.items() if not field.endswith("_len")}
    ours = _ours(wanted, golden, reference, front_end)
    yield equal(f"{name} fields", sorted(ours), sorted(wanted))
    for field, theirs in wanted.items():
        if field not in ours:
            continue
        if theirs.dtype.kind == "i":
            yield equal_ids(f"{name} {field}", ours[field], theirs.reshape(-1))
        elif "embedding" in field:
            yield close(f"{name} {field}", ours[field], theirs[0], 1e-4)
        else:
            yield from compare_mels(f"{name} {field}", ours[field], torch.from_numpy(theirs[0]))


def _ours(wanted: dict[str, Any], golden: Golden, reference: Reference, front_end: FrontEnd) -> dict[str, Any]:
    conversion = SOURCE in wanted
    if FLOW_PROMPT in wanted:
        count = wanted[FLOW_PROMPT].shape[1]
        voices = _usable(lambda path: _voice(path, golden, front_end, not conversion), reference)
        voice = min(voices, key=lambda v: (abs(len(v.speech_tokens) - count), _differing(v, wanted)))
    else:
        speakers = read_spk2info(front_end.folder / "spk2info.pt").values()
        theirs = torch.from_numpy(wanted["flow_embedding"][0])
        voice = Voice(min((s.embedding for s in speakers), key=lambda e: (e - theirs).abs().max()), "")
    mode, instruct = Mode.CROSS_LINGUAL, None
    if LLM_PROMPT in wanted:
        mode = Mode.ZERO_SHOT
    elif "prompt_text" in wanted:
        mode, instruct = Mode.INSTRUCT, golden.meta["instruct_text"]
        if golden.meta["generation"] == "v1":  # that of the others: what was said to this one is in the ids alone
            instruct = front_end.text._tokenizer.decode(wanted["prompt_text"].reshape(-1).tolist())
    elif FLOW_PROMPT not in wanted:
        mode = Mode.SFT
    told = condition(voice, CONVERSION)
    if not conversion:
        told = front_end.conditioning(voice, SpeakOptions(mode=mode, instruct=instruct))
    ours = _fields(told, "prompt_text" in wanted)
    if (
        not conversion and golden.meta["generation"] != "v1"
    ):  # the official front end gives it to a language model that does not read it
        ours["llm_embedding"] = told.embedding
    if conversion:
        sources = _usable(replace(front_end.extractor, as_recorded=True).speech_tokens, reference)
        ours[SOURCE] = min(sources, key=lambda ids: abs(len(ids) - wanted[SOURCE].shape[1]))
    else:
        said = golden.meta["tts_text"]
        segments = (s for text in ([said] if isinstance(said, str) else said) for s in front_end.text.segments(text))
        theirs = tuple(wanted["text"].reshape(-1).tolist())
        encoded = [front_end.text.encode(segment) for segment in segments]
        # Where there is no other prompt, the official code's callers write the system prompt before the text.
        with_system = [] if "prompt_text" in wanted else [told.lm_system_text + ids for ids in encoded]
        ours["text"] = theirs if theirs in [*encoded, *with_system] else encoded[0]
    return ours


def _usable(read: Callable[[Path], T], reference: Reference) -> list[T]:
    """What can be read of the recordings; some may be there to be refused."""
    found = []
    for path in reference.wavs():
        with suppress(InvalidAudio):
            found.append(read(path))
    return found


def _differing(voice: Voice, wanted: dict[str, Any]) -> float:
    """How far a voice's embedding is from the recorded one: recordings may be of one length."""
    theirs = torch.from_numpy(wanted["flow_embedding"][0])
    return float((voice.embedding - theirs).abs().max())


def _voice(path, golden: Golden, front_end: FrontEnd, align: bool) -> Voice:
    return replace(front_end.extractor, as_recorded=True).extract(path, golden.meta["prompt_text"], align=align)


def _fields(conditioning: Conditioning, prompted: bool) -> dict[str, Any]:
    fields = {
        "prompt_text": conditioning.lm_text if prompted else conditioning.lm_prompt_text,
        LLM_PROMPT: conditioning.lm_prompt_tokens,
        FLOW_PROMPT: conditioning.flow_tokens,
        "prompt_speech_feat": conditioning.flow_mel,
        "flow_embedding": conditioning.embedding,
    }
    if conditioning.lm_embedding is not None:
        fields["llm_embedding"] = conditioning.lm_embedding
    return {field: value for field, value in fields.items() if len(value)}


def _saved_keys(name: str, keys: list[str], front_end: FrontEnd) -> Check:
    ids = torch.zeros(2, dtype=torch.int32)
    entry = SpeakerEntry(torch.zeros(192), SavedPrompt(ids, ids, ids, torch.zeros(4, 80)))
    path = front_end.folder / "saved.pt"
    write_spk2info(path, {"x": entry})
    return equal(f"{name} keys", sorted(torch.load(path, weights_only=True)["x"]), sorted(keys))
