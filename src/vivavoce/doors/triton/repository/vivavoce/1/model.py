"""Text → audio by the whole engine."""

from typing import Any

import triton_python_backend_utils as pb_utils

from vivavoce.doors.triton.models.vivavoce_model import VivavoceModel


class TritonPythonModel:
    """What Triton's Python backend runs; all of it is the package's."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load the model."""
        self._model = VivavoceModel.load(args, pb_utils)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer a batch, at once or by and by."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Free what it holds."""
        self._model.close()
