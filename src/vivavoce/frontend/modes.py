"""The modes of each generation. This table shows which features of a voice the language model and the flow get.

| mode          | generations | LM prompt text | LM prompt speech | LM speaker row | flow prompt                    |
|---------------|-------------|----------------|------------------|----------------|--------------------------------|
| zero_shot     | all         | transcript     | reference tokens | CosyVoice 1    | tokens and mel                 |
| cross_lingual | all         | –              | –                | CosyVoice 1    | tokens and mel                 |
| instruct      | all         | instruction    | –                | –              | tokens and mel; CosyVoice 1: – |
| sft           | all         | –              | –                | CosyVoice 1    | –                              |

The flow gets the speaker embedding in every mode. All generations convert voices: the speech tokens then come from the
source recording instead of the language model, and the flow gets the features of cross_lingual.

In every mode, CosyVoice3 first reads a system prompt: "You are a helpful assistant.", then the instruction in mode
instruct, then a mark that ends the prompt. CosyVoice 1's vocabulary has no token for its mark; the mark is encoded as
plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.speech import Mode
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT
from vivavoce.frontend.voices.voice import Voice


@dataclass(frozen=True)
class Route:
    """The features that a mode uses; the columns of the table above, from the second to the last."""

    lm_text: bool = False
    lm_speech: bool = False
    lm_speaker: bool = False
    flow_prompt: bool = True


@dataclass(frozen=True)
class GenerationModes:
    """The modes of a generation.

    title: the generation's name in messages. system: the beginning of its system prompt, or "" if it has none. mark:
    the mark that ends a prompt. by_words: whether a text that arrives in pieces may be spoken word by word; otherwise
    it is spoken sentence by sentence."""

    title: str
    routes: Mapping[Mode, Route]
    system: str = ""
    mark: str = END_OF_PROMPT
    by_words: bool = True

    def prompt(self, instruct: str = "") -> str:
        """Return the prompt before the spoken text, with the mark at its end; `instruct` itself if it has a mark."""
        if self.mark in instruct or END_OF_PROMPT in instruct:
            return instruct
        return (f"{self.system} {instruct.strip()}".strip() if self.system else instruct) + self.mark


_ROUTES = {
    Mode.ZERO_SHOT: Route(lm_text=True, lm_speech=True),
    Mode.CROSS_LINGUAL: Route(),
    Mode.INSTRUCT: Route(lm_text=True),
    Mode.SFT: Route(flow_prompt=False),
}
_SPEAKER_ROUTES = {
    Mode.ZERO_SHOT: Route(lm_text=True, lm_speech=True, lm_speaker=True),
    Mode.CROSS_LINGUAL: Route(lm_speaker=True),
    Mode.INSTRUCT: Route(lm_text=True, flow_prompt=False),
    Mode.SFT: Route(lm_speaker=True, flow_prompt=False),
}
MODES = {
    Generation.V1: GenerationModes("CosyVoice 1", _SPEAKER_ROUTES, mark="<endofprompt>", by_words=False),
    Generation.V2: GenerationModes("CosyVoice2", _ROUTES),
    Generation.V3: GenerationModes("CosyVoice3", _ROUTES, system="You are a helpful assistant."),
}
CONVERSION = Route()


def choose_mode(
    voice: Voice, generation: Generation, instruct: str | None = None, wanted: Mode | str | None = None
) -> Mode:
    """Return the wanted mode; if None, the mode that uses most of the voice's features. Raises InvalidRequest if the
    voice, the generation or `instruct` does not allow the mode."""
    mode, modes = None if wanted is None else Mode(wanted), MODES[generation]
    if mode is Mode.INSTRUCT and not instruct:
        raise InvalidRequest("mode: instruct needs an instruction; give it as instructions")
    if instruct and mode not in (None, Mode.INSTRUCT):
        raise InvalidRequest(f"instruct: is not used in mode {mode.value}; leave the mode out")
    if mode in (Mode.ZERO_SHOT, Mode.CROSS_LINGUAL) and not voice.has_prompt:
        raise InvalidRequest(
            f"mode: {mode.value} needs reference speech, but this voice has only an embedding; use sft"
        )
    if mode is Mode.ZERO_SHOT and not voice.prompt_text:
        raise InvalidRequest(
            "mode: zero_shot needs the reference's transcript; give prompt_text with a recording, add a stored "
            "voice again with its transcript, or use cross_lingual"
        )
    if mode is None and instruct:
        mode = Mode.INSTRUCT
    elif mode is None and voice.has_prompt:
        mode = Mode.ZERO_SHOT if voice.prompt_text else Mode.CROSS_LINGUAL
    mode = mode or Mode.SFT
    if mode not in modes.routes:
        known = ", ".join(one.value for one in modes.routes)
        raise InvalidRequest(f"mode: {modes.title} has no {mode.value}; use one of {known}, or another model")
    return mode


def condition(voice: Voice, route: Route, text: tuple[int, ...] = (), system: tuple[int, ...] = ()) -> Conditioning:
    """Select a voice's features for a route. text: ids of transcript or instruction; system: ids of system prompt."""
    prompted = route.flow_prompt and voice.has_prompt
    tokens = voice.speech_tokens.long()
    return Conditioning(
        embedding=voice.embedding,
        lm_system_text=system,
        lm_prompt_text=text if route.lm_text else (),
        lm_prompt_tokens=tuple(tokens.tolist()) if route.lm_speech else (),
        flow_tokens=tokens if prompted else torch.zeros(0, dtype=torch.int64),
        flow_mel=voice.mel if prompted else torch.zeros(0, 0),
        lm_embedding=voice.embedding if route.lm_speaker else None,
    )
