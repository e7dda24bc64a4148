"""Make a model repository for Triton from the templates of its models."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any, NamedTuple

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import YAML_OF, detect_generation
from vivavoce.engine.backends import FLOW_BACKENDS, LM_BACKENDS
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, UnsupportedModel
from vivavoce.files import fresh_folder
from vivavoce_triton.client.utterance import LoadMode
from vivavoce_triton.server import refuse_foreign

REFERENCE_MODELS = ("audio_tokenizer", "speaker_embedding")
"""Models that encode recordings. A repository that serves only stored voices does not have them."""
LANGUAGE_MODEL = "tensorrt_llm"
BUILDER = "trtllm-build"
TENSOR_TYPES = ("TYPE_FP16", "TYPE_BF16", "TYPE_FP32")
CHUNK_STRATEGIES = ("exponential", "time_based", "equal", "low_latency", "official")
MARK = ".vivavoce-repository.json"
"""File that marks a rendered repository. Triton ignores it."""
CONFIG, CODE = "config.pbtxt", "1/model.py"
STEP_AUDIO = ("flow.yaml", "token2wav/flow.yaml")
"""A folder of Step-Audio 2 has one of these files. The original `token2wav_dit` loads its flow from such a folder."""


class Code(NamedTuple):
    """The code of a model: the folder of its template, and the module and name of its class."""

    template: str
    module: str
    name: str


CODES = {
    "audio_tokenizer": Code("audio_tokenizer", "reference_models", "AudioTokenizer"),
    **dict.fromkeys(
        ("cosyvoice2", "cosyvoice2_dit", "cosyvoice3"), Code("cosyvoice2", "cosyvoice2", "CosyVoice2Model")
    ),
    "speaker_embedding": Code("speaker_embedding", "reference_models", "SpeakerEmbedding"),
    LANGUAGE_MODEL: Code(LANGUAGE_MODEL, "tensorrt_llm", "TensorrtLLM"),
    "token2wav": Code("token2wav", "token2wav", "Token2Wav"),
    "token2wav_dit": Code("token2wav_dit", "other_layouts", "Token2WavDit"),
    "vivavoce": Code("vivavoce", "vivavoce_model", "VivavoceModel"),
    "vocoder": Code("vocoder", "other_layouts", "MelVocoder"),
}
COSYVOICE3_CODES = {
    "audio_tokenizer": Code("audio_tokenizer", "reference_models", "PlainAudioTokenizer"),
    "token2wav": Code("token2mel", "other_layouts", "Token2Mel"),
}
"""Models of CosyVoice3's layout that have the same names as in other layouts, but other tensors or ids."""
_CODE = '''"""Triton's Python backend runs this file: the model {model}, whose code is in the package."""

import triton_python_backend_utils as pb_utils

from vivavoce_triton.models.backend import python_model
from vivavoce_triton.models.{module} import {name}

TritonPythonModel = python_model({name}, pb_utils)
'''
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def _text(value: str) -> str:
    if _UNPRINTABLE.search(value):
        raise ValueError("give one line of text")
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _count(value: str, least: int = 1) -> str:
    if not value.strip().isdecimal() or int(value) < least:
        raise ValueError(f"give a whole number from {least} on")
    return str(int(value))


def _gigabytes(value: str) -> str:
    if value and not _NUMBER.fullmatch(value):
        raise ValueError("give gigabytes such as 8, or nothing")
    return value


def _fraction(value: str) -> str:
    if not _NUMBER.fullmatch(value) or not 0 < float(value) <= 1:
        raise ValueError("give a number above 0, and 1 at most")
    return value


def _address(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError("give an address such as http://localhost:8000/v1/chat/completions, or nothing")
    return _text(value)


def _switch(value: str) -> str:
    # The official instructions write True and False; Triton and the models read true and false.
    word = {"1": "true", "0": "false"}.get(value.strip(), value.strip().lower())
    if word not in ("true", "false"):
        raise ValueError("give true or false")
    return word


_LEFT_TO_THE_ENGINE = (
    "batch_scheduler_policy cancellation_check_period_ms cross_kv_cache_fraction cuda_graph_cache_size "
    "cuda_graph_mode decoding_mode eagle_choices enable_chunked_context enable_context_fmha_fp32_acc "
    "encoder_engine_dir gpu_device_ids gpu_weights_percent guided_decoding_backend iter_stats_max_iterations "
    "kv_cache_host_memory_bytes kv_cache_onboard_blocks lookahead_ngram_size lookahead_verification_set_size "
    "lookahead_window_size lora_cache_gpu_memory_fraction lora_cache_host_memory_bytes "
    "lora_cache_max_adapter_size lora_cache_optimal_adapter_size lora_prefetch_dir medusa_choices "
    "multi_block_mode normalize_log_probs participant_ids request_stats_max_iterations sink_token_length "
    "speculative_decoding_fast_logits stats_check_period_ms xgrammar_tokenizer_info_path"
)
"""Variables that are left empty, so that TensorRT-LLM's backend uses its own defaults."""

_from_zero = partial(_count, least=0)
VARIABLES: Mapping[str, tuple[str | None, Callable[[str], str] | tuple[str, ...]]] = MappingProxyType(
    {
        "model_dir": (None, _text),
        "llm_tokenizer_dir": ("", _text),
        "device": ("auto", _text),
        "triton_max_batch_size": ("16", _count),
        "max_queue_delay_microseconds": ("0", _from_zero),
        "max_queue_size": ("0", _from_zero),
        "decoupled_mode": ("true", _switch),
        "bls_instance_num": ("4", _count),
        "dynamic_chunk_strategy": ("exponential", CHUNK_STRATEGIES),
        "sample_rate": ("24000", _count),
        "use_spk2info_cache": ("false", _switch),
        "default_voice": ("", _text),
        "voices_dir": ("", _text),
        "memory_gb": ("", _gigabytes),
        "lm_backend": ("torch", LM_BACKENDS),
        "flow_backend": ("torch", FLOW_BACKENDS),
        "trt_concurrent": ("1", _count),
        "tp": ("1", _count),
        "pp": ("1", _count),
        "trust_model_code": ("false", _switch),
        "triton_backend": ("python", ("python", "tensorrtllm")),
        "llm_backend": ("vivavoce", ("vivavoce", "llmapi")),
        "llm_api_base": ("", _address),
        "llm_model_name": ("trt_engines_bfloat16", _text),
        "engine_dir": ("", _text),
        "tokenizer_dir": ("", _text),
        "batching_strategy": ("inflight_fused_batching", _text),
        "max_beam_width": ("1", _count),
        "max_tokens_in_paged_kv_cache": ("2560", _count),
        "max_attention_window_size": ("2560", _count),
        "kv_cache_free_gpu_mem_fraction": ("0.5", _fraction),
        "exclude_input_in_output": ("true", _switch),
        "enable_kv_cache_reuse": ("false", _switch),
        "logits_datatype": ("TYPE_FP32", TENSOR_TYPES),
        "encoder_input_features_data_type": ("TYPE_FP16", TENSOR_TYPES),
        **dict.fromkeys(_LEFT_TO_THE_ENGINE.split(), ("", _text)),
    }
)
"""Variable → (default, or None if a value is required; allowed words, or a function that converts or refuses values)"""


def fill_template(text: str, values: Mapping[str, str], *, name: str = "template") -> str:
    """Replace every `${variable}` by its value or default, and `$$` by a dollar sign. Unused values are ignored.

    `InvalidRequest`: an unknown variable, a missing or forbidden value, or a dollar sign that begins no variable.
    """
    defaults = {variable: default for variable, (default, _) in VARIABLES.items() if default is not None}
    try:
        return Template(text).substitute(defaults | check_values(values))
    except KeyError as missing:
        (variable,) = missing.args
        _refuse_unknown([variable], name)
        raise InvalidRequest(f"{name}: no value for {variable}; add {variable}=VALUE") from None
    except ValueError as error:
        (line,) = re.findall(r"line \d+", str(error))
        raise InvalidRequest(f"{name}: {line}: a dollar sign begins no variable; write ${{name}}, or $$") from None


def check_values(values: Mapping[str, str]) -> dict[str, str]:
    """Convert values to the form that the files need. `InvalidRequest`: an unknown variable, or a forbidden value."""
    _refuse_unknown(values, "values")
    checked = {}
    for name, value in values.items():
        default, allowed = VARIABLES[name]
        if default is None and not value:
            raise InvalidRequest(f"{name}: is empty; give a value")
        try:
            if isinstance(allowed, tuple) and value not in allowed:
                raise ValueError(f"give one of {', '.join(allowed)}")
            checked[name] = value if isinstance(allowed, tuple) else allowed(value)
        except ValueError as wanted:
            raise InvalidRequest(f"{name}: {value!r} cannot be; {wanted}") from None
    return checked


def parse_values(arguments: Iterable[str]) -> dict[str, str]:
    """Parse arguments `key=value`, whose value may hold any characters, or `key:value,key:value`.

    `InvalidRequest`: an argument is malformed, or one key has two different values.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        pieces = [argument.split("=", 1)] if _ASSIGNMENT.match(argument) else []
        for piece in [] if pieces else argument.split(","):
            key, colon, value = piece.partition(":")
            if not colon or not key.strip():
                raise InvalidRequest(
                    f"values: {piece!r} is not key:value; if it holds ':' or ',', write key=value as one argument"
                )
            pieces.append([key.strip(), value])
        for key, value in pieces:
            if values.setdefault(key, value) != value:
                raise InvalidRequest(f"{key}: given as {values[key]!r} and as {value!r}; give it once")
    return values


def _refuse_unknown(names: Iterable[str], where: str) -> None:
    unknown = [name for name in names if name not in VARIABLES]
    if unknown:
        noun = "is not a variable" if len(unknown) == 1 else "are not variables"
        raise InvalidRequest(f"{where}: {', '.join(unknown)} {noun}; known are {', '.join(sorted(VARIABLES))}")


class ModelSet(str, Enum):
    STAGED = "staged"
    """`cosyvoice2` and the four models that it sends requests to."""
    FAST = "fast"
    """`vivavoce`: the whole engine in one model."""
    BOTH = "both"
    """`staged` and `fast` together. On a GPU, their models share its memory."""
    COSYVOICE3 = "cosyvoice3"
    """The layout for CosyVoice3: the model `cosyvoice3`, a `token2wav` that outputs mels, and a `vocoder`."""
    DIT = "dit"
    """The layout of CosyVoice2 with `token2wav_dit`, which reads the recording itself."""

    @property
    def speaking(self) -> str:
        """The name of the model that clients send requests to."""
        return {"fast": "vivavoce", "cosyvoice3": "cosyvoice3", "dit": "cosyvoice2_dit"}.get(self.value, "cosyvoice2")


_STAGES = {
    ModelSet.STAGED: ("token2wav",),
    ModelSet.BOTH: ("token2wav", "vivavoce"),
    ModelSet.COSYVOICE3: ("token2wav", "vocoder"),
    ModelSet.DIT: ("token2wav_dit",),
}
"""The models of each set besides the speaking model, the language model and the models that encode recordings."""
_MADE_FOR = {ModelSet.COSYVOICE3: Generation.V3, ModelSet.DIT: Generation.V2}


def check_fits(models: ModelSet, folder: Path) -> None:
    """Check that the folder's model fits the set. `InvalidRequest`: the set is made for another generation of models.
    `UnsupportedModel`: the model is Step-Audio 2's, not CosyVoice's. Other errors are those of `detect_generation`.
    """
    try:
        found, wanted = detect_generation(folder), _MADE_FOR.get(models)
    except CheckpointError:
        if not any((folder / name).is_file() for name in STEP_AUDIO):
            raise
        raise UnsupportedModel(
            f"model: {folder.name} is Step-Audio 2's, whose flow is another network than CosyVoice's and is not "
            "supported; give CosyVoice2's folder: token2wav_dit then speaks with CosyVoice2's own flow"
        ) from None
    if wanted not in (None, found):
        raise InvalidRequest(
            f"models: {models.value} needs a folder with {YAML_OF[wanted]}, and {folder.name} has {YAML_OF[found]}; "
            "choose staged or fast, or another model"
        )


class LanguageModelRuntime(str, Enum):
    """The runtime that generates the tokens of the model `tensorrt_llm`."""

    ENGINE = "engine"
    """Triton's TensorRT-LLM backend with a built engine."""
    LLMAPI = "llmapi"
    """TensorRT-LLM's LLM API with a merged Hugging Face folder."""
    VIVAVOCE = "vivavoce"
    """The language model of this package, on any machine."""


def choose_runtime(wish: LanguageModelRuntime | None) -> LanguageModelRuntime:
    """Return the wished runtime, or for None the best installed one. `MissingDependency`: the wished one is missing."""
    builder, api = shutil.which(BUILDER) is not None, has_package("tensorrt_llm")
    if wish is LanguageModelRuntime.ENGINE and not builder:
        raise MissingDependency(
            f"llm: 'engine' needs {BUILDER}, which is not on PATH; run in the container "
            "tritonserver:26.07-trtllm-python-py3, or choose auto"
        )
    if wish is LanguageModelRuntime.LLMAPI and not api:
        raise MissingDependency(
            "llm: llmapi needs the package tensorrt_llm, which is not installed; run in one of NVIDIA's TensorRT-LLM "
            "containers, or choose auto"
        )
    runtimes = LanguageModelRuntime
    return wish or (runtimes.ENGINE if builder else runtimes.LLMAPI if api else runtimes.VIVAVOCE)


def has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


_SERVED_BY = {
    LanguageModelRuntime.ENGINE: {"triton_backend": "tensorrtllm"},
    LanguageModelRuntime.LLMAPI: {"triton_backend": "python", "llm_backend": "llmapi"},
    LanguageModelRuntime.VIVAVOCE: {"triton_backend": "python", "llm_backend": "vivavoce"},
}
_FOLDERS = ("model_dir", "llm_tokenizer_dir", "engine_dir", "tokenizer_dir", "voices_dir")


@dataclass(frozen=True)
class RepositoryPlan:
    """values: template variables that do not follow from the other fields; filled: all variables; folders are absolute.

    `InvalidRequest`: `values` has a variable that follows from other fields, or lacks the language model's folder.
    """

    values: Mapping[str, str]
    mode: LoadMode = LoadMode.STREAMING
    models: ModelSet = ModelSet.STAGED
    language_model: LanguageModelRuntime = LanguageModelRuntime.VIVAVOCE
    filled: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        decided = {"decoupled_mode": str(self.mode is LoadMode.STREAMING).lower(), **_SERVED_BY[self.language_model]}
        given = {"triton_backend", "llm_backend", "decoupled_mode"} & set(self.values)
        if given:
            raise InvalidRequest(f"{min(given)}: follows from the mode and the language model; choose those instead")
        values = {**self.values, **decided}
        for name in _FOLDERS:
            if values.get(name):
                values[name] = os.path.abspath(os.path.expanduser(values[name]))
        object.__setattr__(self, "filled", values)
        own = self.language_model is LanguageModelRuntime.VIVAVOCE
        if LANGUAGE_MODEL in self.names and not own and not values.get("engine_dir"):
            built = self.language_model is LanguageModelRuntime.ENGINE
            what = "the built engine" if built else "the merged model"
            raise InvalidRequest(f"engine_dir: not given; {self.language_model.value} needs the folder of {what}")

    @property
    def names(self) -> tuple[str, ...]:
        if self.models is ModelSet.FAST:
            return (self.models.speaking,)
        chosen = {self.models.speaking, *_STAGES[self.models]}
        if not self.filled.get("llm_api_base"):
            chosen.add(LANGUAGE_MODEL)
        if self.filled.get("use_spk2info_cache", "").strip().lower() not in ("true", "1"):
            chosen.update(REFERENCE_MODELS)
        return tuple(sorted(chosen))

    def code(self, name: str) -> Code:
        own = COSYVOICE3_CODES if self.models is ModelSet.COSYVOICE3 else {}
        return own.get(name, CODES[name])

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "mode": self.mode.value,
            "models": list(self.names),
            "language_model": self.language_model.value,
            "values": dict(sorted(self.filled.items())),
        }


def render_repository(plan: RepositoryPlan, folder: Path) -> bool:
    """Write the repository unless it is up to date. Returns whether it was written.

    `InvalidRequest`: a value is missing, or the folder has something else in it.
    """
    files = rendered_files(plan)
    if _read(folder) == files:
        return False
    refuse_foreign(folder, "repository", MARK)
    with fresh_folder(folder) as new:
        for name in plan.names:
            (new / name / "1").mkdir(parents=True)  # Triton needs the folder of a version, even if it is empty
        for path, content in files.items():
            (new / path).write_bytes(content)
    return True


def rendered_files(plan: RepositoryPlan) -> dict[str, bytes]:
    """The repository's files: relative path → content. `InvalidRequest`: a template lacks a value."""
    files = {MARK: (json.dumps(plan.facts, indent=2, ensure_ascii=False) + "\n").encode()}
    package = resources.files("vivavoce_triton") / "repository"
    for model in plan.names:
        code = plan.code(model)
        template = (package / code.template / CONFIG).read_text(encoding="utf-8")
        template = template.replace(f'name: "{code.template}"', f'name: "{model}"', 1)
        files[f"{model}/{CONFIG}"] = fill_template(template, plan.filled, name=f"{model}/{CONFIG}").encode()
        if model != LANGUAGE_MODEL or plan.language_model is not LanguageModelRuntime.ENGINE:
            files[f"{model}/{CODE}"] = _CODE.format(model=model, **code._asdict()).encode()
    return files


def _read(folder: Path) -> dict[str, bytes] | None:
    if not (folder / MARK).is_file():
        return None
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
