"""Merged ids in, merged ids of speech tokens out."""

from typing import Any

import triton_python_backend_utils as pb_utils

from vivavoce.doors.triton.models.tensorrt_llm import TensorrtLLM


class TritonPythonModel:
    """What Triton's Python backend runs; all of it is the package's."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load the model."""
        self._model = TensorrtLLM.load(args, pb_utils)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer a batch, or begin to."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """End what runs."""
        self._model.close()
