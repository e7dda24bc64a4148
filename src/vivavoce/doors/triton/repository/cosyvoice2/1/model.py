"""Text → audio by the other models of this repository."""

from typing import Any

import triton_python_backend_utils as pb_utils

from vivavoce.doors.triton.models.cosyvoice2 import CosyVoice2


class TritonPythonModel:
    """What Triton's Python backend runs; all of it is the package's."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load the model."""
        self._model = CosyVoice2.load(args, pb_utils)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer a batch, at once or by and by."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Free what it holds."""
        self._model.close()
