"""Models of the two other repository layouts.

In CosyVoice3's layout, `token2wav` outputs mels and `vocoder` turns them into audio. In the other layout,
`token2wav_dit` takes the recording itself and the new speech tokens of a stream. The original deployment has
the same tensors and makes the audio with Step-Audio 2's DiT; here CosyVoice2's own flow makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import find_part, read_tensors
from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.request import Conditioning
from vivavoce.engine.stages import Stages, not_finite
from vivavoce.engine.vocoder_stage import Tails, VocoderRow, VocoderStage, VocoderStream
from vivavoce.engine.vocoder_stage.stage import Crossfade, SpeedTail
from vivavoce.errors import InvalidRequest, UnsupportedModel
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.modes import CONVERSION, condition
from vivavoce.frontend.speech import check_seed
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.build import Models, build_network, prepare_device
from vivavoce.models.generations import MAX_FRAMES, NETWORKS
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce_triton.models.backend import Inputs, Parameters, answered, check_present
from vivavoce_triton.models.inner_models import StagedExtractor
from vivavoce_triton.models.token2wav import Samples, Token2Wav, default_prompt, load_models, open_engine

_NO_JOIN = Crossfade(0, 0, 0, 0, torch.zeros(0), continuous=True)
"""Pieces of a mel are joined without a crossfade."""


class MelStage:
    """Replaces a vocoder's stage: outputs the mel itself, [frames · bins], at the stream's speed."""

    def prepare(self, frames: int | None = None) -> None:
        """See `VocoderInterface`. This stage has nothing to prepare."""

    def open(self, seed: int, speed: float, joins: CrossfadeMode) -> VocoderStream:
        return VocoderStream(None, speed, _NO_JOIN, Tails(SpeedTail(speed)))

    def close(self, stream: VocoderStream) -> None:
        stream.tails, stream.closed = Tails(), True

    def run(self, rows: Sequence[VocoderRow]) -> list[Tensor]:
        for row in rows:
            row.load()
        made = [torch.cat(row.fresh).flatten() for row in rows]
        for row in rows:
            if not (row.whole or row.stream.closed):
                row.stream.tails = Tails(row.speed)
        return made


class Token2Mel:
    """`Token2Wav` for the tokenizer's own ids, with the output `mel` [1, 80, frames] FP32.

    Each step returns all frames of its tokens and holds back none for the next step.
    """

    @staticmethod
    def load(given: Parameters, backend: Any) -> Token2Wav:
        """Load the model. `VivavoceError`: the folder, device or voice cannot be used."""
        models = load_models(given)
        _check_generation(models.config.generation)
        default = default_prompt(models.folder, models.config, given["default_voice"])
        engine = open_engine(given, models, Stages(vocoder=MelStage()))
        return Token2Wav(backend, engine, 0, default, bins=models.config.flow.num_mel_bins)


class MelVocoder:
    """`mel` [1, 80, frames] FP32 → `tts_speech` [1, samples] FP32; `seed` [1, 1] INT64 is for the source's noise.

    The model keeps no state. A stream sends its whole mel so far with each request. If `finalize` is false, the samples
    of the last frames are left out, because they depend on later frames. Samples that were returned once stay the same.
    """

    def __init__(self, backend: Any, models: Models) -> None:
        assert isinstance(models.vocoder, CausalHiFT), "in other generations, later frames change earlier samples"
        self._backend, self._device, self._ahead = backend, models.device, models.vocoder.reach.after
        self._stage, self._config = VocoderStage(models), models.vocoder.config

    @classmethod
    def load(cls, given: Parameters, backend: Any) -> MelVocoder:
        """Load the vocoder alone. `VivavoceError`: the folder or the device cannot be used."""
        folder, device, part = given.model_folder, given.device, NETWORKS[Generation.V3]["vocoder"]
        config = read_config(folder, ())
        _check_generation(config.generation)
        prepare_device(device)
        path = find_part(folder, part.part, None)
        vocoder = build_network(part, config, part.state(read_tensors(path)), path.name, device, torch.float32)
        none: Any = None
        return cls(backend, Models(config, none, none, vocoder, device, torch.float32, folder))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [answered(self._backend, "tts_speech", partial(self._speech, request)) for request in requests]

    def close(self) -> None:
        """Do nothing: the model has no state."""

    def _speech(self, request: Any) -> Samples:
        """Return the audio of one request. `InvalidRequest`: a tensor is missing or has a wrong value."""
        check_present(request.is_cancelled)
        inputs, bins = Inputs(self._backend, request), self._config.num_mel_bins
        mel, last, seed = inputs.array("mel"), inputs.number("finalize"), int(inputs.number("seed") or 0)
        if mel is None or last is None:
            raise InvalidRequest(f"{'mel' if mel is None else 'finalize'}: is missing; send both mel and finalize")
        if mel.shape[-2:-1] != (bins,) or not 0 < mel.shape[-1] <= MAX_FRAMES:
            size = " × ".join(map(str, mel.shape))
            raise InvalidRequest(f"mel: is {size}; send {bins} × frames, with 1 … {MAX_FRAMES} frames")
        if not np.isfinite(mel).all():
            raise InvalidRequest("mel: holds a number that is not finite; send numbers only")
        check_seed(seed)
        frames = torch.tensor(mel.reshape(bins, -1).T, dtype=torch.float32, device=self._device)
        stream = self._stage.open(seed, 1.0, CrossfadeMode.SEAMLESS)
        (wave,) = self._stage.run([VocoderRow(stream, frames, final=True, whole=True)])
        count = len(frames) if last else max(0, len(frames) - self._ahead)
        speech: Samples = wave[: count * self._config.samples_per_frame].cpu().numpy()
        if not np.isfinite(speech).all():
            raise not_finite()
        return speech


def _check_generation(found: Generation) -> None:
    if found is not Generation.V3:
        raise UnsupportedModel(f"model: the layout cosyvoice3 is for CosyVoice3, this is {found.value}; serve staged")


class Token2WavDit:
    """`Token2Wav` whose voice comes from `reference_wav` and `reference_wav_len`, or from the prompt tensors.

    A request that has the input `finalize`, true or false, is one step of a stream; the steps of a stream have the same
    request id. A step has only the tokens that were not spoken yet. It begins with the previous step's lookahead.
    `audio_tokenizer` and `speaker_embedding` encode recordings.
    """

    @staticmethod
    def load(given: Parameters, backend: Any) -> Token2Wav:
        """Load the model. `VivavoceError`: the folder, device or voice cannot be used."""
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
