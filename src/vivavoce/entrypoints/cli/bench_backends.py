"""Runtimes of the language model that `vivavoce bench offline` compares; each imports its package when it is made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vivavoce.bench.batches import TokenBackend
from vivavoce.checkpoint.known_models import models_home
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.engine.engine import Engine
from vivavoce.engine.lm_stage import without_long_silence
from vivavoce.engine.request import TokenRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency
from vivavoce.export.hf_folder import CONFIG, TOKENIZER, export_hf
from vivavoce.export.merged_lm import HEAD_BIAS, open_merged_lm
from vivavoce.models.build import LanguageModel
from vivavoce.models.lm.interleave import Row, RowKind

if TYPE_CHECKING:
    from vivavoce.entrypoints.cli.bench_model import BenchModel

VLLM_OLDEST, VLLM_NEWEST = (0, 30), (0, 34)
"""The newest is excluded."""
_MEMORY_SHARE = 0.5
"""Of the device's memory: the flow and the vocoder want the rest."""


class Backend(str, Enum):
    """What runs the language model."""

    TORCH = "torch"
    """Our own engine, with the language model alone."""
    HF = "hf"
    VLLM = "vllm"
    TRTLLM = "trtllm"


_NEEDS = {
    Backend.HF: ("transformers", "pip install 'vivavoce[hf]'"),
    Backend.VLLM: ("vllm", "pip install 'vllm>=0.30,<0.34' into an environment of its own"),
    Backend.TRTLLM: ("tensorrt_llm", "run in NVIDIA's TensorRT-LLM or Triton (-trtllm-python-py3) container"),
}


def parse_backends(names: Sequence[str]) -> list[Backend]:
    """The runtimes of these names, each once; `InvalidRequest` if there is none of a name."""
    known = {backend.value: backend for backend in Backend}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"backend: {name!r} is unknown; use one of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def check_installed(backend: Backend) -> None:
    """`MissingDependency` if a runtime's package is not there; nothing is imported."""
    package, remedy = _NEEDS.get(backend, ("", ""))
    if package and find_spec(package) is None:
        raise MissingDependency(f"backend: {backend.value} needs the package {package}, which is not here; {remedy}")


@dataclass(frozen=True)
class BackendSampling:
    """How other runtimes draw speech tokens; the values of CosyVoice2's published Triton deployment."""

    top_p: float = 0.95
    top_k: int = 50
    temperature: float = 0.8
    repetition_penalty: float = 1.1

    def describe(self) -> str:
        """One line for a report."""
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items())


@dataclass(frozen=True, eq=False)
class BackendLimits:
    """The most that a runtime will be asked for; positions: of a prompt and its speech."""

    batch_size: int
    positions: int

    @classmethod
    def of(cls, prompts: Sequence[TokenRequest], batch_size: int) -> BackendLimits:
        """That of these prompts."""
        return cls(batch_size, max(len(one.rows) + one.max_tokens + 1 for one in prompts))


@dataclass(frozen=True, eq=False)
class MergedModel:
    """A merged Qwen2 model, and where it runs.

    bias: [padded_size] float32, to be added to the logits, −∞ where no speech is; sos: the own model's control id that
    begins a prompt.
    """

    name_or_path: str
    vocabulary: MergedVocabulary
    bias: Tensor
    sos: int
    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """As other packages write it."""
        return str(self.dtype).removeprefix("torch.")

    def bias_for(self, rows: int) -> Tensor:
        """The bias for a head of that many rows: [rows] float32; `CheckpointError` if the head is too small."""
        if rows < self.vocabulary.size:
            raise CheckpointError(
                f"llm_model_name_or_path: {self.name_or_path!r} has {rows} ids, this model's vocabulary "
                f"{self.vocabulary.size}; make the folder with `vivavoce export hf`"
            )
        found = torch.full((rows,), -torch.inf)
        shared = min(rows, len(self.bias))
        found[:shared] = self.bias[:shared]
        return found

    def ids(self, rows: Sequence[Row]) -> list[int]:
        """Rows of three tables → ids of the merged one."""

        def merged(row: Row) -> int:
            if row.kind is RowKind.CONTROL:
                return self.vocabulary.sos if row.id == self.sos else self.vocabulary.task
            return self.vocabulary.speech(row.id) if row.kind is RowKind.SPEECH else row.id

        return list(map(merged, rows))

    def speech(self, ids: Sequence[int]) -> list[int]:
        """Ids that a runtime gave → speech tokens up to the first other id, as our engine speaks them."""
        said = [one - self.vocabulary.text_size for one in takewhile(self.vocabulary.is_speech, ids)]
        return without_long_silence(said, self.vocabulary.own.silent, 0)[0]


def merged_model(model: BenchModel, name_or_path: str | None) -> MergedModel:
    """The folder or hub name that was given, else one that is made among the downloaded models and used again.

    That is a cache: its name tells the model, its parts and the dtype, so that what is there is what would be made.
    `CheckpointError`: the folder is of another model.
    """
    vocabulary, models, variant = model.vocabulary, model.models, model.variant
    bias = open_merged_lm(model.folder, vocabulary.text_size, variant).read(HEAD_BIAS)
    if name_or_path is None:
        dtype = str(models.dtype).removeprefix("torch.")
        fingerprint = model.front_end.extractor.fingerprint
        folder = models_home().parent / "merged" / "-".join(part for part in (fingerprint, variant, dtype) if part)
        if not (folder / CONFIG).is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            export_hf(model.folder, folder, model.tokenizer.to_json(), dtype=dtype, variant=variant)
        name_or_path = str(folder)
    elif Path(name_or_path).is_dir():
        _check_fits(Path(name_or_path), vocabulary)
    sos = models.config.lm.vocabulary.sos
    return MergedModel(name_or_path, vocabulary, bias, sos, models.device, models.dtype)


def _check_fits(folder: Path, vocabulary: MergedVocabulary) -> None:
    """Whether its speech begins where this model's does: ids of another table still give some speech."""
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"llm_model_name_or_path: {str(folder)!r} has no {CONFIG}; make the folder with `vivavoce export hf`"
        )
    found = _first_speech_id(folder)
    if found is not None and found != vocabulary.speech(0):
        raise CheckpointError(
            f"llm_model_name_or_path: speech begins at id {found} in {str(folder)!r}, in this model at "
            f"{vocabulary.speech(0)}; make the folder with `vivavoce export hf`"
        )


def _first_speech_id(folder: Path) -> int | None:
    """What its tokenizer says, in either of the two files that may hold added tokens; None: nothing."""
    first = "<|s_0|>"
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        added = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))["added_tokens"]
        return next((int(token["id"]) for token in added if token["content"] == first), None)
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads((folder / "added_tokens.json").read_text(encoding="utf-8")).get(first)
        return None if found is None else int(found)
    return None


class OwnModel:
    """Our engine with the language model alone; draws as the model's own configuration says."""

    sampling = "repetition-aware, as the model's configuration says"

    def __init__(self, model: LanguageModel, settings: EngineSettings, batch_size: int) -> None:
        self._engine = Engine(model, replace(settings, slots=batch_size))
        self._engine.warm_up()

    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        """See `TokenBackend`."""
        handles = [self._engine.submit(one) for one in prompts]
        return [list(handle.result().tokens[0]) for handle in handles]

    def close(self) -> None:
        """See `TokenBackend`."""
        self._engine.close()


class HuggingFaceModel:
    """The merged model in transformers, in the networks' device and dtype.

    It has one generator for a batch: the first prompt's seed is that of all, and the batch goes on until its last row
    has ended.
    """

    def __init__(self, merged: MergedModel, sampling: BackendSampling = BackendSampling()) -> None:
        self._transformers = import_module("transformers")
        self._transformers.utils.logging.disable_progress_bar()
        model = self._transformers.AutoModelForCausalLM.from_pretrained(merged.name_or_path, dtype=merged.dtype)
        self._model = model.to(merged.device).eval()
        self._merged, self._drawing = merged, sampling
        self._bias = merged.bias_for(int(model.config.vocab_size)).to(merged.device)
        self.sampling = sampling.describe()

    @torch.inference_mode()
    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        """See `TokenBackend`."""
        ids, mask = self._padded([self._merged.ids(prompt.rows) for prompt in prompts])
        devices = [self._merged.device] if self._merged.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(prompts[0].seed)
            given = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                **asdict(replace(self._drawing, repetition_penalty=1.0)),
                min_new_tokens=min(prompt.min_tokens for prompt in prompts),
                max_new_tokens=max(prompt.max_tokens for prompt in prompts),
                eos_token_id=list(self._merged.vocabulary.eos_ids),
                pad_token_id=self._merged.vocabulary.eos_ids[0],
                logits_processor=self._processors(),
            )
        rows = given[:, ids.shape[1] :].tolist()
        return [self._merged.speech(row)[: prompt.max_tokens] for row, prompt in zip(rows, prompts, strict=True)]

    def close(self) -> None:
        """See `TokenBackend`."""
        del self._model

    def _padded(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids, and 1 where they are not padding: [rows, longest] int64 each."""
        longest = max(map(len, prompts))
        # An id that begins every prompt: the penalty counts whatever stands in one, be it masked.
        pad = self._merged.vocabulary.sos
        ids = torch.tensor([[pad] * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        return ids.to(self._merged.device), mask.to(self._merged.device)

    def _processors(self) -> Any:
        """The bias before the penalty: only then does the penalty see the model's own logits."""
        bias, package = self._bias, self._transformers

        class SpeechBias(package.LogitsProcessor):  # type: ignore[name-defined,misc]
            """Adds the speech head's bias, which Qwen2 has no place for; no text id is ever drawn."""

            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                """input_ids: [rows, time]; scores: [rows, ids]  →  the same shape."""
                return scores + bias

        penalty = package.RepetitionPenaltyLogitsProcessor(self._drawing.repetition_penalty)
        return package.LogitsProcessorList([SpeechBias(), penalty])


class _SeededModel:
    """The merged model in a runtime that has a seed for each row; prompt: what it takes ids in."""

    _llm: Any

    def __init__(
        self, merged: MergedModel, sampling: BackendSampling, parameters: Callable[..., Any], prompt: Callable[..., Any]
    ) -> None:
        self._merged, self._drawing, self._parameters, self._prompt = merged, asdict(sampling), parameters, prompt
        self.sampling = sampling.describe()

    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        """See `TokenBackend`."""
        parameters = [
            self._parameters(
                **self._drawing,
                seed=prompt.seed,
                min_tokens=prompt.min_tokens,
                max_tokens=prompt.max_tokens,
                stop_token_ids=list(self._merged.vocabulary.eos_ids),
                detokenize=False,
            )
            for prompt in prompts
        ]
        inputs = [self._prompt(self._merged.ids(prompt.rows)) for prompt in prompts]
        given = self._llm.generate(inputs, parameters, use_tqdm=False)
        return [self._merged.speech(one.outputs[0].token_ids) for one in given]


class VllmModel(_SeededModel):
    """The merged model in vLLM."""

    def __init__(
        self, merged: MergedModel, limits: BackendLimits, sampling: BackendSampling = BackendSampling()
    ) -> None:
        # The newer runner takes 1024 biased ids of a request at most, speech has over six thousand.
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        vllm = import_module("vllm")
        _check_version(str(vllm.__version__))
        bias = {one: float(merged.bias[one]) for one in merged.vocabulary.head}
        parameters = partial(vllm.SamplingParams, logit_bias=bias, allowed_token_ids=list(bias))
        super().__init__(merged, sampling, parameters, lambda ids: {"prompt_token_ids": ids})
        self._llm = vllm.LLM(
            model=merged.name_or_path,
            skip_tokenizer_init=True,
            dtype=merged.dtype_name,
            max_model_len=limits.positions,
            max_num_seqs=limits.batch_size,
            gpu_memory_utilization=_MEMORY_SHARE,
            seed=0,
        )

    def close(self) -> None:
        """See `TokenBackend`."""
        del self._llm


def _check_version(version: str) -> None:
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return  # built from source: its owner knows
    if not VLLM_OLDEST <= (major, minor) < VLLM_NEWEST:
        raise MissingDependency(
            f"backend: vllm {version} was never tried; pip install 'vllm>={VLLM_OLDEST[0]}.{VLLM_OLDEST[1]},"
            f"<{VLLM_NEWEST[0]}.{VLLM_NEWEST[1]}'"
        )


class TensorRTModel(_SeededModel):
    """The merged model in TensorRT-LLM.

    engine_dir: an engine that trtllm-build made, for releases that still run such; None: the folder itself.
    """

    def __init__(
        self,
        merged: MergedModel,
        limits: BackendLimits,
        engine_dir: Path | None,
        sampling: BackendSampling = BackendSampling(),
    ) -> None:
        package, end = import_module("tensorrt_llm"), merged.vocabulary.eos_ids[0]
        cache = import_module("tensorrt_llm.llmapi").KvCacheConfig(free_gpu_memory_fraction=_MEMORY_SHARE)
        ends = {"end_id": end, "pad_id": end, "embedding_bias": merged.bias}
        super().__init__(merged, sampling, partial(package.SamplingParams, **ends), list)
        settings: dict[str, Any] = {"skip_tokenizer_init": True, "kv_cache_config": cache}
        if engine_dir is None:
            settings |= {"max_batch_size": limits.batch_size, "max_seq_len": limits.positions}
            self._llm = package.LLM(model=merged.name_or_path, dtype=merged.dtype_name, **settings)
        else:  # an engine has its dtype and its limits from when it was built
            self._llm = _engine_class(package)(model=str(engine_dir), **settings)

    def close(self) -> None:
        """See `TokenBackend`."""
        self._llm.shutdown()


def _engine_class(package: Any) -> Any:
    """The class that runs engines: since 1.0 it is no longer the package's first one."""
    try:
        return import_module("tensorrt_llm._tensorrt_engine").LLM
    except ImportError:
        return package.LLM


def open_backend(
    backend: Backend,
    model: BenchModel,
    settings: EngineSettings,
    limits: BackendLimits,
    merged: str | None = None,
    engine_dir: Path | None = None,
    sampling: BackendSampling = BackendSampling(),
) -> TokenBackend:
    """Load a runtime; all but our own read the merged model, and only they draw by `sampling`.

    merged: as in `merged_model`. `MissingDependency`: its package is of a version that was never tried;
    `CheckpointError`: the folder is of another model.
    """
    if backend is Backend.TORCH:
        return OwnModel(model.language_model(), settings, limits.batch_size)
    found = merged_model(model, merged)
    if backend is Backend.HF:
        return HuggingFaceModel(found, sampling)
    if backend is Backend.VLLM:
        return VllmModel(found, limits, sampling)
    return TensorRTModel(found, limits, engine_dir, sampling)
