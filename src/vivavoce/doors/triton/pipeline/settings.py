"""What the pipeline is asked for, understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from vivavoce.clients.triton.utterance import check_reference_text
from vivavoce.doors.triton.plan import LanguageModel, Mode, ModelSet
from vivavoce.doors.triton.server import ServerSettings
from vivavoce.doors.triton.templates import check_values
from vivavoce.errors import InvalidRequest

LAST_STAGE = 6
DEFAULT_TEXT = "The harbour was quiet this morning, and the ships lay still."


class LanguageModelChoice(str, Enum):
    """What shall serve tensorrt_llm."""

    AUTO = "auto"
    """A built engine where `trtllm-build` is installed, else TensorRT-LLM's API where that is, else our own."""
    ENGINE = LanguageModel.ENGINE.value
    LLMAPI = LanguageModel.LLMAPI.value
    VIVAVOCE = LanguageModel.VIVAVOCE.value


@dataclass(frozen=True)
class Asked:
    """What the clients ask the server for.

    text: to be said; reference: a recording of who says it, None: the server's default voice; reference_text: what
    the recording says; manifest: a list of texts in their place, for the load over gRPC; num_tasks: users at a time.
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


@dataclass(frozen=True)
class PipelineSettings:
    """One run.

    first, last: stages 0 to 6; work: folder of everything that is made; model: a name or a folder; hub: hf or
    modelscope; spk2info: a file of stored speakers, or where to fetch one; engine_dtype: of the built engine; values:
    template variables as they are typed; environment: of the wheel's server, None: the default one; force: do again
    what was done; batch_sizes: None: the usual ones, as far as there are texts to fill them; device: where stages 1
    and 6 compute, which are no server's (the server's is the variable of that name).

    Raises:
        InvalidRequest: a value is out of its limits, or unknown.
    """

    first: int
    last: int
    work: Path
    model: str = "mini"
    hub: str = "hf"
    spk2info: str | None = None
    language_model: LanguageModelChoice = LanguageModelChoice.AUTO
    engine_dtype: str = "bfloat16"
    mode: Mode = Mode.STREAMING
    models: ModelSet = ModelSet.STAGED
    values: Mapping[str, str] = field(default_factory=dict)
    server: ServerSettings = field(default_factory=ServerSettings)
    environment: Path | None = None
    asked: Asked = field(default_factory=Asked)
    backends: Sequence[str] = ("torch",)
    batch_sizes: Sequence[int] | None = None
    device: str = "auto"
    force: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last <= LAST_STAGE:
            raise InvalidRequest(
                f"stage: {self.first} to {self.last} cannot be; stages go from 0 to {LAST_STAGE}, the first one first"
            )
        if self.hub not in ("hf", "modelscope"):
            raise InvalidRequest(f"hub: {self.hub!r} is no hub; choose hf or modelscope")
        check_values(self.values)

    @property
    def speaking_model(self) -> str:
        """The model that clients ask."""
        return "vivavoce" if self.models is ModelSet.FAST else "cosyvoice2"
