"""Speech tokens of a whole corpus, and measures of them: used codes, phones, pitch, and traces of the speaker."""

from __future__ import annotations

from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vivavoce.models.features import whisper_log_mel
from vivavoce_training.data.spelling import (
    BASE,
    NUM_CODES,
    NUM_DIGITS,
    PHONE_DIGITS,
    PITCH_STEP,
    SILENCE_TOKEN,
    digits_of,
    level_of,
)
from vivavoce_training.data.store import Corpus
from vivavoce_training.tokenizer.features import Augment, Features
from vivavoce_training.tokenizer.model import TokenEncoder, spelled, to_indices
from vivavoce_training.utterances import by_token

PROBE_UTTERANCES = 12_000
PROBE_CODES = 512
PROBE_STEPS = 300
PAIRS = 200
TEMPO_RATIO = 1.08


def measure(corpus: Corpus, tokens: NDArray[np.int16], device: torch.device, seed: int = 0) -> dict[str, float]:
    """Measure used codes, perplexity, probes for the speaker (beside chance), phones, pitch, and same-text pairs.

    tokens: [corpus.num_tokens]; device: runs the probes; seed: of the probes' initial weights and of all draws.
    """
    counts = np.bincount(tokens, minlength=NUM_CODES)
    share = counts[counts > 0] / counts.sum()
    values = {"codes": float(len(share)), "perplexity": float(np.exp(-(share * np.log(share)).sum()))}
    voices = sorted({speaker.voice for speaker in corpus.speakers})
    voice_of = np.array([voices.index(speaker.voice) for speaker in corpus.speakers])
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(corpus))[:PROBE_UTTERANCES]
    histograms = torch.from_numpy(_histograms(corpus, tokens, counts, chosen)).to(device)
    for name, labels in (("speaker", corpus.speaker[chosen]), ("voice", voice_of[corpus.speaker[chosen]])):
        known = torch.from_numpy(labels.astype(np.int64)).to(device)
        values[f"{name}_probe"] = probe_accuracy(histograms, known, seed)
        values[f"{name}_chance"] = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
    wanted = digits_of(corpus.labels)
    values["phones_right"] = float((digits_of(tokens) == wanted)[:, :PHONE_DIGITS].all(-1).mean())
    values["semitones"] = pitch_error(corpus.labels, tokens)
    pairs = same_text_pairs(corpus, generator)
    if pairs:
        values["pair_agreement"] = float(np.mean([_similarity(corpus, tokens, a, b) for a, b in pairs]))
    return values


def _histograms(
    corpus: Corpus, tokens: NDArray[np.int16], counts: NDArray[np.int64], chosen: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return [chosen, 24 + codes]: how often each digit has each value, and how often each common code occurs."""
    common = np.argsort(-counts)[:PROBE_CODES]
    column = np.full(NUM_CODES, len(common))
    column[common] = np.arange(len(common))
    rows = np.empty((len(chosen), NUM_DIGITS * BASE + len(common)), np.float32)
    for row, utterance in zip(rows, chosen, strict=True):
        own = tokens[corpus.start[utterance] : corpus.start[utterance + 1]].astype(np.int64)
        digits = own[:, None] // BASE ** np.arange(NUM_DIGITS) % BASE + BASE * np.arange(NUM_DIGITS)
        row[: NUM_DIGITS * BASE] = np.bincount(digits.ravel(), minlength=NUM_DIGITS * BASE) / len(own)
        row[NUM_DIGITS * BASE :] = np.bincount(column[own], minlength=len(common) + 1)[:-1] / len(own)
    return rows


def probe_accuracy(features: Tensor, labels: Tensor, seed: int = 0) -> float:
    """Train a network to predict `labels` [n] from `features` [n, size], and return its accuracy on the last fifth.

    The network has one hidden layer and is trained on the first four fifths.
    """
    torch.manual_seed(seed)
    cut = len(features) * 4 // 5
    mean, deviation = features[:cut].mean(0), features[:cut].std(0) + 1e-4
    x = (features - mean) / deviation
    layers = [torch.nn.Linear(x.shape[1], 128), torch.nn.ReLU(), torch.nn.Linear(128, int(labels.max()) + 1)]
    probe = torch.nn.Sequential(*layers).to(x.device)
    adam = torch.optim.AdamW(probe.parameters(), 3e-3, weight_decay=0.1)
    for _ in range(PROBE_STEPS):
        noisy = functional.dropout(x[:cut], 0.3)
        loss = functional.cross_entropy(probe(noisy), labels[:cut])
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        return float((probe(x[cut:]).argmax(1) == labels[cut:]).float().mean())


def same_text_pairs(corpus: Corpus, generator: np.random.Generator) -> list[tuple[int, int]]:
    """Draw up to `PAIRS` pairs of utterances with one text, one voice, nearly one length, and two speakers."""
    groups: dict[tuple[str, str], list[int]] = {}
    for utterance, text in enumerate(corpus.texts):
        voice = corpus.speakers[corpus.speaker[utterance]].voice
        groups.setdefault((voice, text), []).append(utterance)
    lengths = np.diff(corpus.start)
    pairs = []
    for group in groups.values():
        for a, b in pairwise(group):
            ratio = max(lengths[a], lengths[b]) / max(1, min(lengths[a], lengths[b]))
            if corpus.speaker[a] != corpus.speaker[b] and ratio <= TEMPO_RATIO:
                pairs.append((a, b))
    return [pairs[index] for index in generator.permutation(len(pairs))[:PAIRS]]


def _similarity(corpus: Corpus, tokens: NDArray[np.int16], a: int, b: int) -> float:
    """Return the share of two utterances' tokens that match in the same order; 1: the utterances are equal."""
    one, other = (tokens[corpus.start[at] : corpus.start[at + 1]].tolist() for at in (a, b))
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


@torch.inference_mode()
def extract_tokens(corpus: Corpus, encoder: TokenEncoder, device: torch.device) -> NDArray[np.int16]:
    """Compute tokens [corpus.num_tokens]. Each utterance is encoded alone and whole, in float32, like a prompt.

    A digit near the boundary of two values may round differently in ONNX Runtime, which adds in another order.
    """
    encoder.eval()

    def spoken(samples: Tensor) -> Tensor:
        return to_indices(encoder(whisper_log_mel(samples))).short()

    tokens: NDArray[np.int16] = by_token(corpus, np.arange(len(corpus)), device, spoken).cpu().numpy()
    return tokens


CROPS = 128


def validation(
    features: Features, encoder: TokenEncoder, crop_tokens: int, crops: int = CROPS
) -> Callable[[], dict[str, float]]:
    """Make a function that measures the accuracy of digits, phones and tokens, the pitch error in semitones, the share
    of tokens that are equal in two random views, and the perplexity.

    The crops are drawn once. `Augment` makes new views in each call.
    """
    starts, _ = features.speakers.draw(crops, crop_tokens)
    mel, tokens = features.cut(starts, crop_tokens)
    wanted = spelled(tokens)
    augment = Augment().to(mel.device)

    def measure() -> dict[str, float]:
        clean, views = encoder(mel), augment(mel.repeat(2, 1, 1))
        first, second = to_indices(encoder(views)).chunk(2)
        right = clean.round() == wanted
        return {
            "digits_right": float(right.float().mean()),
            "tokens_right": float(right.all(-1).float().mean()),
            "phones_right": float(right[..., :PHONE_DIGITS].all(-1).float().mean()),
            "semitones": pitch_error(tokens.cpu().numpy(), to_indices(clean).cpu().numpy()),
            "same_tokens": float((first == second).float().mean()),
            "perplexity": perplexity(to_indices(clean)),
        }

    return measure


def pitch_error(wanted: NDArray[np.integer], got: NDArray[np.integer]) -> float:
    """Return the root mean square error, in semitones, of the pitch that tokens spell, without silence in `wanted`."""
    there = wanted != SILENCE_TOKEN
    steps = (level_of(digits_of(one[there])).astype(np.float64) for one in (wanted, got))
    return PITCH_STEP * float(np.sqrt(np.mean(np.square(next(steps) - next(steps))))) if there.any() else 0.0


def perplexity(tokens: Tensor) -> float:
    """Return how many equally likely codes would be as hard to guess as these tokens [..] int32."""
    counts = torch.bincount(tokens.flatten(), minlength=NUM_CODES).double()
    share = counts / counts.sum()
    return float(torch.exp(torch.special.entr(share).sum()))
