"""Speech tokens from an OpenAI-compatible endpoint of chat completions, such as trtllm-serve or vLLM.

It serves the merged language model, whose chat template makes `<|sos|>` text `<|task_id|>` speech of a user's and an
assistant's message, and whose tokenizer spells speech tokens `<|s_0|>`, `<|s_1|>` …. A request is that of the original
deployment, with a seed and a least length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import httpx

from vivavoce.engine.request import SegmentRequest
from vivavoce.errors import EngineStopped, StageFailed
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_hub.download import open_client
from vivavoce_triton.models.inner_models import REPETITION_PENALTY, TEMPERATURE, TOP_K, TOP_P, output_length

CONNECT_S, SILENCE_S = 10.0, 120.0
"""Seconds for the connection, and between two pieces of an answer."""
_SPEECH = re.compile(r"<\|s_(\d{1,9})\|>")
_STOP = ("<|eos1|>", "<|eos|>")
_MOST_OTHER = 1_000
"""Most characters of an answer in a row that belong to other things than speech tokens."""


class EndpointLanguageModel:
    """Requests speech tokens (0 … count − 1); safe to use from several threads. name: of the model at the endpoint."""

    def __init__(self, address: str, name: str, tokenizer: TextTokenizer, count: int) -> None:
        self._address, self._name, self._tokenizer, self._count = address, name, tokenizer, count
        self._client = open_client(address, timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S))

    def close(self) -> None:
        self._client.close()

    def tokens(self, segment: SegmentRequest) -> Generator[tuple[int, ...], None, None]:
        """Speech tokens when they come; closing the iterator closes the connection, which ends the endpoint's work.

        `EngineStopped`: the endpoint is away. `StageFailed`: it refused, or its answer has other things than speech.
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
                f"llm_api_base: the language model's endpoint is away ({type(error).__name__}); try again in some "
                "seconds, or see whether it runs"
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
        """The speech tokens that are whole, and the rest of the text."""
        found = list(_SPEECH.finditer(text))
        rest = text[found[-1].end() :] if found else text
        if len(rest) > _MOST_OTHER:
            raise _failed(
                "gives a text and no speech tokens such as <|s_12|>; serve there what `vivavoce export hf` makes"
            )
        return [int(one[1]) for one in found], rest


def _content(line: str) -> str | None:
    """The text of one line of server-sent events, "" without one; None: the answer has ended."""
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
