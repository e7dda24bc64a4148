"""One vocabulary of text and speech, for runtimes that know a single table of ids.

The merged vocabulary has the text ids first, then the speech ids, then the ids that end speech and the two control ids
that frame the text. The first speech id depends on the text tokenizer (151,663 in the CosyVoice2 release, less in small
models), so it is always computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from vivavoce.checkpoint.config import Generation, Vocabulary
from vivavoce.checkpoint.settings import vocabulary_of
from vivavoce.errors import UnsupportedModel

END, SOS, TASK = "<|eos1|>", "<|sos|>", "<|task_id|>"
CONTROLS: Mapping[Generation, tuple[str, ...]] = {
    Generation.V2: (END, "<|eos2|>", "<|eos3|>", SOS, TASK),
    Generation.V3: (SOS, END, TASK, "<|fill|>"),
}
"""Names of the first ids after the speech tokens, by generation, as the official deployments spell them. CosyVoice3's
other control ids are spelled like speech tokens.
"""
EMBEDDING_BIAS = "embedding_bias.npy"
"""File of the logits' bias, [ids] float32. Servers would load it as weights if it were a *.safetensors file."""
ROWS = 128
"""The rows of the merged tables are padded to a multiple of this, which tensor-parallel runtimes require."""


@dataclass(frozen=True)
class MergedVocabulary:
    """Converts ids. text_size: number of text ids, also special ids. UnsupportedModel: the model is CosyVoice 1."""

    text_size: int
    num_speech_tokens: int
    generation: Generation

    def __post_init__(self) -> None:
        if self.generation not in CONTROLS:
            raise UnsupportedModel(
                "model: exports, Triton's cosyvoice2 and tensorrt_llm, and other runtimes in benchmarks are for "
                "CosyVoice 2 and 3 only; let vivavoce's own engine speak (in Triton: the model vivavoce, --model-set "
                "fast)"
            )

    @cached_property
    def own(self) -> Vocabulary:
        return vocabulary_of(self.generation, self.num_speech_tokens)

    @property
    def head(self) -> range:
        """The ids with a row in the speech head, which can be sampled: speech tokens, and ids that end speech."""
        return range(self.text_size, self.text_size + self.own.num_logits)

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end speech: first the id that the model was trained to emit, then the head's other end ids."""
        return tuple(map(self.speech, sorted(self.own.stop_ids, key=lambda one: (one != self.own.eos, one))))

    @property
    def sos(self) -> int:
        return self._control(SOS)

    @property
    def task(self) -> int:
        return self._control(TASK)

    @property
    def size(self) -> int:
        return max(self.head.stop, self.task + 1)

    @property
    def padded_size(self) -> int:
        return -(-self.size // ROWS) * ROWS

    def speech(self, token: int) -> int:
        """Convert an id of the speech head to its id in the merged vocabulary."""
        return self.text_size + token

    def is_speech(self, merged_id: int) -> bool:
        return self.text_size <= merged_id < self.text_size + self.num_speech_tokens

    def added_tokens(self) -> tuple[str, ...]:
        names = [f"<|s_{token}|>" for token in range(self.size - self.text_size)]
        first, controls = self.num_speech_tokens, CONTROLS[self.generation]
        return *names[:first], *controls, *names[first + len(controls) :]

    def _control(self, name: str) -> int:
        return self.speech(self.num_speech_tokens + CONTROLS[self.generation].index(name))
