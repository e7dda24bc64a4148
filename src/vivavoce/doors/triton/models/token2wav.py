"""The model `token2wav`: speech tokens → audio, whole or step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.flow_prompts import MEL, Prompt, default_prompt
from vivavoce.doors.triton.models.place import given_parameters, model_device, model_folder
from vivavoce.doors.triton.models.synthesis import Portion, Samples, Synthesis
from vivavoce.doors.triton.models.synthesis_networks import load_networks, plan_share
from vivavoce.doors.triton.models.token2wav_request import TOKENS, Asked, RequestReader
from vivavoce.doors.triton.models.token2wav_streams import Bounds, Stream, Streams
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.service.placement import choose_dtype
from vivavoce.service.text.tokenizer import TextTokenizer

NOTHING: Samples = np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class _Work:
    """What a request comes to; stream: None: it is whole."""

    portion: Portion
    stream: Stream | None


class Token2Wav:
    """`target_speech_tokens` [1, n] INT32 → `waveform` [1, samples] FP32 at the model's rate.

    Tokens are ids of the merged vocabulary, those of `prompt_speech_tokens` as well. The voice is that of the prompt
    tensors (`flow_prompts.py`), or else the default one; `seed` [1, 1] and `speed` [1, 1] are 0 and 1 by default.

    With `token_offset` and `finalize` a request is a step of its request id's stream. Each brings all tokens so far and
    says how many of them were spoken by the steps before; it gives the audio of the rest, but for those at the end that
    the flow only looks ahead at, and for the last 160 ms, which the next step's audio is faded into. The first step,
    from 0, decides on voice, seed and speed; later ones repeat them or leave them out. With `finalize` all is spoken
    and the stream ends; without any tokens it is given up, known or not, and the audio is empty.

    A request that is refused changes nothing. A stream ends, too, when its audio cannot be made, or nobody goes on.

    Args:
        backend: `triton_python_backend_utils`.
        models: flow and vocoder on one device.
        synthesis: their stages.
        text_size: where speech begins in the merged vocabulary.
        default: the voice of requests that bring none; None: they are refused.
        bounds, clock: of streams.
    """

    def __init__(
        self,
        backend: Any,
        models: Models,
        synthesis: Synthesis,
        text_size: int,
        default: Prompt | None,
        bounds: Bounds = Bounds(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._config, self._synthesis, self._default = backend, models.config, synthesis, default
        self._reader = RequestReader(backend, models.config, text_size)
        self._streams = Streams(synthesis.close, bounds, clock)

    @classmethod
    def load(cls, args: Mapping[str, Any], backend: Any) -> Token2Wav:
        """From what Triton's `initialize` is given; parameters: model_dir, device, default_voice (a name in
        spk2info.pt), memory_gb (what it may take of a GPU's memory, the weights included).

        Raises:
            VivavoceError: the folder, the device or the voice cannot be used.
        """
        parameters = given_parameters(args)
        folder, device = model_folder(parameters), model_device(parameters)
        models = load_networks(folder, device, choose_dtype("auto", device))
        default = default_prompt(folder, models.config, parameters.get("default_voice", ""))
        synthesis = Synthesis(models, plan_share(models, _memory_bytes(parameters.get("memory_gb", ""))))
        synthesis.prepare()
        return cls(backend, models, synthesis, len(TextTokenizer.from_folder(folder / BACKBONE)), default)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A response for each request, in order; all are computed together, and a refused one harms no other."""
        self._streams.drop_idle()
        asked = [self._read(request) for request in requests]
        outcomes: dict[int, Samples | Exception] = {}
        for turn in _turns(asked):
            outcomes.update(self._take({place: asked[place] for place in turn}))
        return [self._respond(outcomes[place]) for place in range(len(requests))]

    def close(self) -> None:
        """Give all streams up."""
        self._streams.drop_all()

    def _read(self, request: Any) -> Asked | Exception:
        try:
            return self._reader.read(request)
        except Exception as error:
            return error

    def _respond(self, outcome: Samples | Exception) -> Any:
        if isinstance(outcome, Exception):
            return wire.refusal(self._backend, outcome)
        return wire.answer(self._backend, waveform=outcome[None])

    def _take(self, turn: Mapping[int, Asked | Exception]) -> dict[int, Samples | Exception]:
        """Requests of different streams."""
        outcomes: dict[int, Samples | Exception] = {}
        works: dict[int, _Work] = {}
        for place, asked in turn.items():
            begun = self._begin(asked)
            if isinstance(begun, _Work):
                works[place] = begun
            else:
                outcomes[place] = begun
        for (place, work), wave in zip(works.items(), self._speak(list(works.values())), strict=True):
            self._settle(work, wave)
            outcomes[place] = wave
        return outcomes

    def _speak(self, works: Sequence[_Work]) -> Sequence[Samples | Exception]:
        try:
            return self._synthesis.run([work.portion for work in works])
        except Exception as error:
            return [error] * len(works)

    def _begin(self, asked: Asked | Exception) -> _Work | Samples | Exception:
        if isinstance(asked, Exception):
            return asked
        try:
            if asked.gives_up:
                return self._give_up(asked)
            return self._whole(asked) if asked.step is None else self._step(asked)
        except Exception as error:
            return error

    def _whole(self, asked: Asked) -> _Work:
        prompt = self._prompt(asked)
        self._check_length(asked, prompt)
        place = self._synthesis.open(prompt.conditioning, asked.seed or 0, asked.speed or 1.0)
        return _Work(Portion(place, asked.tokens, len(asked.tokens), final=True, whole=True), None)

    def _step(self, asked: Asked) -> _Work:
        step = asked.step
        assert step is not None
        known = self._streams.get(step.id)
        stream = known or self._new_stream(asked)
        try:
            self._check_length(asked, stream.prompt)
            hop = stream.hop(asked, self._config.flow.encoder.lookahead)
        except InvalidRequest:
            if known is None:
                self._streams.drop(stream)
            raise
        return _Work(Portion(stream.place, asked.tokens, hop, step.final, whole=False), stream)

    def _new_stream(self, asked: Asked) -> Stream:
        step = asked.step
        assert step is not None
        if step.offset:
            raise self._streams.unknown(step.id, step.offset)
        prompt, seed, speed = self._prompt(asked), asked.seed or 0, asked.speed or 1.0
        kept = self._synthesis.kept_bytes(prompt.conditioning)
        self._streams.check_room(kept)
        place = self._synthesis.open(prompt.conditioning, seed, speed)
        stream = Stream(step.id, place, prompt, seed, speed, kept)
        self._streams.keep(stream)
        return stream

    def _settle(self, work: _Work, wave: Samples | Exception) -> None:
        """What was computed is over for good; a stream that goes on remembers how far it is."""
        stream, portion = work.stream, work.portion
        if stream is None:
            self._synthesis.close(portion.place)
        elif portion.final or isinstance(wave, Exception):
            self._streams.drop(stream)
        else:
            stream.tokens, stream.spoken = np.array(portion.tokens, np.int32), stream.spoken + portion.hop
            self._streams.keep(stream)

    def _give_up(self, asked: Asked) -> Samples:
        assert asked.step is not None
        stream = self._streams.get(asked.step.id)
        if stream is not None:
            self._streams.drop(stream)
        return NOTHING

    def _prompt(self, asked: Asked) -> Prompt:
        prompt = asked.prompt or self._default
        if prompt is None:
            raise InvalidRequest(f"{MEL}: is missing, and the model has no spk2info.pt with a voice; send a prompt")
        return prompt

    def _check_length(self, asked: Asked, prompt: Prompt) -> None:
        taken = len(prompt.conditioning.flow_tokens)
        room = MAX_FRAMES // self._config.rates.frames_per_token - taken
        if len(asked.tokens) > room:
            raise InvalidRequest(
                f"{TOKENS}: {len(asked.tokens)}; beside a prompt of {taken} there is room for {room}; send fewer"
            )


def _turns(asked: Sequence[Asked | Exception]) -> list[list[int]]:
    """Places of requests that can be taken together: two steps of one stream come one after the other."""
    turns: list[list[int]] = []
    taken: dict[str, int] = {}
    for place, one in enumerate(asked):
        name = one.step.id if isinstance(one, Asked) and one.step else ""
        turn = taken.get(name, 0) if name else 0
        taken[name] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(place)
    return turns


def _memory_bytes(given: str) -> int | None:
    try:
        gigabytes = float(given) if given else None
    except ValueError:
        gigabytes = 0.0
    if gigabytes is None:
        return None
    if not 0 < gigabytes < 10_000:
        raise InvalidRequest(f"memory_gb: {given!r} is no number of gigabytes; give one above 0, or leave it empty")
    return int(gigabytes * 2**30)
