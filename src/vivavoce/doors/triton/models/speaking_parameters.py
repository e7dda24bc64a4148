"""How the models that speak whole requests are set up: the parameters of their config.pbtxt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.place import model_folder
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.errors import InvalidRequest

_WORDS = {"true": True, "false": False, "": False}


@dataclass(frozen=True)
class SpeakingParameters:
    """Parameters of `cosyvoice2` and `vivavoce`.

    folder: the model's, in the official layout; device: its name; policy: how streams are cut into chunks;
    default_voice: who speaks where a request names nobody, "" if nobody was chosen; voices_dir: stored voices, None:
    the user's own; llm_tokenizer_dir: the merged language model's folder, None: not looked at; cached_voices_only:
    recordings are not taken; engine_backend: the language model is run by TensorRT-LLM's own backend; decoupled:
    audio is streamed.
    """

    folder: Path
    device: str
    policy: ChunkPolicy
    default_voice: str
    voices_dir: Path | None
    llm_tokenizer_dir: Path | None
    cached_voices_only: bool
    engine_backend: bool
    decoupled: bool

    @classmethod
    def read(cls, args: Mapping[str, str]) -> SpeakingParameters:
        """From what Triton hands to `initialize`.

        Raises:
            ModelNotFound: the model's folder is not there.
            InvalidRequest: a parameter has no possible value.
        """
        config: dict[str, Any] = json.loads(args["model_config"])
        given = wire.parameters(config)
        return cls(
            folder=model_folder(given),
            device=given.get("device") or "auto",
            policy=ChunkPolicy.parse(given.get("dynamic_chunk_strategy") or "exponential"),
            default_voice=given.get("default_voice", ""),
            voices_dir=_folder(given, "voices_dir"),
            llm_tokenizer_dir=_folder(given, "llm_tokenizer_dir"),
            cached_voices_only=_flag(given, "use_spk2info_cache"),
            engine_backend=given.get("triton_backend") == "tensorrtllm",
            decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        )


def _folder(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]).expanduser() if given.get(name) else None


def _flag(given: Mapping[str, str], name: str) -> bool:
    word = given.get(name, "").strip().lower()
    if word not in _WORDS:
        raise InvalidRequest(f"{name}: {given[name]!r} in config.pbtxt is neither true nor false; write one of them")
    return _WORDS[word]
