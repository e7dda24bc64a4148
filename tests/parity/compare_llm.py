"""Language model: hidden states, logits, greedy and streamed tokens, sampling."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.plain.lm import LMPrompt, prompt_rows
from tests.parity.check import Check, Skip, close, equal, equal_ids, guarded
from tests.parity.reference import Arrays, Golden, Reference
from tests.parity.stages import Forced, Greedy, GreedyWithFill, ids_of, ids_of_pieces
from tests.v1.conformer_prompt import conformer_rows
from vivavoce.engine.lm_stage.slots import Chooser
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest
from vivavoce.models.build import Models
from vivavoce.models.randomness import SamplingRows, fallback_probabilities, nucleus, repeats, sample
from vivavoce_v1.lm import ConformerLM


@torch.inference_mode()
def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    models = reference.models(*golden.checkpoint)
    if "ids" in golden.meta:
        yield from guarded(f"{golden.label} ids", _ids(golden, models))
    kinds = {
        "teacher_forced": _teacher,
        "greedy": _greedy,
        "stop_token": _stop,
        "bistream": _bistream,
        "ras": _ras,
        "silence_filter": _silence,
    }
    for case, settings in golden.meta["cases"].items():
        name = f"{golden.label} {case}"
        kind = settings.get("kind")
        if kind in kinds:
            yield from guarded(name, kinds[kind](name, case, settings, golden, models))
        else:
            yield Skip(name, f"unknown kind {kind}")


def _ids(golden: Golden, models: Models) -> Iterator[Check]:
    vocabulary = models.config.lm.vocabulary
    theirs = golden.meta["ids"]
    ours = {
        "speech_token_size": vocabulary.num_speech_tokens,
        "sos": vocabulary.sos,
        "eos": vocabulary.eos,
        "task_id": vocabulary.task,
        "fill": vocabulary.fill,
        "stop_token_ids": [vocabulary.stop_ids[0], vocabulary.stop_ids[-1]],
        "mix_ratio": [getattr(models.config.lm, name, 0) for name in ("mix_text", "mix_speech")],
    }
    for key, value in ours.items():
        if theirs.get(key) is not None:
            yield equal(f"{golden.label} ids {key}", value, theirs[key])


def _teacher(name: str, case: str, settings: dict, golden: Golden, models: Models) -> Iterator[Check]:
    arrays, lm = golden.arrays, models.lm
    text, speech = arrays.ids(f"{case}/text"), arrays.ids(f"{case}/speech")
    if isinstance(lm, ConformerLM):
        rows = conformer_rows(lm, text, speech, speaker_of(arrays, case))
        yield close(f"{name} encoded text", lm.text_rows(torch.tensor([text]))[0], arrays[f"{case}/text_encoded"], 5e-5)
    else:
        rows = prompt_rows(lm, LMPrompt(text, (), speech))
    hidden = lm(rows[None])
    logits = lm.speech_head(hidden)[0]
    yield close(f"{name} hidden", hidden[0], arrays[f"{case}/hidden"], 5e-5)
    yield close(f"{name} logits", logits[-4:], arrays[f"{case}/logits_last4"], 1e-4)
    ids = torch.from_numpy(arrays[f"{case}/top10_ids"]).long()
    yield close(f"{name} top 10", logits.gather(1, ids), arrays[f"{case}/top10_logits"], 1e-4)
    yield close(f"{name} logsumexp", logits.logsumexp(-1), arrays[f"{case}/logsumexp"], 1e-4)


def speaker_of(arrays: Arrays, case: str) -> torch.Tensor | None:
    """What the language model hears of the speaker; None: nothing."""
    given = arrays.tensor(f"{case}/embedding") if f"{case}/embedding" in arrays else []
    return given.reshape(-1) if len(given) else None


def _params(settings: dict) -> SamplingParams:
    ratios = {"max_token_text_ratio": "max_ratio", "min_token_text_ratio": "min_ratio"}
    return SamplingParams(**{ours: settings[theirs] for theirs, ours in ratios.items() if theirs in settings})


def _voice(arrays: Arrays, case: str, end_of_prompt: int | None = None) -> Conditioning:
    """What the language model hears of a voice; end_of_prompt: the id that ends its system prompt."""
    text = arrays.ids(f"{case}/prompt_text")
    end = text.index(end_of_prompt) + 1 if end_of_prompt in text else 0
    prompt = {"lm_prompt_text": text[end:], "lm_prompt_tokens": arrays.ids(f"{case}/prompt_speech")}
    return Conditioning(torch.zeros(0), lm_system_text=text[:end], lm_embedding=speaker_of(arrays, case), **prompt)


def _silence(name: str, case: str, settings: dict, golden: Golden, models: Models) -> Iterator[Check]:
    silent, ids = models.config.lm.vocabulary.silent, golden.arrays.ids(f"{case}/input")
    yield equal(f"{name} tokens", sorted(silent.ids), settings["silent_tokens"])
    for cut in (0, len(ids) // 2):  # in one piece and in two
        first, run = silent.spoken(ids[:cut], silent.run_at_start)
        rest, _ = silent.spoken(ids[cut:], run)
        heard = [ids[place] for place in (*first, *(cut + place for place in rest))]
        yield equal_ids(f"{name} heard, cut at {cut}", heard, golden.arrays.ids(f"{case}/output"))


def _decode(models: Models, arrays: Arrays, case: str, params: SamplingParams, chooser: Chooser) -> list[int]:
    request = SegmentRequest(_voice(arrays, case), text=arrays.ids(f"{case}/text"), sampling=params)
    *tokens, _ = ids_of(models, request, chooser)
    return tokens


def _greedy(name: str, case: str, settings: dict, golden: Golden, models: Models) -> Iterator[Check]:
    arrays = golden.arrays
    sampler = Greedy(models.config.lm.vocabulary.eos, settings["stop_after"])
    tokens = _decode(models, arrays, case, _params(settings), sampler)
    yield equal_ids(f"{name} tokens", tokens, arrays.ids(f"{case}/tokens"))
    # The official code asks no sampler for the end that the greatest length brings.
    last = settings["sampler_calls"] - 1
    for label, array, step in (("first", "logp_step0", 0), ("last", "logp_last", last)):
        if f"{case}/{array}" in arrays:
            yield close(f"{name} {label} scores", sampler.scores[step], arrays[f"{case}/{array}"], 1e-4)


def _stop(name: str, case: str, settings: dict, golden: Golden, models: Models) -> Iterator[Check]:
    after = int(re.search(r"\d+", settings["forced_as_soon_as"]).group())
    sampler = Forced(settings["forced_id"], after)
    tokens = _decode(models, golden.arrays, settings["inputs"], SamplingParams(), sampler)
    yield equal_ids(f"{name} tokens", tokens, golden.arrays.ids(f"{case}/tokens"))


def _bistream(name: str, case: str, settings: dict, golden: Golden, models: Models) -> Iterator[Check]:
    arrays, vocabulary = golden.arrays, models.config.lm.vocabulary
    sampler = GreedyWithFill(vocabulary.num_speech_tokens, vocabulary.eos, vocabulary.fill, settings["stop_after"])
    # All at once or one by one must not matter: text is looked at token by token.
    text = arrays.ids(f"{case}/text")
    voice = _voice(arrays, case, golden.meta["ids"].get("endofprompt") if golden.meta["generation"] == "v3" else None)
    streamed = ids_of_pieces(models, voice, [text[:7], text[7:]], float("inf"), sampler)
    yield equal_ids(f"{name} tokens", streamed.tokens, arrays.ids(f"{case}/tokens"))
    yield equal_ids(f"{name} with control", streamed.ids, arrays.ids(f"{case}/decoded_with_control"))


def _ras(name: str, case: str, settings: dict, golden: Golden, models: Models) -> Iterator[Check]:
    arrays = golden.arrays
    scores = arrays.tensor(f"{case}/scores")[None]
    history = arrays.ids(f"{case}/history")
    rows = SamplingRows(
        top_p=torch.tensor([settings["top_p"]]),
        top_k=torch.tensor([settings["top_k"]]),
        window=torch.tensor([settings["win_size"]]),
        max_repeats=torch.tensor([math.ceil(settings["win_size"] * settings["tau_r"])]),
    )
    ids, weights = nucleus(scores.softmax(-1), rows.top_p, rows.top_k)
    count = int((weights > 0).sum())
    yield equal_ids(f"{name} candidates", ids[0, :count], arrays.ids(f"{case}/candidates"))
    yield close(f"{name} probabilities", weights[0, :count], arrays[f"{case}/candidate_probs"], 1e-5)
    first = ids[:, settings["pick"]]
    yield equal(f"{name} first choice", int(first), settings["first_choice"])
    recent = torch.tensor([[-1] * settings["win_size"] + list(history)])
    repeated = bool(repeats(recent, rows.window, first) >= rows.max_repeats)
    yield equal(f"{name} fallback", repeated, settings["fallback"])
    others = fallback_probabilities(scores, first)
    if settings["fallback"]:
        yield close(f"{name} fallback probabilities", others[0], arrays[f"{case}/fallback_probs"], 1e-5)
    # Uniforms in the middle of the recorded picks' intervals lead the whole sampler to the recorded result.
    uniforms = [_middle(weights[0], settings["pick"]), _middle(others[0], int(others.argmax()))]
    result = sample(scores, recent, rows, torch.tensor([uniforms]))
    yield equal(f"{name} result", int(result), settings["result"])


def _middle(weights: torch.Tensor, index: int) -> float:
    cumulative = np.cumsum(weights.double().numpy())
    return float((cumulative[index] - weights[index].item() / 2) / cumulative[-1])
