"""The flow alone and in company, and its weights as inference lays them."""

import copy

import pytest
import torch
from torch.nn import functional

from benchmarks.plain.flow import FlowInput, whole_mels
from vivavoce.models.flow.model import MAX_FRAMES, fixed_noise, time_steps
from vivavoce.models.layers import RelativeSpan
from vivavoce.models.layout import convolve, joined, lay_together, mish
from vivavoce_training.whole_rows import encode, velocity, visible_keys


def item(num_tokens, num_prompt, seed):
    generator = torch.Generator().manual_seed(seed)
    return FlowInput(
        torch.randint(0, 6561, (num_prompt + num_tokens,), generator=generator),
        torch.randn(2 * num_prompt, 80, generator=generator),
        torch.randn(192, generator=generator),
    )


@torch.inference_mode()
def test_the_prompt_matters(models):
    one = item(20, 10, 6)
    other = FlowInput(one.tokens, torch.zeros_like(one.prompt_mel), one.embedding)
    assert not torch.allclose(
        whole_mels(models.flow, [one], False)[0], whole_mels(models.flow, [other], False)[0], atol=1e-2
    )


def test_too_many_frames_are_refused(models):
    with pytest.raises(ValueError, match=str(MAX_FRAMES)):
        whole_mels(models.flow, [item(MAX_FRAMES // 2 + 1, 0, 7)], False)


def test_noise_is_fixed():
    assert fixed_noise(80) is fixed_noise(80)
    assert fixed_noise(80).shape == (MAX_FRAMES, 80)


@pytest.mark.parametrize("count", [1, 5, 10])
def test_steps_lead_from_zero_to_one(count):
    steps = time_steps(count)
    assert steps[0][0] == 0
    assert abs(sum(dt for _, dt in steps) - 1) < 1e-6
    assert all(dt > 0 for _, dt in steps)


def test_chunk_mask():
    mask = visible_keys(torch.tensor([5, 3]), 5, chunk=2)[:, 0].int().tolist()
    assert mask[0] == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert mask[1][4] == [1, 1, 1, 0, 0]


ITEM = FlowInput(torch.arange(40), torch.zeros(10, 80), torch.ones(192))


@torch.no_grad()
def test_weights_placed_for_inference_stay_what_they_are(models):
    flow = copy.deepcopy(models.flow)
    before = {name: value.clone() for name, value in models.flow.state_dict().items()}
    mel = whole_mels(models.flow, [ITEM], True)[0]
    flow.lay_out()
    after = flow.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    torch.testing.assert_close(whole_mels(flow, [ITEM], True)[0], mel, atol=1e-4, rtol=0)


def test_weights_placed_for_inference_can_be_trained(models):
    flow = copy.deepcopy(models.flow)
    with torch.inference_mode():
        flow.lay_out()
    plain, placed = copy.deepcopy(models.flow).requires_grad_(True), flow.requires_grad_(True)
    gradients = []
    for one in (plain, placed):
        x = torch.randn(1, 20, 80, generator=torch.Generator().manual_seed(0))
        mu, frames = encode(one, torch.arange(10)[None], torch.tensor([10]), torch.tensor([True]), True)
        speaker, t = one.speaker(torch.ones(1, 192)), torch.tensor([0.3])
        velocity(one.estimator, x, mu, speaker, x, t, frames, True).sum().backward()
        gradients.append({name: parameter.grad for name, parameter in one.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_joined_weights_follow_their_parameters():
    weights = [torch.nn.Parameter(torch.randn(4, 3)) for _ in range(3)]
    expected = torch.cat(weights)
    assert torch.equal(joined(weights), expected)
    lay_together(weights)
    whole = joined(weights)
    assert torch.equal(whole, expected)
    weights[1].mul_(2)
    assert torch.equal(whole, torch.cat(weights))
    assert whole.data_ptr() == weights[0].data_ptr()
    weights[1].data = weights[1].clone()
    assert torch.equal(joined(weights), torch.cat(weights))


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution_as_a_product(kernel):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 9, 4, generator=generator), torch.randn(6, 4, kernel, generator=generator)
    expected = functional.conv1d(x.transpose(1, 2), weight, torch.ones(6)).transpose(1, 2)
    torch.testing.assert_close(convolve(x, weight, torch.ones(6)), expected)
    with torch.no_grad():
        torch.testing.assert_close(convolve(x, weight, torch.ones(6)), expected)
        torch.testing.assert_close(convolve(x[:, 1:], weight, torch.ones(6)), expected[:, 1:])


@torch.no_grad()
def test_mish():
    x = torch.tensor([-1e4, -90.0, -20.0, -3.0, -0.5, 0.0, 1e-6, 0.5, 3.0, 20.0, 50.0, 90.0, 1e4])
    torch.testing.assert_close(mish(x), functional.mish(x.double()).float(), atol=1e-5, rtol=1e-6)


@torch.inference_mode()
def test_sight_over_pasts_of_their_own():
    generator = torch.Generator().manual_seed(0)
    x, keys, heads = torch.zeros(2, 3, 8), 7, 2
    shared, own = RelativeSpan.of(x, keys, None), RelativeSpan.of(x, keys, None, torch.tensor([4, 2]))
    scores = torch.randn(2, heads, 3, keys + 3 - 1, generator=generator)
    for past, row in ((4, 0), (2, 1)):
        for query in range(3):
            for key in range(past + query + 1):
                # Column 0 stands for the distance keys − 1.
                expected = scores[row, :, query, keys - 1 - (past + query - key)]
                assert torch.equal(own.by_key(scores)[row, :, query, key], expected)
                if past == keys - 3:
                    assert torch.equal(shared.by_key(scores)[row, :, query, key], expected)
