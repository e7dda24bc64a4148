"""The tokenizer's training from a corpus folder to `speech_tokenizer_v2.onnx` and the corpus's tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.store import Corpus, write_array
from training.loop import Budget, train
from training.onnx_graph import round_to_half
from training.record import log
from training.tokenizer.export import export_tokenizer
from training.tokenizer.extract import extract_tokens
from training.tokenizer.features import load_features
from training.tokenizer.measure import measure
from training.tokenizer.model import TokenEncoder, TokenizerSizes
from training.tokenizer.step import BATCH, CROP_TOKENS, Step
from training.tokenizer.validation import CROPS, validation
from training.utterances import evenly_by_speaker, heard, held_out, steps_in
from vivavoce.checkpoint.folder import SPEECH_TOKENIZER
from vivavoce.models.speech_tokenizer.onnx import MAX_SECONDS, SpeechTokenizer

PART = "tokenizer"
COMPARED_UTTERANCES = 50


@dataclass(frozen=True)
class Sizes:
    """What a test makes small; hours: of the corpus that the training holds on the device."""

    model: TokenizerSizes = field(default_factory=TokenizerSizes)
    batch: int = BATCH
    crop_tokens: int = CROP_TOKENS
    validation_crops: int = CROPS
    hours: float = 25.0


def train_tokenizer(
    corpus_folder: Path,
    out: Path,
    budget: Budget,
    device: torch.device,
    *,
    seed: int = 0,
    others: Path | None = None,
    sizes: Sizes = Sizes(),
) -> Path:
    """Train, or continue in `out`; then export and write the corpus's `tokens.npy`.

    Args:
        corpus_folder: see `training.data.store`.
        out: for the state, the log, `speech_tokenizer_v2.onnx` and `tokenizer.measures.json`.
        budget: of this training.
        device: where to.
        seed: of first weights and batches.
        others: a corpus folder of other speakers to measure by, which gets its `tokens.npy` too; if None, some
            utterances of the corpus itself are kept from the training for this.
        sizes: of everything.

    Returns:
        The path of the exported model.
    """
    corpus = Corpus.open(corpus_folder)
    unseen = Corpus.open(others) if others else None
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    encoder = TokenEncoder(sizes.model).to(device)
    torch.manual_seed(seed + steps_in(out, PART))

    kept = held_out(corpus)
    learned = evenly_by_speaker(corpus, sizes.hours, None if unseen else ~kept)
    features = load_features(corpus, learned, device, sizes.crop_tokens)
    judged_corpus, judged = (unseen, np.arange(len(unseen))) if unseen else (corpus, np.flatnonzero(kept))
    judged = judged[np.argsort(judged_corpus.speaker[judged], kind="stable")]
    judged_features = load_features(judged_corpus, judged, device, sizes.crop_tokens)
    step = Step(features, encoder, batch=sizes.batch, crop_tokens=sizes.crop_tokens)
    averages = train(
        PART,
        step,
        step.optimizers,
        step.modules,
        budget,
        out,
        device=device,
        averaged="encoder",
        validate=validation(judged_features, encoder, sizes.crop_tokens, sizes.validation_crops),
    )
    encoder.load_state_dict(averages)
    del features, judged_features, step
    return _finish(corpus, unseen, encoder, out, device, seed)


def _finish(
    corpus: Corpus, unseen: Corpus | None, encoder: TokenEncoder, out: Path, device: torch.device, seed: int
) -> Path:
    """Export, extract, measure."""
    round_to_half(encoder)
    path = out / SPEECH_TOKENIZER
    export_tokenizer(encoder, path)
    measures = {}
    for name, one in (("corpus", corpus), ("others", unseen)):
        if one is not None:
            tokens = extract_tokens(one, encoder, device)
            write_array(one.folder / "tokens.npy", tokens)
            found = measure(one, tokens, device, seed) | {"differing": differing_from_onnx(one, tokens, path, seed)}
            log.info("%s: %s  %s", PART, name, "  ".join(f"{key} {value:.4g}" for key, value in found.items()))
            measures[name] = found
    (out / f"{PART}.measures.json").write_text(json.dumps(measures, indent=1), encoding="utf-8")
    return path


def differing_from_onnx(corpus: Corpus, tokens: NDArray[np.int16], path: Path, seed: int = 0) -> float:
    """Share of the tokens that the exported model at `path` gives otherwise for the same speech, on the CPU."""
    tokenizer = SpeechTokenizer.from_file(path)
    generator = np.random.default_rng(seed)
    differing = total = 0
    for utterance in generator.permutation(len(corpus))[:COMPARED_UTTERANCES]:
        first, last = corpus.start[utterance], corpus.start[utterance + 1]
        if last - first <= MAX_SECONDS * 25:
            wave = heard(corpus, np.array([utterance]), torch.device("cpu"))[0]
            differing += int((tokenizer(wave).numpy() != tokens[first:last]).sum())
            total += int(last - first)
    return differing / max(1, total)
