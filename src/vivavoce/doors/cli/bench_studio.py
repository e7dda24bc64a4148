"""A loaded model in its parts, for benchmarks that run its stages one by one and without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vivavoce.bench.offline import Job, Prompt
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.cli.bench_texts import Line
from vivavoce.doors.cli.model import ModelChoice
from vivavoce.engine.lm_stage import plain_run
from vivavoce.engine.request import Conditioning, SamplingParams, SynthesisRequest
from vivavoce.models.build import Models, build_models
from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce.service.conditionings import Conditionings
from vivavoce.service.default_model import model_folder
from vivavoce.service.front_end import FrontEnd, load_front_end
from vivavoce.service.placement import choose_device, choose_dtype
from vivavoce.service.text.tokenizer import TextTokenizer
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.registry import VoiceRegistry
from vivavoce.service.voices.stores.opening import open_voice_store


@dataclass(frozen=True, eq=False)
class Studio:
    """Networks, front ends and voices of one model."""

    models: Models
    front_end: FrontEnd
    tokenizer: TextTokenizer
    registry: VoiceRegistry
    conditionings: Conditionings

    @property
    def folder(self) -> Path:
        """Where the model lies."""
        return self.front_end.folder

    @property
    def vocabulary(self) -> MergedVocabulary:
        """The ids of prompts."""
        return MergedVocabulary(len(self.tokenizer), self.models.config.lm.vocabulary.num_speech_tokens)

    def voice(self, voice: str | AudioSource | None, prompt_text: str) -> Conditioning:
        """What a voice brings to the stages; errors as in `VoiceRegistry.resolve`."""
        return self.conditionings.of(self.registry.resolve(voice, prompt_text))

    def jobs(self, texts: Sequence[Line], seed: int, exact_tokens: int | None) -> list[Job]:
        """One job for each text; the seeds follow one another.

        Raises:
            VivavoceError: a text or a voice cannot be used.
        """
        return [
            Job(one.id, self._prompt(one.text, voice, seed + place, exact_tokens), voice)
            for place, one in enumerate(texts)
            for voice in [self.voice(one.voice, one.prompt_text)]
        ]

    def _prompt(self, text: str, voice: Conditioning, seed: int, exact_tokens: int | None) -> Prompt:
        ids = tuple(
            one for segment in self.front_end.text.segments(text) for one in self.front_end.text.encode(segment)
        )
        # Runtimes that are compared share the rule for lengths: one token at least, and no share of the text's.
        sampling = SamplingParams(min_ratio=0.0, exact_tokens=exact_tokens)
        request = SynthesisRequest(voice, text=ids, sampling=sampling, seed=seed)
        config = self.models.config
        room = MAX_FRAMES // config.rates.frames_per_token - len(voice.flow_tokens)
        run = plain_run(config.lm, request, official=False, room=room)
        return Prompt(
            merged_ids(run.rows, self.vocabulary, config.lm.vocabulary.sos), seed, run.forced_at, run.min_tokens
        )


def load_studio(choice: ModelChoice) -> Studio:
    """Load a model without an engine; errors as in `vivavoce.load`."""
    folder = model_folder(choice.model)
    device = choose_device(choice.device)
    models = build_models(folder, device, choose_dtype(choice.dtype, device), choice.variant)
    front_end = load_front_end(folder, models.config)
    store = open_voice_store(choice.voices, None).of("")
    extractor = front_end.extractor
    return Studio(
        models,
        front_end,
        TextTokenizer.from_folder(folder / BACKBONE),
        VoiceRegistry(extractor, store, built_in_voices(folder), extractor.fingerprint),
        Conditionings(models.config),
    )


def merged_ids(rows: Sequence[Row], vocabulary: MergedVocabulary, sos: int) -> tuple[int, ...]:
    """Rows of three tables → ids of the merged one; sos: the control id that begins a prompt."""
    controls = {True: vocabulary.sos, False: vocabulary.task}

    def merged(row: Row) -> int:
        if row.kind is RowKind.CONTROL:
            return controls[row.id == sos]
        return vocabulary.speech(row.id) if row.kind is RowKind.SPEECH else row.id

    return tuple(map(merged, rows))
