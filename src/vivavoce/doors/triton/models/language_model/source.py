"""What draws speech tokens for the model `tensorrt_llm`, whichever runtime it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary


class Flavour(str, Enum):
    """The runtimes that the parameter `llm_backend` names."""

    VIVAVOCE = "vivavoce"
    LLMAPI = "llmapi"


@dataclass(frozen=True, eq=False)
class Sampling:
    """How tokens are drawn; None: as the model's own settings say.

    max_tokens, min_tokens: most and least speech tokens; may_end: the model may end the speech, otherwise there are
    exactly max_tokens; top_k: 0 means all ids; embedding_bias: [rows of the merged head] float32, added to the logits.
    """

    max_tokens: int
    min_tokens: int = 1
    may_end: bool = True
    seed: int = 0
    top_p: float | None = None
    top_k: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    embedding_bias: NDArray[np.float32] | None = None


class TokenStream(Protocol):
    """The tokens of one request; one listener."""

    def __aiter__(self) -> AsyncGenerator[list[int], None]:
        """Merged ids of speech tokens, in order, as they come; what ends speech is not among them.

        Raises what the request failed with, after the tokens that came before.
        """

    def cancel(self) -> None:
        """Give it up. After the end: nothing happens."""


class TokenSource(Protocol):
    """A loaded language model."""

    @property
    def vocabulary(self) -> MergedVocabulary:
        """Of the ids that go in and come out."""

    def start(self, prompt: tuple[int, ...], sampling: Sampling) -> TokenStream:
        """Begin to draw what follows a prompt; returns at once. Call it in a running event loop.

        prompt: merged ids that were checked (`prompt.py`)

        Raises:
            VivavoceError: the request cannot be taken.
        """

    def close(self) -> None:
        """End what runs, and free the model."""
