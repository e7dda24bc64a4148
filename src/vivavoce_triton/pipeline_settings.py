"""What the pipeline is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vivavoce.errors import InvalidRequest
from vivavoce_triton.client.utterance import LoadMode, check_reference_text
from vivavoce_triton.model_repository import LanguageModelRuntime, ModelSet, check_values
from vivavoce_triton.server import TritonServerSettings

STAGES = ("download", "convert", "repository", "server", "http", "grpc", "offline")
"""By their numbers, as their notes and results are called."""
DEFAULT_TEXT = "The harbour was quiet this morning, and the ships lay still."


@dataclass(frozen=True)
class ClientRequests:
    """What the clients ask the server for.

    reference: a recording of the voice, None: the server's default voice; manifest: a list of texts in place of the
    one, for the load over gRPC; num_tasks: users at a time.
    """

    text: str = DEFAULT_TEXT
    reference: Path | None = None
    reference_text: str = ""
    manifest: Path | None = None
    num_tasks: int = 4

    def __post_init__(self) -> None:
        if self.num_tasks < 1:
            raise InvalidRequest(f"num_tasks: {self.num_tasks} is below 1; give the number of users at a time")
        check_reference_text(self.reference, self.reference_text)
        for name, path in (("reference_audio", self.reference), ("manifest_path", self.manifest)):
            if path is not None and not path.is_file():
                raise InvalidRequest(f"{name}: {path} is no file; check the path")

    @property
    def arguments(self) -> list[object]:
        """Of `vivavoce client`, for one text."""
        recording: list[object] = ["--reference-audio", self.reference, "--reference-text", self.reference_text]
        return [*(recording if self.reference is not None else []), "--target-text", self.text]


@dataclass(frozen=True)
class PipelineSettings:
    """One run; `InvalidRequest`: a value is out of its limits, or unknown.

    first, last: stages 0 to 6; work: folder of everything that is made; model: a name or a folder; hub: hf or
    modelscope; spk2info: a file of stored speakers, or where to fetch one; language_model: None: a built engine where
    `trtllm-build` is installed, else TensorRT-LLM's API where that is, else our own; engine_dtype: of the built
    engine; values: template variables as they are typed; environment: of the wheel's server, None: the default one;
    force: do again what was done; batch_sizes: None: the usual ones, as far as there are texts to fill them; device:
    where stages 1 and 6 compute, which are no server's (the server's is the variable of that name).
    """

    first: int
    last: int
    work: Path
    model: str = "mini"
    hub: str = "hf"
    spk2info: str | None = None
    language_model: LanguageModelRuntime | None = None
    engine_dtype: str = "bfloat16"
    mode: LoadMode = LoadMode.STREAMING
    models: ModelSet = ModelSet.STAGED
    values: Mapping[str, str] = field(default_factory=dict)
    server: TritonServerSettings = field(default_factory=TritonServerSettings)
    environment: Path | None = None
    asked: ClientRequests = field(default_factory=ClientRequests)
    backends: Sequence[str] = ("torch",)
    batch_sizes: Sequence[int] | None = None
    device: str = "auto"
    force: bool = False

    def __post_init__(self) -> None:
        last = len(STAGES) - 1
        if not 0 <= self.first <= self.last <= last:
            raise InvalidRequest(
                f"stage: {self.first} to {self.last} cannot be; stages go from 0 to {last}, the first one first"
            )
        if self.hub not in ("hf", "modelscope"):
            raise InvalidRequest(f"hub: {self.hub!r} is no hub; choose hf or modelscope")
        check_values(self.values)

    @property
    def speaking_model(self) -> str:
        """The model that clients ask."""
        return "vivavoce" if self.models is ModelSet.FAST else "cosyvoice2"
