"""One vocabulary of text and speech, for runtimes that know a single table of ids.

The merged language model has the text ids first, then the speech ids, three ids that end speech, and the two control
ids that frame the text. Where speech begins depends on the text tokenizer: 151,663 in the CosyVoice2 release, less in
small models, so it is always worked out.
"""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.checkpoint.config import Generation, Vocabulary
from vivavoce.errors import UnsupportedModel

MERGED_GENERATION = Generation.V2
"""Whose language models have such a form."""
ROWS = 128
"""The merged tables' rows are padded to a multiple of this, as the tensor-parallel runtimes want them."""


@dataclass(frozen=True)
class MergedVocabulary:
    """text_size: entries of the text tokenizer, its special tokens included; num_speech_tokens: V."""

    text_size: int
    num_speech_tokens: int

    @classmethod
    def of(cls, vocabulary: Vocabulary, text_size: int) -> MergedVocabulary:
        """That of a model; UnsupportedModel: its generation's special ids have no place here."""
        if len(vocabulary.stop_ids) != 3:
            raise UnsupportedModel(
                "model: exports, Triton's cosyvoice2 and tensorrt_llm, and other runtimes in benchmarks are for "
                "CosyVoice2 only; let vivavoce's own engine speak (in Triton: the model vivavoce, --model-set fast)"
            )
        return cls(text_size, vocabulary.num_speech_tokens)

    @property
    def eos_ids(self) -> tuple[int, int, int]:
        """The ids that end speech: V, V + 1 and V + 2 of the speech head."""
        first = self.text_size + self.num_speech_tokens
        return first, first + 1, first + 2

    @property
    def sos(self) -> int:
        """Stands before the text."""
        return self.eos_ids[-1] + 1

    @property
    def task(self) -> int:
        """Stands after the text: what follows is speech."""
        return self.sos + 1

    @property
    def size(self) -> int:
        """Ids in use."""
        return self.task + 1

    @property
    def padded_size(self) -> int:
        """Rows of the merged tables."""
        return -(-self.size // ROWS) * ROWS

    def speech(self, token: int) -> int:
        """The merged id of a speech token or of an id that ends speech: 0 … V + 2."""
        return self.text_size + token

    def is_speech(self, merged_id: int) -> bool:
        """Whether it is a speech token, none that ends or controls."""
        return self.text_size <= merged_id < self.text_size + self.num_speech_tokens

    def added_tokens(self) -> tuple[str, ...]:
        """How the ids after the text are spelled in a tokenizer, in the order of their ids."""
        speech = (f"<|s_{token}|>" for token in range(self.num_speech_tokens))
        return *speech, "<|eos1|>", "<|eos2|>", "<|eos3|>", "<|sos|>", "<|task_id|>"
