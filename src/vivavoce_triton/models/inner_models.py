"""Thread-safe clients that `cosyvoice2` uses: for models on the same server, and for a language model's endpoint."""

from __future__ import annotations

import json
import re
import uuid
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.engine.request import SegmentRequest
from vivavoce.errors import EngineStopped, StageFailed
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.frontend.audio.samples import Audio, Samples
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.voice import Voice
from vivavoce.models.features import PROMPT_MEL_RATE, SAMPLE_RATE, prompt_mel
from vivavoce_hub.download import open_client
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.models.backend import InnerError, ask_inner, checked, inner_request, output

LANGUAGE_MODEL = "tensorrt_llm"
TOP_P, TOP_K, TEMPERATURE, REPETITION_PENALTY = 0.95, 50, 0.8, 1.1
"""Sampling parameters of the official deployment."""
USUAL_TOKENS = 750
"""Limit of a segment's speech tokens (30 s of speech), unless its text is long."""
_LONG_RATIO = 10.0
"""Limit of speech tokens per text token, for long texts. No voice speaks so slowly that it needs more."""
_KEPT = 64
"""Number of finished response iterators that are kept; see `InnerLanguageModel._ended`."""


def merged_prompt(vocabulary: MergedVocabulary, segment: SegmentRequest) -> tuple[int, ...]:
    """Join `<|sos|>`, the reference's transcript, the segment's text, `<|task_id|>`, the reference's speech tokens."""
    voice = segment.conditioning
    speech = map(vocabulary.speech, voice.lm_prompt_tokens)
    return (vocabulary.sos, *voice.lm_text, *segment.text, vocabulary.task, *speech)


def output_length(segment: SegmentRequest) -> tuple[int, int]:
    """Return the smallest and the largest number of speech tokens for the segment."""
    size, bounds = len(segment.text), segment.sampling
    most = min(int(bounds.max_ratio * size), max(USUAL_TOKENS, int(_LONG_RATIO * size)))
    return max(1, min(int(bounds.min_ratio * size), most)), most


def spoken_tokens(vocabulary: MergedVocabulary, ids: Sequence[int]) -> tuple[tuple[int, ...], int | None]:
    """Return the speech tokens (0 … V − 1) before the first id that is not a speech token, and this id, or None."""
    count = next((index for index, one in enumerate(ids) if not vocabulary.is_speech(one)), len(ids))
    tokens = tuple(one - vocabulary.text_size for one in ids[:count])
    return tokens, ids[count] if count < len(ids) else None


class InnerLanguageModel:
    """Requests speech tokens from the model `tensorrt_llm`. decoupled: whether that model streams.

    bias: [rows of the head] float32, which a backend without its own head bias adds to the logits; None: not sent.
    """

    def __init__(
        self, backend: Any, vocabulary: MergedVocabulary, *, decoupled: bool, bias: NDArray[np.float32] | None
    ) -> None:
        self._backend, self._vocabulary, self._decoupled, self._bias = backend, vocabulary, decoupled, bias
        # The server (2.51) frees a finished response later, in a thread that does not hold the GIL. The
        # response is kept here, so that its arrays are not freed in that thread.
        self._ended: deque[Any] = deque(maxlen=_KEPT)

    def tokens(self, segment: SegmentRequest) -> Generator[tuple[int, ...], None, None]:
        """Yield speech tokens (0 … V − 1). Closing the iterator stops the request to the language model."""
        request_id = uuid.uuid4().hex  # the ids of clients' requests need not be unique
        outputs = ("output_ids", "sequence_length")
        request = inner_request(self._backend, LANGUAGE_MODEL, outputs, self._tensors(segment), request_id)
        if not self._decoupled:
            yield self._read(checked(request.exec()))[0]
            return
        responses = request.exec(decoupled=True)
        over = False
        try:
            for response in responses:
                tokens, end = self._read(checked(response))
                if tokens:
                    yield tokens
                if end is not None:
                    over = end == self._vocabulary.eos_ids[0]  # the model stops by itself only after this end token
                    break
            else:
                over = True
        except InnerError:
            over = True
            raise
        finally:
            if not over:
                self._stop(responses, request_id)
            self._drain(responses)  # the request ends when all its responses are read

    def close(self) -> None:
        """Do nothing: requests end in `tokens`."""

    def _read(self, response: Any) -> tuple[tuple[int, ...], int | None]:
        ids, lengths = (output(self._backend, response, name) for name in ("output_ids", "sequence_length"))
        if ids is None:
            return (), None  # the final response is empty
        flat = ids.reshape(-1)
        count = len(flat) if lengths is None else int(lengths.reshape(-1)[0])
        return spoken_tokens(self._vocabulary, flat[:count].tolist())

    def _stop(self, responses: Any, request_id: str) -> None:
        if hasattr(responses, "cancel"):  # available since release 25.04
            responses.cancel()
        else:
            tensors = {"input_lengths": 0, "request_output_len": 0, "stop": True}
            stop = inner_request(self._backend, LANGUAGE_MODEL, ("output_ids",), tensors, request_id)
            self._drain(stop.exec(decoupled=True))

    def _drain(self, responses: Any) -> None:
        for _ in responses:
            pass
        self._ended.append(responses)

    def _tensors(self, segment: SegmentRequest) -> dict[str, Any]:
        ids, (least, most) = merged_prompt(self._vocabulary, segment), output_length(segment)
        end_id = self._vocabulary.eos_ids[0]
        tensors = {
            "input_ids": ids,
            "input_lengths": len(ids),
            "request_output_len": most,
            "min_length": least,
            "end_id": end_id,
            "pad_id": end_id,
            "streaming": self._decoupled,
            "exclude_input_in_output": True,
            "runtime_top_p": TOP_P,
            "runtime_top_k": TOP_K,
            "temperature": TEMPERATURE,
            "repetition_penalty": REPETITION_PENALTY,
            "random_seed": segment.seed,
        }
        return tensors if self._bias is None else {**tensors, "embedding_bias": self._bias}


class InnerToken2Wav:
    """Requests the audio of one segment from `token2wav`. Only one thread may use it at a time.

    first_id: first merged id of speech; dit: use `token2wav_dit`, whose steps have only new tokens; output: its tensor.
    """

    def __init__(
        self, backend: Any, first_id: int, segment: SegmentRequest, *, dit: bool = False, output: str = "waveform"
    ) -> None:
        self._backend, self._first_id, self._dit, self._output = backend, np.int32(first_id), dit, output
        voice = segment.conditioning
        self._voice = {"prompt_spk_embedding": voice.embedding.numpy(), "speed": segment.speed}
        if output == "waveform":  # mels have no noise, so they need no seed
            self._voice["seed"] = segment.seed
        if voice.flow_prompt:  # without a reference recording, only the embedding is sent
            self._voice["prompt_speech_tokens"] = np.array(voice.flow_prompt, np.int32) + self._first_id
            self._voice["prompt_speech_feat"] = voice.flow_mel.numpy()
        self._id = uuid.uuid4().hex  # the ids of clients' requests need not be unique
        self._open = False

    def whole(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return all audio of speech tokens (0 … V − 1), [n] float32. `InnerError`: the model refused or failed."""
        return self._ask(tokens, "", self._voice)

    def step(self, tokens: Sequence[int], offset: int, *, last: bool) -> NDArray[np.float32]:
        """Return the next audio, [n] float32. tokens: all so far, with lookahead; offset: number already spoken."""
        voice = {} if self._open else self._voice  # only the first step sends the voice
        self._open = not last
        if self._dit:
            return self._ask(tokens[offset:], self._id, {**voice, "finalize": last})
        return self._ask(tokens, self._id, {**voice, "token_offset": offset, "finalize": last})

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(InnerError):  # token2wav closes idle streams by itself
                self._ask((), self._id, {"finalize": True, **({} if self._dit else {"token_offset": 0})})

    def _ask(self, tokens: Sequence[int], request_id: str, tensors: dict[str, Any]) -> NDArray[np.float32]:
        values = {"target_speech_tokens": np.array(tokens, np.int32) + self._first_id, **tensors}
        model = "token2wav_dit" if self._dit else "token2wav"
        return ask_inner(self._backend, model, self._output, values, request_id).astype(np.float32, copy=False)


class InnerVocoder:
    """Requests mels of one segment from `token2wav`, and their audio from `vocoder`. Used like `InnerToken2Wav`."""

    def __init__(self, backend: Any, segment: SegmentRequest) -> None:
        self._backend, self._seed = backend, segment.seed
        self._token2mel = InnerToken2Wav(backend, 0, segment, output="mel")
        self._mels, self._spoken = list[NDArray[np.float32]](), 0

    def whole(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return self._vocoded(self._token2mel.whole(tokens), last=True)

    def step(self, tokens: Sequence[int], offset: int, *, last: bool) -> NDArray[np.float32]:
        self._mels.append(self._token2mel.step(tokens, offset, last=last))
        samples = self._vocoded(np.concatenate(self._mels, axis=1), last=last)[self._spoken :]
        self._spoken += len(samples)
        return samples

    def close(self) -> None:
        self._token2mel.close()

    def _vocoded(self, mel: NDArray[np.float32], *, last: bool) -> NDArray[np.float32]:
        values = {"mel": mel, "finalize": last, "seed": self._seed}
        return ask_inner(self._backend, "vocoder", "tts_speech", values)


class StagedExtractor:
    """A `VoiceExtractor` that uses the models `audio_tokenizer` and `speaker_embedding`, in parallel on `threads`.

    first_id: the number that `audio_tokenizer` adds to its ids.
    """

    def __init__(self, backend: Any, config: ModelConfig, first_id: int, text: TextFrontEnd, threads: Executor) -> None:
        self._backend, self._config, self._first_id = backend, config, np.int32(first_id)
        self._text, self._threads = text, threads

    def extract(self, source: AudioSource, transcript: str = "") -> Voice:
        if not isinstance(source, Audio):  # the recording of a stored voice whose features are another model's
            assert not isinstance(source, tuple)
            audio = decode_audio(source)
            source = Audio(resample_sinc(audio.samples, audio.sample_rate, SAMPLE_RATE).numpy(), SAMPLE_RATE)
        normalised = self._text.normalize(transcript)
        tokens = self._threads.submit(self._speech_tokens, source.samples)
        wave = resample_sinc(source.samples, source.sample_rate, PROMPT_MEL_RATE)
        given = {"reference_wav": source.samples}
        embedding = ask_inner(self._backend, "speaker_embedding", "prompt_spk_embedding", given)
        voice = Voice(
            embedding=torch.from_numpy(embedding.astype(np.float32).reshape(-1)),
            fingerprint="",
            transcript=transcript,
            prompt_text=self._text.encode(normalised) if normalised else (),
            mel=prompt_mel(wave[None], self._config.mel)[0],
            speech_tokens=tokens.result(),
        )
        return voice.aligned(self._config.rates)

    def _speech_tokens(self, samples: Samples) -> torch.Tensor:
        given = {"reference_wav": samples, "reference_wav_len": len(samples)}
        merged = ask_inner(self._backend, "audio_tokenizer", "prompt_speech_tokens", given)
        return torch.from_numpy(merged.astype(np.int32) - self._first_id)


CONNECT_S, SILENCE_S = 10.0, 120.0
"""Timeouts in seconds: for the connection, and between two pieces of a response."""
_SPEECH = re.compile(r"<\|s_(\d{1,9})\|>")
_STOP = ("<|eos1|>", "<|eos|>")
_MOST_OTHER = 1_000
"""Largest number of consecutive characters of a response that are not part of speech tokens."""


class EndpointLanguageModel:
    """Requests speech tokens (0 … count − 1) from an OpenAI chat completions endpoint, such as trtllm-serve's or
    vLLM's; safe to use from several threads. name: the model's name at the endpoint.

    The endpoint serves the merged language model. Its chat template turns a user's and an assistant's message into
    `<|sos|>` text `<|task_id|>` speech, and its tokenizer writes speech tokens as `<|s_0|>`, `<|s_1|>` …. A request is
    like the original deployment's, plus a seed and a minimum length.
    """

    def __init__(self, address: str, name: str, tokenizer: TextTokenizer, count: int) -> None:
        self._address, self._name, self._tokenizer, self._count = address, name, tokenizer, count
        self._client = open_client(address, timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S))

    def close(self) -> None:
        self._client.close()

    def tokens(self, segment: SegmentRequest) -> Generator[tuple[int, ...], None, None]:
        """Yield speech tokens as they arrive. Closing the iterator closes the connection, which stops the endpoint.

        `EngineStopped`: the endpoint cannot be reached. `StageFailed`: it refused, or sent other things than speech.
        """
        left = output_length(segment)[1]
        try:
            with self._client.stream("POST", self._address, json=self._body(segment)) as reply:
                if reply.status_code != httpx.codes.OK:
                    raise _failed(f"answered with HTTP {reply.status_code}; its log says why")
                rest = ""
                for line in reply.iter_lines():
                    text = _content(line)
                    if text is None:
                        return
                    spoken, rest = self._read(rest + text)
                    end = next((place for place, one in enumerate(spoken) if one >= self._count), len(spoken))
                    if end := min(end, left):
                        yield tuple(spoken[:end])
                    left -= end
                    if end < len(spoken) or not left:
                        return
        except httpx.HTTPError as error:
            raise EngineStopped(
                f"llm_api_base: the language model's endpoint cannot be reached ({type(error).__name__}); try again "
                "soon, or check that it runs"
            ) from None

    def _body(self, segment: SegmentRequest) -> dict[str, Any]:
        least, most = output_length(segment)
        voice = segment.conditioning
        text = self._tokenizer.decode((*voice.lm_text, *segment.text))
        speech = "".join(f"<|s_{token}|>" for token in voice.lm_prompt_tokens)
        return {
            "model": self._name,
            "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": speech}],
            "max_tokens": most,
            "min_tokens": least,
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "top_k": TOP_K,
            "repetition_penalty": REPETITION_PENALTY,
            "seed": segment.seed,
            "stop": list(_STOP),
            "stream": True,
        }

    def _read(self, text: str) -> tuple[list[int], str]:
        """Return the complete speech tokens in the text, and the rest of the text after them."""
        found = list(_SPEECH.finditer(text))
        rest = text[found[-1].end() :] if found else text
        if len(rest) > _MOST_OTHER:
            raise _failed(
                "sent text, not speech tokens such as <|s_12|>; serve the folder that `vivavoce export hf` makes"
            )
        return [int(one[1]) for one in found], rest


def _content(line: str) -> str | None:
    """Return the text in a line of server-sent events: "" if the line has no text, None if the response has ended."""
    if not line.startswith("data:"):
        return ""
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        return None
    try:
        event = json.loads(data)
        choices = event.get("choices")
        text = choices[0]["delta"].get("content") if choices else ""
    except (ValueError, AttributeError, LookupError, TypeError):
        raise _failed("sent a line that does not belong to a chat completion") from None
    if "error" in event:
        raise _failed("broke off with an error; its log says why")
    return text if isinstance(text, str) else ""


def _failed(what: str) -> StageFailed:
    return StageFailed(f"llm_api_base: the language model's endpoint {what}")
