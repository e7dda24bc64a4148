"""The runtimes by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    from vivavoce.bench.offline import LanguageModel, Prompt
    from vivavoce.doors.cli.bench_backends.merged import MergedModel
    from vivavoce.doors.cli.bench_studio import Studio
    from vivavoce.engine.settings import EngineSettings


class Backend(str, Enum):
    """What runs the language model."""

    TORCH = "torch"
    """Our own stage."""
    HF = "hf"
    VLLM = "vllm"
    TRTLLM = "trtllm"


_NEEDS = {
    Backend.HF: ("transformers", "pip install 'vivavoce[hf]'"),
    Backend.VLLM: ("vllm", "pip install 'vllm>=0.30,<0.34' into an environment of its own"),
    Backend.TRTLLM: ("tensorrt_llm", "run in NVIDIA's TensorRT-LLM or Triton (-trtllm-python-py3) container"),
}


def parse_backends(names: Sequence[str]) -> list[Backend]:
    """The runtimes of these names, each once; they are not looked for.

    Raises:
        InvalidRequest: there is none of that name.
    """
    known = {backend.value: backend for backend in Backend}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"backend: {name!r} is unknown; use one of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def check_installed(backend: Backend) -> None:
    """Refuse a runtime whose package is not there; nothing is imported.

    Raises:
        MissingDependency: says what to install.
    """
    package, remedy = _NEEDS.get(backend, ("", ""))
    if package and find_spec(package) is None:
        raise MissingDependency(f"backend: {backend.value} needs the package {package}, which is not here; {remedy}")


@dataclass(frozen=True, eq=False)
class Load:
    """The most that a runtime will be asked for."""

    batch_size: int
    positions: int
    """Of a prompt and its speech."""

    @classmethod
    def of(cls, prompts: Sequence[Prompt], batch_size: int) -> Load:
        """That of these prompts."""
        return cls(batch_size, max(len(one.ids) + one.most + 1 for one in prompts))


def open_backend(
    backend: Backend,
    studio: Studio,
    settings: EngineSettings,
    load: Load,
    merged: MergedModel | None,
    engine_dir: Path | None,
) -> LanguageModel:
    """Load a runtime; merged: the Hugging Face folder, which all but our own need; engine_dir: of TensorRT-LLM.

    Raises:
        MissingDependency: its package is missing, or of a version that was never tried.
        CheckpointError: the folder is none of this model.
    """
    if backend is Backend.TORCH:
        from vivavoce.doors.cli.bench_backends.own import OwnModel

        return OwnModel(studio.models, studio.vocabulary, settings, load)
    assert merged is not None, f"{backend.value} needs the merged model"
    if backend is Backend.HF:
        from vivavoce.doors.cli.bench_backends.hf import HuggingFaceModel

        return HuggingFaceModel(merged, studio.models.device, studio.models.dtype)
    if backend is Backend.VLLM:
        from vivavoce.doors.cli.bench_backends.vllm import VllmModel

        return VllmModel(merged, studio.models.dtype, load)
    from vivavoce.doors.cli.bench_backends.trtllm import TensorRTModel

    return TensorRTModel(merged, studio.models.dtype, load, engine_dir)
