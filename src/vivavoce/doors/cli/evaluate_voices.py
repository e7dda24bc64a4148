"""The voices, texts and encoders that `vivavoce eval` measures with."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.evaluate.cases import Case
    from vivavoce.service.text.frontend import TextFrontEnd
    from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True, eq=False)
class Voices:
    """Finds the voices of one model: stored ones, built-in ones, and recordings."""

    folder: Path
    known: Sequence[str]
    """Names of the stored and built-in ones."""
    resolve: Callable[[Any, str], Voice]
    """(name or recording, transcript) → voice; see `vivavoce.Vivavoce.voice`."""

    def named_or_recorded(self, names: Sequence[str], prompt_texts: Sequence[str]) -> dict[str, Voice]:
        """The voices of these names and recordings by what they were called; transcripts belong to the recordings.

        Raises:
            InvalidRequest: not as many transcripts as recordings.
            VivavoceError: as `resolve`.
        """
        recordings = [name for name in names if unicodedata.normalize("NFC", name) not in self.known]
        if prompt_texts and len(prompt_texts) != len(recordings):
            raise InvalidRequest(
                f"prompt_text: {len(prompt_texts)} given for {len(recordings)} recordings among the voices; give one "
                "for each recording, in their order, or none"
            )
        transcripts = dict(zip(recordings, prompt_texts, strict=True)) if prompt_texts else {}
        return {name: self.resolve(name, transcripts.get(name, "")) for name in names}

    def of_the_model(self) -> dict[str, Voice]:
        """The model's built-in voices; without any, the stored ones that were made for it.

        Raises:
            InvalidRequest: there are none.
        """
        from vivavoce.service.voices.built_in import built_in_voices

        found = built_in_voices(self.folder)
        for name in () if found else self.known:
            with suppress(InvalidRequest):  # a voice of another model
                found[name] = self.resolve(name, "")
        if not found:
            raise InvalidRequest(
                "voice: none is given, this model brings none along, and none is stored for it; name one with --voice"
            )
        return found


class PromptVoices(Mapping[str, "Voice"]):
    """The voices of a list's prompt recordings, each extracted when its line's turn comes."""

    def __init__(self, cases: Sequence[Case], resolve: Callable[[Path, str], Voice]) -> None:
        self._transcripts = {case.voice: case.prompt_text for case in cases if case.voice is not None}
        self._resolve = resolve

    def __getitem__(self, name: str) -> Voice:
        return self._resolve(Path(name), self._transcripts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._transcripts)

    def __len__(self) -> int:
        return len(self._transcripts)


@dataclass(frozen=True, eq=False)
class Reference:
    """Of a voice, what similarity needs."""

    embedding: Any
    """[speaker size]."""


def prompt_references(
    cases: Sequence[Case], embed: Callable[[Path], Any], show: Callable[[str], None]
) -> dict[str, Reference]:
    """The speakers of a list's prompt recordings, each recording once; errors as in `vivavoce.Vivavoce.embed`."""
    names = list(dict.fromkeys(case.voice for case in cases if case.voice is not None))
    references = {}
    for number, name in enumerate(names, start=1):
        show(f"hearing prompts … {number} of {len(names)}")
        references[name] = Reference(embed(Path(name)))
    return references


def text_front_end(folder: Path) -> TextFrontEnd:
    """The text rules and the tokenizer of a model, without its networks."""
    from vivavoce.checkpoint.folder import BACKBONE, read_card
    from vivavoce.service.text.frontend import TextFrontEnd
    from vivavoce.service.text.tokenizer import TextTokenizer

    return TextFrontEnd(TextTokenizer.from_folder(folder / BACKBONE), scripts=read_card(folder).scripts)


def longest_speech(folder: Path, text: TextFrontEnd, max_ratio: float) -> Callable[[str], float]:
    """The seconds after which the model is stopped in a text: `max_ratio` speech tokens per text token."""
    from vivavoce.checkpoint.folder import read_config
    from vivavoce.checkpoint.weights import find_part, read_tensors

    rates = read_config(folder, read_tensors(find_part(folder, "flow"))).rates

    def longest_s(said: str) -> float:
        num_tokens = sum(len(text.encode(segment)) for segment in text.segments(said))
        return num_tokens * max_ratio / rates.tokens_per_second

    return longest_s
