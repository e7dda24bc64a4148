"""Reference recordings in, speaker embeddings out."""

from typing import Any

import triton_python_backend_utils as pb_utils

from vivavoce.doors.triton.models.speaker_embedding import SpeakerEmbedding


class TritonPythonModel:
    """What Triton's Python backend runs; all of it is the package's."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load the model."""
        self._model = SpeakerEmbedding.load(args, pb_utils)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Free what it holds."""
        self._model.close()
