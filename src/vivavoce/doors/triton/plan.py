"""What a model repository holds: which models, how they answer, what serves the language model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from vivavoce.errors import InvalidRequest

REFERENCE_MODELS = ("audio_tokenizer", "speaker_embedding")
"""They read recordings; where only stored voices speak, nobody calls them."""
LANGUAGE_MODEL = "tensorrt_llm"


class Mode(str, Enum):
    """How the speaking models answer."""

    STREAMING = "streaming"
    """Decoupled: many answers a request, audio while it is made."""
    OFFLINE = "offline"
    """One answer a request, as plain HTTP and OpenAI bridges need it."""


class ModelSet(str, Enum):
    """Which models stand in the repository."""

    STAGED = "staged"
    """cosyvoice2 and the four models that it calls."""
    FAST = "fast"
    """vivavoce: the whole engine in one model."""
    BOTH = "both"
    """All of them; on a GPU both then want its memory."""


class LanguageModel(str, Enum):
    """What serves tensorrt_llm."""

    ENGINE = "engine"
    """Triton's TensorRT-LLM backend with a built engine."""
    LLMAPI = "llmapi"
    """TensorRT-LLM's LLM API on a merged Hugging Face folder."""
    VIVAVOCE = "vivavoce"
    """This package's own language model, on any machine."""


_SERVED_BY = {
    LanguageModel.ENGINE: {"triton_backend": "tensorrtllm"},
    LanguageModel.LLMAPI: {"triton_backend": "python", "llm_backend": "llmapi"},
    LanguageModel.VIVAVOCE: {"triton_backend": "python", "llm_backend": "vivavoce"},
}
_FOLDERS = ("model_dir", "llm_tokenizer_dir", "engine_dir", "tokenizer_dir", "voices_dir")


@dataclass(frozen=True)
class RepositoryPlan:
    """One repository.

    values: template variables as they are typed; relative folders are read from the working directory, since the
    server's own is another. Those that mode and language_model decide are not among them.

    Raises:
        InvalidRequest: `values` holds what the other fields decide, or lacks the folder that the language model reads.
    """

    values: Mapping[str, str]
    mode: Mode = Mode.STREAMING
    models: ModelSet = ModelSet.STAGED
    language_model: LanguageModel = LanguageModel.VIVAVOCE
    filled: Mapping[str, str] = field(init=False)
    """All values for the templates."""

    def __post_init__(self) -> None:
        decided = {"decoupled_mode": str(self.mode is Mode.STREAMING).lower(), **_SERVED_BY[self.language_model]}
        given = {"triton_backend", "llm_backend", "decoupled_mode"} & set(self.values)
        if given:
            raise InvalidRequest(f"{min(given)}: follows from the mode and the language model; choose those instead")
        values = {**self.values, **decided}
        for name in _FOLDERS:
            if values.get(name):
                values[name] = os.path.abspath(os.path.expanduser(values[name]))
        object.__setattr__(self, "filled", values)
        if LANGUAGE_MODEL in self.names and self.language_model is not LanguageModel.VIVAVOCE:
            self._require_engine()

    @property
    def names(self) -> tuple[str, ...]:
        """The models, in the order of their names."""
        staged = {"token2wav", LANGUAGE_MODEL, "cosyvoice2"}
        if self.filled.get("use_spk2info_cache", "").strip().lower() not in ("true", "1"):
            staged.update(REFERENCE_MODELS)
        chosen = {ModelSet.STAGED: staged, ModelSet.FAST: {"vivavoce"}, ModelSet.BOTH: staged | {"vivavoce"}}
        return tuple(sorted(chosen[self.models]))

    def _require_engine(self) -> None:
        if not self.filled.get("engine_dir"):
            what = "the built engine" if self.language_model is LanguageModel.ENGINE else "the merged model"
            raise InvalidRequest(f"engine_dir: not given; {self.language_model.value} needs the folder of {what}")
