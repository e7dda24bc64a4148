"""Voices on the device, for whole batches at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vivavoce.engine.flow_stage.stream import FlowStream, VoiceFeatures
from vivavoce.engine.transfer import to_device
from vivavoce.models.build import Models


def load_voices(streams: Sequence[FlowStream], models: Models) -> None:
    """Work out the features of all streams that lack them, in two copies that the host does not wait for.

    A speaker's projection may differ in its last bits by how many are projected together.
    """
    lacking: dict[bytes | FlowStream, list[FlowStream]] = {}
    for stream in streams:
        if stream.features is None:
            lacking.setdefault(stream.voice or stream, []).append(stream)
    if not lacking:
        return
    given = [alike[0].conditioning for alike in lacking.values()]
    embeddings = torch.stack([one.embedding for one in given])
    mels = [one.flow_mel.float() for one in given]
    speakers = models.flow.speaker(to_device(embeddings, models.device))
    # An empty prompt's mel may have no bins either.
    whole = to_device(torch.cat([mel.flatten() for mel in mels]), models.device)
    parts = torch.split(whole, [mel.numel() for mel in mels])
    for alike, speaker, part, mel in zip(lacking.values(), speakers, parts, mels, strict=True):
        features = VoiceFeatures(speaker, part.view(mel.shape))
        for stream in alike:
            stream.features = features
