"""The model `token2wav_dit`: the recording itself and the new speech tokens of a stream → audio.

The original deployment runs Step-Audio 2's DiT behind these tensors; here CosyVoice2's own flow makes the audio.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.request import Conditioning
from vivavoce.errors import UnsupportedModel
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.modes import CONVERSION, condition
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_triton.models.backend import Parameters
from vivavoce_triton.models.inner_models import StagedExtractor
from vivavoce_triton.models.token2wav import Token2Wav, default_prompt, load_models, open_engine


class Token2WavDit:
    """`Token2Wav` with `reference_wav` and `reference_wav_len` as its voice, or with its prompt's tensors.

    A request with `finalize` is a step of the stream with its request id, and has only the tokens that were not spoken
    yet, the lookahead of the step before included. Recordings are encoded by `audio_tokenizer` and `speaker_embedding`.
    """

    @staticmethod
    def load(given: Parameters, backend: Any) -> Token2Wav:
        """`VivavoceError`: the folder, device or voice cannot be used."""
        models = load_models(given)
        if models.config.generation is not Generation.V2:
            raise UnsupportedModel("model: token2wav_dit is of CosyVoice2's layout; serve the models cosyvoice3")
        tokenizer = TextTokenizer.from_folder(models.folder / BACKBONE)
        extractor = StagedExtractor(
            backend, models.config, len(tokenizer), TextFrontEnd(tokenizer), ThreadPoolExecutor(1, "token2wav-dit")
        )

        def extract(recording: Audio) -> Conditioning:
            return condition(extractor.extract(recording), CONVERSION)

        default = default_prompt(models.folder, models.config, given["default_voice"])
        return Token2Wav(backend, open_engine(given, models), len(tokenizer), default, extract=extract)
