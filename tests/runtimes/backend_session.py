"""Speak in every way with a language-model backend, and print what was said: python backend_session.py vllm mini 16"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from vivavoce.api import Vivavoce
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import EngineRequest, InputMode, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import model_folder
from vivavoce.frontend.voices.voice import built_in_voices

TEXTS = ("Good morning.", "The key is under the mat.", "It was raining all day long, and nobody came.", "Yes, it is.")


def session(backend: str, model: str, many: int) -> dict[str, Any]:
    """Speech tokens by how they were asked for; of one model, on the CPU."""
    folder = model_folder(model)
    settings = EngineSettings(lm_backend=backend, slots=many)
    synthesizer = Vivavoce(*load_model(folder, (torch.device("cpu"),), settings=settings))
    engine, front_end = synthesizer.engine, synthesizer.front_end
    voice = front_end.conditioning(next(iter(built_in_voices(folder).values())))
    sampling = SamplingParams(max_ratio=8.0)
    ids = [front_end.text.encode(one) for one in TEXTS]

    def segment(seed: int, said: tuple[int, ...] | None = None) -> SegmentRequest:
        return SegmentRequest(voice, text=said or ids[seed % len(ids)], sampling=sampling, seed=seed)

    def tokens(request: EngineRequest) -> list[int]:
        return list(engine.submit(request).result().tokens[0])

    policy = ChunkPolicy.low_latency()
    found: dict[str, Any] = {
        "alone": [tokens(EngineRequest((segment(seed),))) for seed in range(4)],
        "stream": tokens(EngineRequest((segment(1),), policy)),
    }
    handles = [engine.submit(EngineRequest((segment(seed),))) for seed in range(many)]
    found["together"] = [list(handle.result().tokens[0]) for handle in handles]
    arriving = engine.submit(EngineRequest((segment(0, ids[2][:2]),), policy, InputMode.TOKENS))
    arriving.text.push(ids[2][2:9])
    arriving.text.push(ids[2][9:])
    arriving.text.close()
    found["arriving"] = list(arriving.result().tokens[0])
    left = engine.submit(EngineRequest((segment(2),)))
    left.cancel()
    found["after one left"] = tokens(EngineRequest((segment(3),)))
    synthesizer.close()
    lm = engine.stages.lm
    assert lm is not None
    found["slots left"] = lm.slots - lm.free_slots
    return found


if __name__ == "__main__":
    print(json.dumps(session(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
