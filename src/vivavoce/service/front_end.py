"""What comes before the networks: text, recordings and what a folder says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.fingerprint import fingerprint
from vivavoce.checkpoint.folder import (
    BACKBONE,
    SPEAKER_ENCODER,
    SPEECH_TOKENIZER,
    ModelCard,
    read_card,
    read_config,
)
from vivavoce.checkpoint.weights import find_part, read_tensors
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.text.tokenizer import TextTokenizer
from vivavoce.service.voices.extract import VoiceExtractor


@dataclass(frozen=True, eq=False)
class FrontEnd:
    """A model's front ends; enough to extract voices without loading a network."""

    folder: Path
    card: ModelCard
    text: TextFrontEnd
    extractor: VoiceExtractor


def load_front_end(folder: Path, config: ModelConfig | None = None, text_processes: int = 0) -> FrontEnd:
    """Load the tokenizer, the text rules and the two encoders of an official folder.

    Args:
        folder: official layout.
        config: sizes, where they have been read already.
        text_processes: others that read texts, see `TextFrontEnd`.

    Raises:
        CheckpointError: a file is missing or corrupt; no generation that can be run.
    """
    # Weights are mapped, not read: the sizes need their names only.
    config = config or read_config(folder, read_tensors(find_part(folder, "flow")))
    card = read_card(folder)
    text = TextFrontEnd(TextTokenizer.from_folder(folder / BACKBONE), scripts=card.scripts, processes=text_processes)
    extractor = VoiceExtractor(
        config,
        SpeechTokenizer.from_file(folder / SPEECH_TOKENIZER),
        SpeakerEncoder.from_file(folder / SPEAKER_ENCODER),
        text,
        fingerprint(folder),
    )
    return FrontEnd(folder, card, text, extractor)
