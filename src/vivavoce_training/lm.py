"""Training of the language model: utterances → sequences, padded to a few fixed lengths → training steps.

A sequence has one of the two layouts of CosyVoice2's training (arXiv:2412.10117, section 2.2):

    whole text    [start] text … [task] speech … → … [end]
    text arriving [start] 5 text, 15 speech → fill, 5 text, 15 speech → fill, … rest of text [task] rest … → end

In CosyVoice3's rows the complete system prompt follows [start], in both layouts.

Most rows join several utterances of a speaker, as a request with a cloned voice does: there the model gets the
recording's transcript and the text as one text, then the recording's tokens, and continues these tokens.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from vivavoce.checkpoint.config import LMConfig, ModelConfig, qwen2_of
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce_training.data.store import Corpus
from vivavoce_training.loop import Budget, Optimizer, Recipe, TrainingStep, train
from vivavoce_training.lora import LoRA
from vivavoce_training.utterances import steps_in
from vivavoce_training.weights import text_ids

PAD, CONTROL, TEXT, SPEECH = range(4)
IGNORED = -100  # target of positions that predict nothing
_PART = 5_000  # sequences that one process draws at a time

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Mix:
    """Settings for the composition of sequences; shares lie in [0, 1]."""

    joined: float = 0.6  # Share of rows that have several utterances.
    most: int = 4  # Most utterances in one row.
    arriving: float = 0.15  # Share of rows with the layout for text that arrives in pieces.
    other_case: float = 0.15  # Share of texts in lower or upper case only.


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences padded to one length.

    kinds: uint8 [n, length], one of PAD, CONTROL, TEXT, SPEECH; ids: int32 [n, length], rows of the kind's table;
    targets: int16 [n, length], the id to predict at each position, or IGNORED.
    """

    kinds: NDArray[np.uint8]
    ids: NDArray[np.int32]
    targets: NDArray[np.int16]

    @property
    def length(self) -> int:
        return int(self.kinds.shape[1])

    def __len__(self) -> int:
        return len(self.kinds)


def validation_texts(texts: Sequence[str]) -> frozenset[str]:
    """Return the texts, in lower case, that are only for validation: 1 in 200, chosen by their hashes.

    In a small corpus these are up to eight texts, but at most 1 in 10.
    """
    distinct = sorted({text.lower() for text in texts}, key=lambda text: hashlib.md5(text.encode()).digest())
    return frozenset(distinct[: max(len(distinct) // 200, min(8, len(distinct) // 10))])


def whole_text(
    text: Sequence[int], speech: Sequence[int], config: LMConfig, system: Sequence[int] = ()
) -> list[tuple[int, int, int]]:
    """Return (kind, id, target) of each position, with all text before the speech. system: ids of the system prompt."""
    vocabulary = config.vocabulary
    row = [(CONTROL, vocabulary.sos, IGNORED)]
    row += [(TEXT, token, IGNORED) for token in (*system, *text)]
    return row + _speech([(CONTROL, vocabulary.task)], speech, vocabulary.eos)


def arriving_text(
    text: Sequence[int], speech: Sequence[int], config: LMConfig, system: Sequence[int] = ()
) -> list[tuple[int, int, int]]:
    """Return (kind, id, target) of each position, with text and speech in alternating blocks. Else like `whole_text`.

    Raises:
        ValueError: the speech is too short for the blocks.
    """
    vocabulary, few, many = config.vocabulary, config.mix_text, config.mix_speech
    blocks = len(text) // few
    if len(speech) < blocks * many:
        raise ValueError(f"{len(speech)} speech tokens are fewer than {blocks} blocks of {many}")
    row = [(CONTROL, vocabulary.sos, IGNORED), *((TEXT, token, IGNORED) for token in system)]
    for block in range(blocks):
        *first, last = text[block * few : (block + 1) * few]
        row += [(TEXT, token, IGNORED) for token in first]
        row += _speech([(TEXT, last)], speech[block * many : (block + 1) * many], vocabulary.fill)
    row += [(TEXT, token, IGNORED) for token in text[blocks * few :]]
    return row + _speech([(CONTROL, vocabulary.task)], speech[blocks * many :], vocabulary.eos)


def _speech(before: list[tuple[int, int]], speech: Sequence[int], end: int) -> list[tuple[int, int, int]]:
    """Return (kind, id, target) of `before` and `speech`. A target is the next speech token; the last one is `end`."""
    positions = before + [(SPEECH, token) for token in speech]
    return [(kind, token, target) for (kind, token), target in zip(positions, [*speech, end], strict=True)]


def build_rows(
    corpus: Corpus,
    encode: Encode,
    config: LMConfig,
    lengths: Sequence[int],
    count: int,
    seed: int,
    mix: Mix = Mix(),
    validation: bool = False,
    system: Sequence[int] = (),
) -> list[Rows]:
    """Draw `count` sequences, and pad each to the smallest of `lengths` that holds it.

    A row has as many of its utterances as fit. If not even the first fits, the row is left out. With `validation`, rows
    have only `validation_texts`; the list is empty if there are none. system: ids of the system prompt.
    """
    tokens = np.asarray(corpus.tokens)
    rng = random.Random(seed)
    kept = validation_texts(corpus.texts)
    chosen = [number for number, text in enumerate(corpus.texts) if (text.lower() in kept) is validation]
    if not chosen:
        return []
    by_speaker: dict[int, list[int]] = {}
    for number in chosen:
        by_speaker.setdefault(int(corpus.speaker[number]), []).append(number)
    filed: list[list[list[tuple[int, int, int]]]] = [[] for _ in lengths]
    room = max(lengths) - 2 - len(system)
    for _ in range(count):
        utterances = [rng.choice(chosen)]
        if rng.random() < mix.joined:
            others = by_speaker[int(corpus.speaker[utterances[0]])]
            utterances += rng.choices(others, k=rng.randint(1, mix.most - 1))
        arriving = rng.random() < mix.arriving
        text, speech = _joined(corpus, tokens, utterances, encode, mix, rng, room)
        ready = arriving and len(speech) >= len(text) // config.mix_text * config.mix_speech
        row = (arriving_text if ready else whole_text)(text, speech, config, system)
        place = next((place for place, length in enumerate(lengths) if len(row) <= length), None)
        if place is not None:
            filed[place].append(row)
    return [_padded(rows, length) for rows, length in zip(filed, lengths, strict=True)]


def draw_rows(
    corpus: Path,
    settings: Path,
    sizes: ModelConfig,
    lengths: Sequence[int],
    count: int,
    seed: int,
    jobs: int,
    validation: bool = False,
) -> list[Rows]:
    """Run `build_rows` on a corpus folder, in `jobs` processes; their number does not change the rows.

    settings: the model's folder of settings; sizes: the configuration that they give. Each `_PART` of sequences has a
    seed of its own, so another `_PART` draws other rows. With `validation` the list may be empty, as in `build_rows`.
    """
    draw = partial(_draw_part, corpus, settings, sizes, lengths, validation)
    counts = [min(_PART, count - first) for first in range(0, count, _PART)]
    seeds = [seed + 1_000_003 * part for part in range(len(counts))]
    if jobs == 1 or len(counts) == 1:
        parts = [*map(draw, counts, seeds)]
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            parts = [*pool.map(draw, counts, seeds)]
    return [
        Rows(*(np.concatenate([getattr(one, name) for one in rows]) for name in ("kinds", "ids", "targets")))
        for rows in zip(*parts, strict=True)
    ]


def _draw_part(
    corpus: Path, settings: Path, sizes: ModelConfig, lengths: Sequence[int], validation: bool, count: int, seed: int
) -> list[Rows]:
    encode, system = text_ids(settings, sizes)
    config = qwen2_of(sizes.lm)
    return build_rows(Corpus.open(corpus), encode, config, lengths, count, seed, validation=validation, system=system)


def _joined(
    corpus: Corpus,
    tokens: NDArray[np.int16],
    utterances: Sequence[int],
    encode: Encode,
    mix: Mix,
    rng: random.Random,
    room: int,
) -> tuple[list[int], list[int]]:
    """Join text ids and speech tokens of the first utterances, of as many as fit into `room` positions."""
    text: list[int] = []
    speech: list[int] = []
    for utterance in utterances:
        words = _case(corpus.texts[utterance], mix.other_case, rng)
        # Cloning joins transcript and text without a space; sentences of one text have a space between them.
        separator = " " if text and rng.random() < 0.5 else ""
        ids = encode(separator + words)
        spoken = tokens[corpus.start[utterance] : corpus.start[utterance + 1]].tolist()
        if text and len(text) + len(speech) + len(ids) + len(spoken) > room:
            break
        text += ids
        speech += spoken
    return text, speech


def _case(text: str, share: float, rng: random.Random) -> str:
    draw = rng.random()
    if draw < share * 0.75:
        return text.lower()
    return text.upper() if draw < share else text


def _padded(rows: Sequence[Sequence[tuple[int, int, int]]], length: int) -> Rows:
    filled = np.zeros((len(rows), length, 3), np.int32)
    filled[..., 2] = IGNORED
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return Rows(filled[..., 0].astype(np.uint8), filled[..., 1].copy(), filled[..., 2].astype(np.int16))


@dataclass(frozen=True)
class LMRecipe:
    optimizer: Recipe = field(default_factory=lambda: Recipe(1e-3, warmup_steps=500, weight_decay=0.05))
    positions_per_step: int = 24_576
    dropout: float = 0.1
    token_noise: float = 0.1  # largest share of a row's input speech tokens that random tokens replace
    label_smoothing: float = 0.05


class _Bucket(NamedTuple):
    """`Rows` of one length on the device; batch: number of rows in a training step."""

    kinds: Tensor
    ids: Tensor
    targets: Tensor
    batch: int


def train_lm(
    lm: SpeechLM,
    rows: Sequence[Rows],
    held: Sequence[Rows],
    budget: Budget,
    folder: Path,
    *,
    device: torch.device,
    recipe: LMRecipe,
    seed: int = 0,
    lora: LoRA | None = None,
) -> dict[str, Tensor]:
    """Train on `rows`, validate on `held` (both from `draw_rows`)  →  averaged weights under vivavoce's names.

    lora: adapter of the model; only the adapter is trained and returned. None: all weights are trained.
    """
    torch.manual_seed(seed + steps_in(folder, "lm"))
    step, checks = LMStep(lm, rows, recipe, device, seed, lora), _buckets(held, recipe.positions_per_step, device)
    judge = partial(validate, lm, checks) if checks else None
    return train("lm", step, budget, folder, device=device, validate=judge)


class LMStep(TrainingStep):
    """A training step; each variant is a length of rows. InvalidRequest: no row can be made of the corpus."""

    def __init__(
        self,
        lm: SpeechLM,
        rows: Sequence[Rows],
        recipe: LMRecipe,
        device: torch.device,
        seed: int = 0,
        lora: LoRA | None = None,
    ) -> None:
        self._lm, self._recipe, self._seed = lm.to(device).requires_grad_(lora is None), recipe, seed
        learning = lm if lora is None else lora.to(device)
        self._buckets = _buckets(rows, recipe.positions_per_step, device)
        if not self._buckets:
            raise InvalidRequest("corpus: no utterance fits into a training row; cut the recordings to 15 s or less")
        self.positions = [bucket.kinds.numel() for bucket in self._buckets]  # positions in each variant's rows
        add_dropout(lm, recipe.dropout)
        self._optimizer = Optimizer(learning.parameters(), recipe.optimizer)
        self.modules, self.optimizers = {"lm": learning}, {"lm": self._optimizer}

    def variant(self, step: int, progress: float) -> int:
        """Draw a length, by seed and step, with a probability in proportion to its number of positions."""
        bounds = torch.tensor(self.positions, dtype=torch.float64).cumsum(0)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        draw = torch.rand(1, generator=generator, dtype=torch.float64)
        return int(torch.searchsorted(bounds, draw * bounds[-1]))

    def __call__(self, variant: int) -> dict[str, Tensor]:
        *rows, batch = self._buckets[variant]
        pick = torch.randint(len(rows[0]), (batch,), device=rows[0].device)
        kinds, ids, targets = (part[pick] for part in rows)
        num_speech = self._lm.config.vocabulary.num_speech_tokens
        logits = _logits(self._lm, kinds, with_noise(ids.long(), kinds, self._recipe.token_noise, num_speech))
        flat, wanted = logits.flatten(0, 1), targets.long().flatten()
        loss = cross_entropy(flat, wanted, ignore_index=IGNORED, label_smoothing=self._recipe.label_smoothing)
        self._optimizer.update(loss)
        return {"loss": loss, **_measures(flat.detach(), wanted)}


def validate(lm: SpeechLM, checks: Sequence[_Bucket]) -> dict[str, float]:
    """Return the mean cross-entropy and accuracy on the first batch of each of `checks`."""
    sums = {"ce": 0.0, "right": 0.0}
    for kinds, ids, targets, batch in checks:
        logits = _logits(lm, kinds[:batch], ids[:batch].long())
        for name, value in _measures(logits.flatten(0, 1), targets[:batch].long().flatten()).items():
            sums[name] += float(value) / len(checks)
    return sums


def with_noise(ids: Tensor, kinds: Tensor, most: float, num_speech: int) -> Tensor:
    """Replace speech tokens by random ones; each row draws its own share up to `most`.

    This prepares the model for its own mistakes, which it reads at inference (Bengio et al., arXiv:1506.03099).
    """
    share = most * torch.rand(len(ids), 1, device=ids.device)
    noisy = (torch.rand(ids.shape, device=ids.device) < share) & (kinds == SPEECH)
    return torch.where(noisy, torch.randint_like(ids, num_speech), ids)


def add_dropout(lm: SpeechLM, share: float) -> None:
    """Add dropout, in training mode only, to the output of each attention and MLP. The model has no dropout itself."""

    def drop(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return dropout(output, share, module.training)

    for name, module in lm.named_modules():
        if name.endswith((".attention.o_proj", ".mlp")):
            module.register_forward_hook(drop)


def _logits(lm: SpeechLM, kinds: Tensor, ids: Tensor) -> Tensor:
    """Run the model on kinds and ids [batch, length]  →  [batch, length, logits] float32."""
    kinds = kinds[..., None]
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
        # Each table looks up all ids, also ids of other kinds; the `where` below picks the right rows.
        text, speech, control = (
            table(ids.clamp(max=table.num_embeddings - 1))
            for table in (lm.text_embedding, lm.speech_embedding, lm.control_rows)
        )
        hidden = lm(torch.where(kinds == TEXT, text, torch.where(kinds == SPEECH, speech, control)))
        logits: Tensor = lm.speech_head(hidden)
    return logits.float()


def _measures(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    counted = (targets != IGNORED).float()
    entropy = cross_entropy(logits, targets, ignore_index=IGNORED)
    right = ((logits.argmax(-1) == targets) * counted).sum() / counted.sum()
    return {"ce": entropy, "right": right}


def _buckets(rows: Sequence[Rows], positions: int, device: torch.device) -> list[_Bucket]:
    """Copy rows to the device, except empty lengths. A batch has about `positions` positions, and at least one row."""
    buckets = []
    for one in rows:
        if len(one):
            kinds, ids, targets = (torch.from_numpy(array).to(device) for array in (one.kinds, one.ids, one.targets))
            buckets.append(_Bucket(kinds, ids, targets, max(1, positions // one.length)))
    return buckets
