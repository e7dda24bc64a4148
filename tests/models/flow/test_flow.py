import pytest
import torch

from vivavoce.models.flow.matching import MAX_FRAMES, fixed_noise, time_steps
from vivavoce.models.flow.model import FlowItem
from vivavoce.models.layers.masks import visible_keys


def item(num_tokens, num_prompt, seed, final=True):
    generator = torch.Generator().manual_seed(seed)
    return FlowItem(
        torch.randint(0, 6561, (num_prompt + num_tokens,), generator=generator),
        torch.randn(2 * num_prompt, 80, generator=generator),
        torch.randn(192, generator=generator),
        final,
    )


ITEMS = [item(40, 12, 1), item(7, 0, 2), item(90, 31, 3), item(33, 25, 4, final=False)]


@pytest.mark.parametrize("chunked", [False, True])
@torch.inference_mode()
def test_batched_equals_single(models, chunked):
    together = models.flow(ITEMS, chunked)
    for mel, one in zip(together, ITEMS, strict=True):
        torch.testing.assert_close(mel, models.flow([one], chunked)[0], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_frames_of_a_chunk_do_not_change_when_more_arrives(models):
    long = item(120, 25, 5)
    whole = models.flow([long], True)[0]
    for spoken in (25, 50, 75):
        head = FlowItem(long.tokens[: 25 + spoken + 3], long.prompt_mel, long.embedding, final=False)
        torch.testing.assert_close(models.flow([head], True)[0], whole[: 2 * spoken], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_the_prompt_matters(models):
    one = item(20, 10, 6)
    other = FlowItem(one.tokens, torch.zeros_like(one.prompt_mel), one.embedding)
    assert not torch.allclose(models.flow([one], False)[0], models.flow([other], False)[0], atol=1e-2)


def test_too_many_frames_are_refused(models):
    with pytest.raises(ValueError, match=str(MAX_FRAMES)):
        models.flow([item(MAX_FRAMES // 2 + 1, 0, 7)], False)


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


def test_it_can_be_trained(babble):
    from vivavoce.models.build import build_models

    flow = build_models(babble, torch.device("cpu")).flow.requires_grad_(True)
    x = torch.randn(1, 20, 80)
    lengths = torch.tensor([20])
    mu, _ = flow.encode(torch.arange(10)[None], torch.tensor([10]), torch.tensor([True]), True)
    speaker = flow.speaker(torch.randn(1, 192))
    flow.estimator(x, mu, speaker, torch.zeros_like(x), torch.rand(1), lengths, True).square().mean().backward()
    assert all(parameter.grad is not None for parameter in flow.parameters())
