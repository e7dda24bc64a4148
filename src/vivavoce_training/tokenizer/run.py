"""Trains the speech tokenizer on a corpus folder's labels; writes `speech_tokenizer_v2.onnx`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vivavoce.models.encoders import MAX_SECONDS, SpeechTokenizer
from vivavoce_training.data.spelling import PHONE_DIGITS
from vivavoce_training.data.store import Corpus
from vivavoce_training.loop import Budget, Optimizer, Recipe, TrainingStep, train
from vivavoce_training.onnx_graph import round_to_half
from vivavoce_training.record import write_measures
from vivavoce_training.tokenizer.features import Augment, Features, load_features
from vivavoce_training.tokenizer.measure import CROPS, extract_tokens, measure, validation
from vivavoce_training.tokenizer.model import TokenEncoder, TokenizerSizes, export_tokenizer, spelled
from vivavoce_training.utterances import Split, heard_alone, steps_in
from vivavoce_training.weights import SPEECH_TOKENIZER

BATCH = 96
CROP_TOKENS = 128
RECIPE = Recipe(learning_rate=1e-3, warmup_steps=200)
ROUND_WITHIN = 0.25
"""The loss is quadratic below this error and linear above, so that a digit of an ambiguous sound takes the more likely
value and not the mean of two values."""


class TokenizerStep(TrainingStep):
    def __init__(
        self, features: Features, encoder: TokenEncoder, *, batch: int = BATCH, crop_tokens: int = CROP_TOKENS
    ) -> None:
        self._features, self._batch, self._crop_tokens = features, batch, crop_tokens
        self._encoder = encoder
        self._augment = Augment().to(features.mel.device)
        self.modules = {"encoder": encoder}
        self.optimizers = {"tokenizer": Optimizer(encoder.parameters(), RECIPE)}

    def __call__(self, variant: int) -> dict[str, Tensor]:
        starts, _ = self._features.speakers.draw(self._batch, self._crop_tokens)
        mel, tokens = self._features.cut(starts, self._crop_tokens)
        view = self._augment(mel)
        with torch.autocast(view.device.type, torch.bfloat16, enabled=view.is_cuda):
            digits = self._encoder(view)
        target = spelled(tokens)
        loss = functional.smooth_l1_loss(digits.float(), target, beta=ROUND_WITHIN)
        self.optimizers["tokenizer"].update(loss)
        right = digits.detach().round() == target
        phone = right[..., :PHONE_DIGITS].all(-1)
        return {
            "loss": loss,
            "digits_right": right.float().mean(),
            "tokens_right": right.all(-1).float().mean(),
            "phones_right": phone.float().mean(),
        }


PART = "tokenizer"
COMPARED_UTTERANCES = 50


@dataclass(frozen=True)
class Sizes:
    """Settings that a test makes small; hours: part of the corpus that is held on the device for training."""

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
    """Train, or continue the training in `out`; then export, and measure.

    out: gets the state, the log, `speech_tokenizer_v2.onnx` and `tokenizer.measures.json`; seed: of initial weights and
    batches; others: as in `Split`. Returns the path of the exported model.
    """
    split, crop = Split.open(corpus_folder, others, sizes.hours), sizes.crop_tokens
    torch.manual_seed(seed)
    encoder = TokenEncoder(sizes.model).to(device)
    torch.manual_seed(seed + steps_in(out, PART))
    features = load_features(split.corpus, split.learned, device, crop)
    judged = split.judged[np.argsort(split.judged_of.speaker[split.judged], kind="stable")]
    judged_features = load_features(split.judged_of, judged, device, crop)
    step = TokenizerStep(features, encoder, batch=sizes.batch, crop_tokens=crop)
    judge = validation(judged_features, encoder, crop, sizes.validation_crops)
    encoder.load_state_dict(train(PART, step, budget, out, device=device, validate=judge))
    del features, judged_features, step
    round_to_half(encoder)
    path = out / SPEECH_TOKENIZER
    export_tokenizer(encoder, path)
    write_measures(
        PART, out, {name: _measured(one, encoder, path, device, seed) for name, one in split.corpora.items()}
    )
    return path


def _measured(corpus: Corpus, encoder: TokenEncoder, path: Path, device: torch.device, seed: int) -> dict[str, float]:
    """The measures of a corpus's tokens, and the share of tokens that differ in the exported model at `path`."""
    tokens = extract_tokens(corpus, encoder, device)
    tokenizer, differing, total = SpeechTokenizer.from_file(path), 0, 0
    for utterance in np.random.default_rng(seed).permutation(len(corpus))[:COMPARED_UTTERANCES]:
        first, last = corpus.start[utterance : utterance + 2]
        if last - first <= MAX_SECONDS * 25:
            differing += int((tokenizer(heard_alone(corpus, utterance)).numpy() != tokens[first:last]).sum())
            total += int(last - first)
    return measure(corpus, tokens, device, seed) | {"differing": differing / max(1, total)}
