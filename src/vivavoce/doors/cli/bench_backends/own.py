"""Our own language-model stage: static slots, all of a batch decoded together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vivavoce.bench.offline import Prompt
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.cli.bench_backends.choosing import Load
from vivavoce.engine.lane import Lane
from vivavoce.engine.lm_stage import LMStage, Run
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.settings import EngineSettings, uses_kernels
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import Row, RowKind

_AHEAD = 2
"""Launches that run before the ids of an earlier one are looked at."""


class OwnModel:
    """`LMStage` on its own; draws as the model's own configuration says."""

    sampling = "repetition-aware, as the model's configuration says"

    def __init__(self, models: Models, vocabulary: MergedVocabulary, settings: EngineSettings, load: Load) -> None:
        self._merged, self._vocabulary = vocabulary, models.config.lm.vocabulary
        # Recorded launches need a CUDA stream of their own; the weights were laid out on another.
        self._lane = Lane(models.device)
        if models.device.type == "cuda":
            torch.cuda.synchronize(models.device)
        with torch.inference_mode(), self._lane.entered():
            self._stage = LMStage(
                models, slots=load.batch_size, capacity=load.positions, kernels=uses_kernels(models, settings)
            )
            if models.device.type == "cuda":  # elsewhere nothing is recorded
                self._stage.prepare()

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """See `LanguageModel`."""
        stage = self._stage
        with self._lane.entered():
            slots = [stage.open(SamplingParams(), prompt.seed) for prompt in prompts]
            try:
                for slot, prompt in zip(slots, prompts, strict=True):
                    stage.feed(slot, self._run(prompt))
                stage.prefill(slots)
                return self._decoded(slots)
            finally:
                for slot in slots:
                    stage.close(slot)

    def close(self) -> None:
        """See `LanguageModel`; the networks are the caller's."""
        del self._stage

    def _decoded(self, slots: Sequence[int]) -> list[list[int]]:
        spoken: dict[int, list[int]] = {slot: [] for slot in slots}
        while self._stage.decoding or self._stage.in_flight:
            self._stage.decode()
            while self._stage.in_flight > (_AHEAD if self._stage.decoding else 0):
                for one in self._stage.collect(wait=True):
                    spoken[one.slot].extend(one.ids[:-1] if one.ended else one.ids)
        return list(spoken.values())

    def _run(self, prompt: Prompt) -> Run:
        stops = tuple(self._vocabulary.stop_ids)
        rows = tuple(map(self._row, prompt.ids))
        return Run(rows, stops, prompt.most, self._vocabulary.eos, prompt.least, early_forbidden=stops)

    def _row(self, merged_id: int) -> Row:
        controls = {self._merged.sos: self._vocabulary.sos, self._merged.task: self._vocabulary.task}
        if merged_id in controls:
            return Row(RowKind.CONTROL, controls[merged_id])
        if merged_id < self._merged.text_size:
            return Row(RowKind.TEXT, merged_id)
        return Row(RowKind.SPEECH, merged_id - self._merged.text_size)
