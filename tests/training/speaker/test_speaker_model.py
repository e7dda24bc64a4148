from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from training.onnx_graph import round_to_half
from training.speaker.export import export_speaker_encoder
from training.speaker.fbank import Fbank
from training.speaker.model import MarginHead, SpeakerNet, SpeakerSizes, TraitHead
from vivavoce.models.onnx_session import open_onnx
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[SpeakerNet, Path]:
    torch.manual_seed(0)
    net = SpeakerNet(SpeakerSizes()).eval()
    round_to_half(net)
    path = tmp_path_factory.mktemp("model") / "campplus.onnx"
    export_speaker_encoder(net, path)
    return net, path


def test_at_most_400_thousand_parameters_of_two_bytes(exported: tuple[SpeakerNet, Path]) -> None:
    parameters = sum(parameter.numel() for parameter in exported[0].parameters())
    assert parameters <= 400_000
    assert exported[1].stat().st_size < 2.03 * parameters


@pytest.mark.parametrize("frames", [1, 2, 50, 333])
@torch.no_grad()
def test_the_file_gives_the_network_s_embedding(exported: tuple[SpeakerNet, Path], frames: int) -> None:
    net, path = exported
    energies = torch.randn(1, frames, 80, generator=torch.Generator().manual_seed(frames))
    embedding = torch.from_numpy(open_onnx(path, num_inputs=1).run(energies.numpy()))
    torch.testing.assert_close(embedding, net(energies)[0], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_through_the_package_s_own_front_end(exported: tuple[SpeakerNet, Path]) -> None:
    net, path = exported
    samples = 0.1 * torch.randn(16_000, generator=torch.Generator().manual_seed(0))
    embedding = SpeakerEncoder.from_file(path)(samples)
    assert embedding.shape == (192,)
    assert torch.cosine_similarity(embedding, net(Fbank()(samples[None]))[0], dim=0) > 0.9999


def test_the_margin_counts_against_the_right_answer() -> None:
    torch.manual_seed(0)
    with_margin, without = MarginHead(5), MarginHead(5, margin=0.0)
    without.load_state_dict(with_margin.state_dict())
    embeddings, speaker = torch.randn(16, 192), torch.randint(0, 5, (16,))
    cosine = functional.cosine_similarity(embeddings[:, None], without.centres[None], dim=2)
    loss, right = without(embeddings, speaker)
    torch.testing.assert_close(loss, functional.cross_entropy(30 * cosine, speaker))
    assert right == (cosine.argmax(1) == speaker).float().mean()
    assert with_margin(embeddings, speaker)[0] > loss


def test_the_margin_s_gradient_is_finite_at_the_centre() -> None:
    head = MarginHead(3)
    embeddings = head.centres.detach().clone().requires_grad_()
    head(embeddings, torch.arange(3))[0].backward()
    assert embeddings.grad.isfinite().all()


def test_traits_are_read_from_the_direction() -> None:
    torch.manual_seed(0)
    head = TraitHead()
    embeddings, traits = torch.randn(4, 192), torch.randn(4, 2)
    torch.testing.assert_close(head(embeddings, traits), head(7 * embeddings, traits))
