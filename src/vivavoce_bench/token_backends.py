"""Language model runtimes for `vivavoce bench offline`; each imports its package when it is created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vivavoce.engine.backends import LM_BACKENDS
from vivavoce.engine.engine import Engine
from vivavoce.engine.lm_stage import without_long_silence
from vivavoce.engine.request import TokenRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency
from vivavoce.models.build import LanguageConfig, LanguageModel
from vivavoce_bench.batches import TokenBackend
from vivavoce_export.hf_folder import CONFIG, SPEECH_START, added_ids, is_hugging_face
from vivavoce_export.merged_folder import merged_folder
from vivavoce_export.merged_lm import HEAD_BIAS, open_merged_lm
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_runtimes.streamed_lm import merged_ids

if TYPE_CHECKING:
    from vivavoce_bench.halves import BenchModel

_MEMORY_SHARE = 0.5
"""The language model's share of the device memory; the flow and the vocoder use the rest."""


_NEEDS = {
    "vllm": ("vllm", "pip install 'vllm>=0.32,<0.34' into an environment of its own"),
    "trtllm": ("tensorrt_llm", "run in NVIDIA's TensorRT-LLM or Triton (-trtllm-python-py3) container"),
}


def check_backends(names: Sequence[str]) -> list[str]:
    """Drop duplicates, import nothing. `InvalidRequest`: unknown name; `MissingDependency`: missing package."""
    for name in names:
        if name not in LM_BACKENDS:
            raise InvalidRequest(f"backend: {name!r} is unknown; use one of {', '.join(LM_BACKENDS)}")
        package, remedy = _NEEDS.get(name, ("", ""))
        if package and find_spec(package) is None:
            raise MissingDependency(f"backend: {name} needs the package {package}, which is not here; {remedy}")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class BackendSampling:
    """Sampling parameters of a TensorRT engine, by default those of CosyVoice2's published Triton deployment."""

    top_p: float = 0.95
    top_k: int = 50
    temperature: float = 0.8
    repetition_penalty: float = 1.1

    def describe(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items())


def merged_model(model: BenchModel, name_or_path: str | None) -> str:
    """Return the given folder or hub name, or export the model with `merged_folder` if none is given.

    `CheckpointError`: the folder belongs to another model.
    """
    if name_or_path is None:
        return str(merged_folder(model.folder, model.models.dtype, model.variant))
    if Path(name_or_path).is_dir():
        _check_fits(Path(name_or_path), model.vocabulary)
    return name_or_path


def _check_fits(folder: Path, vocabulary: MergedVocabulary) -> None:
    """Check the first speech id: a folder of another model would give wrong speech without an error."""
    if not is_hugging_face(folder):
        raise CheckpointError(
            f"llm_model_name_or_path: {str(folder)!r} has no {CONFIG}; make the folder with `vivavoce export hf`"
        )
    found = added_ids(folder).get(SPEECH_START)
    if found is not None and found != vocabulary.speech(0):
        raise CheckpointError(
            f"llm_model_name_or_path: speech ids begin at {found} in {str(folder)!r}, but at {vocabulary.speech(0)} in "
            "this model; make the folder with `vivavoce export hf`"
        )


class OwnModel:
    sampling = "repetition-aware, as the model's configuration says"

    def __init__(self, model: LanguageModel, settings: EngineSettings, batch_size: int) -> None:
        self._engine = Engine(model, replace(settings, slots=batch_size))
        self._engine.warm_up()

    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        handles = [self._engine.submit(one) for one in prompts]
        return [list(handle.result().tokens[0]) for handle in handles]

    def close(self) -> None:
        self._engine.close()


class TensorRTModel:
    """The merged model as an engine of trtllm-build, for TensorRT-LLM releases that still run such engines.

    bias: [padded_size] float32, added to the logits; −∞ at ids that are not speech.
    """

    def __init__(
        self,
        vocabulary: MergedVocabulary,
        bias: Tensor,
        engine_dir: Path,
        sampling: BackendSampling = BackendSampling(),
    ) -> None:
        package = import_module("tensorrt_llm")
        cache = import_module("tensorrt_llm.llmapi").KvCacheConfig(free_gpu_memory_fraction=_MEMORY_SHARE)
        self._vocabulary, self._bias = vocabulary, bias
        self._drawing, self._parameters = asdict(sampling), package.SamplingParams
        self.sampling = sampling.describe()
        # The dtype and the limits were fixed when the engine was built.
        self._llm = _engine_class(package)(model=str(engine_dir), skip_tokenizer_init=True, kv_cache_config=cache)

    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        vocabulary = self._vocabulary
        parameters = [
            self._parameters(
                **self._drawing,
                seed=prompt.seed,
                min_tokens=prompt.min_tokens,
                max_tokens=prompt.max_tokens,
                end_id=vocabulary.eos_ids[0],
                pad_id=vocabulary.eos_ids[0],
                stop_token_ids=list(vocabulary.eos_ids),
                embedding_bias=self._bias,
                detokenize=False,
            )
            for prompt in prompts
        ]
        inputs = [merged_ids(vocabulary, prompt.rows) for prompt in prompts]
        given = self._llm.generate(inputs, parameters, use_tqdm=False)
        return [self._speech(one.outputs[0].token_ids) for one in given]

    def _speech(self, ids: Sequence[int]) -> list[int]:
        """Merged ids → speech tokens before the first other id, with long silences cut as in our engine."""
        said = [one - self._vocabulary.text_size for one in takewhile(self._vocabulary.is_speech, ids)]
        return without_long_silence(said, self._vocabulary.own.silent, 0)[0]

    def close(self) -> None:
        self._llm.shutdown()


def _engine_class(package: Any) -> Any:
    """The class that runs engines; since TensorRT-LLM 1.0 it is not the default one."""
    try:
        return import_module("tensorrt_llm._tensorrt_engine").LLM
    except ImportError:
        return package.LLM


def open_backend(
    backend: str,
    model: BenchModel,
    settings: EngineSettings,
    batch_size: int,
    merged: str | None = None,
    engine_dir: Path | None = None,
    sampling: BackendSampling = BackendSampling(),
) -> TokenBackend:
    """Load a runtime. `torch` reads the model itself, all others the merged model; only engines use `sampling`.

    batch_size: the largest batch; merged: see `merged_model`. `MissingDependency`: the package has an untested version;
    `CheckpointError`: the folder belongs to another model.
    """
    if backend == "torch":
        return OwnModel(model.language_model(), settings, batch_size)
    folder = merged_model(model, merged)
    if backend == "trtllm" and engine_dir is not None:
        bias = open_merged_lm(model.folder, model.vocabulary.text_size, model.variant).read(HEAD_BIAS)
        return TensorRTModel(model.vocabulary, bias, engine_dir, sampling)
    models = model.models  # its language model has no weights
    config = LanguageConfig(models.config.lm, models.config.generation)
    alone = LanguageModel(config, models.lm, models.device, models.dtype, Path(folder))
    return OwnModel(alone, replace(settings, lm_backend=backend), batch_size)
