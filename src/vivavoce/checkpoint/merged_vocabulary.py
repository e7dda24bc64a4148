"""One vocabulary of text and speech, for runtimes that know a single table of ids.

The merged language model has the text ids first, then the speech ids, then what ends speech and the two control ids
that frame the text. Where speech begins depends on the text tokenizer: 151,663 in the CosyVoice2 release, less in small
models, so it is always worked out.
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
"""How the first ids after the speech tokens are spelled, by the generations whose language models have such a form, as
the official deployments spell them. CosyVoice3's other control ids are spelled as speech tokens are."""
EMBEDDING_BIAS = "embedding_bias.npy"
"""The file of a merged model's folder that says what is to be added to the logits, [ids] float32: −∞ where no id is
speech. Servers take every *.safetensors in a folder for weights of the model, and refuse a name that it lacks; hence
another kind of file."""
ROWS = 128
"""The merged tables' rows are padded to a multiple of this, as the tensor-parallel runtimes want them."""


@dataclass(frozen=True)
class MergedVocabulary:
    """text_size: entries of the text tokenizer, its special tokens included; num_speech_tokens: V.

    UnsupportedModel: the generation's language models have no such form.
    """

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
        """The language model's own ids, without text."""
        return vocabulary_of(self.generation, self.num_speech_tokens)

    @property
    def head(self) -> range:
        """The ids that have a row of the speech head, and may be sampled: speech tokens, and what ends speech."""
        return range(self.text_size, self.text_size + self.own.num_logits)

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end speech: the one that the model was trained to end with, then all others of the head."""
        return tuple(map(self.speech, sorted(self.own.stop_ids, key=lambda one: (one != self.own.eos, one))))

    @property
    def sos(self) -> int:
        """Stands before the text."""
        return self._control(SOS)

    @property
    def task(self) -> int:
        """Stands after the text: what follows is speech."""
        return self._control(TASK)

    @property
    def size(self) -> int:
        """Ids in use."""
        return max(self.head.stop, self.task + 1)

    @property
    def padded_size(self) -> int:
        """Rows of the merged tables."""
        return -(-self.size // ROWS) * ROWS

    def speech(self, token: int) -> int:
        """The merged id of a speech token or of an id that ends speech: those of the head."""
        return self.text_size + token

    def is_speech(self, merged_id: int) -> bool:
        """Whether it is a speech token, none that ends or controls."""
        return self.text_size <= merged_id < self.text_size + self.num_speech_tokens

    def added_tokens(self) -> tuple[str, ...]:
        """How the ids after the text are spelled in a tokenizer, in the order of their ids."""
        names = [f"<|s_{token}|>" for token in range(self.size - self.text_size)]
        first, controls = self.num_speech_tokens, CONTROLS[self.generation]
        return *names[:first], *controls, *names[first + len(controls) :]

    def _control(self, name: str) -> int:
        return self.speech(self.num_speech_tokens + CONTROLS[self.generation].index(name))
