"""The voices, texts and encoders that `vivavoce eval` measures with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.evaluate.cases import Case
    from vivavoce.service.text.frontend import TextFrontEnd
    from vivavoce.service.voices.store import VoiceStore
    from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True, eq=False)
class Voices:
    """Finds the voices of one model: stored ones, built-in ones, and recordings."""

    folder: Path
    store: VoiceStore
    extract: Callable[[Any, str], Voice]
    """(recording, transcript) → voice."""

    def named_or_recorded(self, names: Sequence[str], prompt_texts: Sequence[str]) -> dict[str, Voice]:
        """The voices of these names and recordings by what they were called; transcripts belong to the recordings.

        Raises:
            VoiceNotFound: neither a name nor a file.
            InvalidRequest: a voice of another model, or not as many transcripts as recordings.
            InvalidAudio, InvalidText: a recording or its transcript cannot be used.
        """
        recordings = [name for name in names if not self._is_known(name)]
        if prompt_texts and len(prompt_texts) != len(recordings):
            raise InvalidRequest(
                f"prompt_text: {len(prompt_texts)} given for {len(recordings)} recordings among the voices; give one "
                "for each recording, in their order, or none"
            )
        transcripts = dict(zip(recordings, prompt_texts, strict=True)) if prompt_texts else {}
        return {name: self.find(name, transcripts.get(name, "")) for name in names}

    def of_the_model(self) -> dict[str, Voice]:
        """The model's built-in voices; without any, the stored ones that were made for it.

        Raises:
            InvalidRequest: there are none.
        """
        found = dict(self._built_in) or {
            name: voice for name in self.store for voice in [self.store.load(name)] if self._fits(voice)
        }
        if not found:
            raise InvalidRequest(
                "voice: none is given, this model brings none along, and none is stored for it; name one with --voice"
            )
        return found

    def find(self, name: str, prompt_text: str = "") -> Voice:
        """One voice; see `named_or_recorded`."""
        from vivavoce.service.voices.names import unknown_voice

        if not self._is_known(name):
            if not Path(name).expanduser().is_file():
                raise unknown_voice(name, [*self._built_in, *self.store])
            return self.extract(str(Path(name).expanduser()), prompt_text)
        voice = self.store.load(name) if name in self.store else self._built_in[name]
        if not self._fits(voice):
            raise InvalidRequest(
                f"voice: {name!r} was extracted for another model; extract it again from its recording"
            )
        return voice

    def _is_known(self, name: str) -> bool:
        return name in self.store or name in self._built_in

    def _fits(self, voice: Voice) -> bool:
        return voice.fingerprint in ("", self._fingerprint)

    @cached_property
    def _fingerprint(self) -> str:
        from vivavoce.checkpoint.fingerprint import fingerprint

        return fingerprint(self.folder)

    @cached_property
    def _built_in(self) -> dict[str, Voice]:
        from vivavoce.service.voices.built_in import built_in_voices

        return built_in_voices(self.folder)


class PromptVoices(Mapping[str, "Voice"]):
    """The voices of a list's prompt recordings, each extracted when its line's turn comes and not kept for long.

    Iterating yields nothing: a prompt is compared with what was spoken after it, and with nothing else, because
    several prompts of a list may be of one person.
    """

    def __init__(self, cases: Sequence[Case], extract: Callable[[str, str], Voice]) -> None:
        self._transcripts = {case.voice: case.prompt_text for case in cases}
        self._extract = extract
        self._last: tuple[str, Voice] | None = None

    def __getitem__(self, name: str) -> Voice:
        if self._last is None or self._last[0] != name:
            self._last = name, self._extract(name, self._transcripts[name])
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


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
