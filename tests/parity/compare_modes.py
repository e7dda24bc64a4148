"""What each mode gives to the language model and to the flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.parity.check import Check, Skip, close, equal, equal_ids, guarded
from tests.parity.reference import Golden, Reference
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, read_spk2info, write_spk2info
from vivavoce.engine.request import Conditioning
from vivavoce.service.modes import Mode, condition
from vivavoce.service.synthesizer import Synthesizer
from vivavoce.service.voices.voice import Voice

LLM_PROMPT, FLOW_PROMPT, SOURCE = "llm_prompt_speech_token", "flow_prompt_speech_token", "source_speech_token"


def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    synthesizer = reference.synthesizer(*golden.checkpoint)
    for case, settings in golden.meta["cases"].items():
        name = f"{golden.label} {case}"
        if "inputs" in settings:
            yield from guarded(name, _inputs(name, settings["inputs"], golden, reference, synthesizer))
        else:
            yield _saved_keys(name, settings["keys"], synthesizer)


def _inputs(
    name: str, inputs: dict[str, Any], golden: Golden, reference: Reference, synthesizer: Synthesizer
) -> Iterator[Check]:
    for field, description in inputs.items():
        if field.endswith("_len"):
            length = int(golden.arrays[description["array"]][0])
            yield equal(f"{name} {field}", length, inputs[field.removesuffix("_len")]["shape"][1])
    wanted = {field: golden.arrays[d["array"]] for field, d in inputs.items() if not field.endswith("_len")}
    ours = _ours(wanted, golden, reference, synthesizer)
    yield equal(f"{name} fields", sorted(ours), sorted(wanted))
    for field, theirs in wanted.items():
        if field not in ours:
            continue
        if theirs.dtype.kind == "i":
            yield equal_ids(f"{name} {field}", ours[field], theirs.reshape(-1))
        else:
            yield close(f"{name} {field}", ours[field], theirs[0], 1e-4 if "embedding" in field else 5e-4)


def _ours(wanted: dict[str, Any], golden: Golden, reference: Reference, synthesizer: Synthesizer) -> dict[str, Any]:
    conversion = SOURCE in wanted
    if FLOW_PROMPT in wanted:
        count = wanted[FLOW_PROMPT].shape[1]
        voices = (_voice(path, golden, synthesizer, not conversion) for path in reference.wavs())
        voice = next(voice for voice in voices if abs(len(voice.speech_tokens) - count) <= 1)
    else:
        speakers = read_spk2info(synthesizer.folder / "spk2info.pt").values()
        theirs = torch.from_numpy(wanted["flow_embedding"][0])
        voice = Voice(min((s.embedding for s in speakers), key=lambda e: (e - theirs).abs().max()), "")
    mode, instruction = Mode.CROSS_LINGUAL, ()
    if LLM_PROMPT in wanted:
        mode = Mode.ZERO_SHOT
    elif "prompt_text" in wanted:
        mode = Mode.INSTRUCT
        instruction = synthesizer.instruction(golden.meta["instruct_text"])
    elif FLOW_PROMPT not in wanted:
        mode = Mode.SFT
    ours = _fields(condition(voice, mode, instruction), conversion)
    if conversion:
        tokens = (synthesizer.extractor.speech_tokens(path) for path in reference.wavs())
        ours[SOURCE] = next(ids for ids in tokens if abs(len(ids) - wanted[SOURCE].shape[1]) <= 1)
    else:
        texts = (synthesizer.text.encode(synthesizer.text.segments(t)[0]) for t in golden.meta["tts_text"])
        ours["text"] = next((ids for ids in texts if len(ids) == wanted["text"].shape[1]), ())
    return ours


def _voice(path, golden: Golden, synthesizer: Synthesizer, align: bool) -> Voice:
    return synthesizer.extractor.extract(path, golden.meta["prompt_text"], align=align)


def _fields(conditioning: Conditioning, conversion: bool) -> dict[str, Any]:
    fields = {
        "prompt_text": conditioning.lm_prompt_text,
        LLM_PROMPT: conditioning.lm_prompt_tokens,
        FLOW_PROMPT: conditioning.flow_tokens,
        "prompt_speech_feat": conditioning.flow_mel,
        "flow_embedding": conditioning.embedding,
    }
    if not conversion:  # the official front end gives it to a language model that does not read it
        fields["llm_embedding"] = conditioning.embedding
    return {field: value for field, value in fields.items() if len(value)}


def _saved_keys(name: str, keys: list[str], synthesizer: Synthesizer) -> Check:
    ids = torch.zeros(2, dtype=torch.int32)
    entry = SpeakerEntry(torch.zeros(192), SavedPrompt(ids, ids, ids, torch.zeros(4, 80)))
    path = synthesizer.folder / "saved.pt"
    write_spk2info(path, {"x": entry})
    return equal(f"{name} keys", sorted(torch.load(path, weights_only=True)["x"]), sorted(keys))
