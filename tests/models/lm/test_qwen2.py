import torch

from vivavoce.models.lm.kv_cache import KVCache
from vivavoce.models.lm.prompting import LMPrompt, pad_rows, prompt_rows

CPU = torch.device("cpu")


def some_rows(lm, count, seed=0):
    return torch.randn(count, lm.config.hidden_size, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_cached_steps_equal_one_pass(models):
    lm, rows = models.lm, some_rows(models.lm, 23)[None]
    whole = lm(rows)
    cache = KVCache.allocate(lm.config, 1, 30, CPU, torch.float32)
    parts, done = [], 0
    for piece in rows.split([9, 1, 1, 5, 7], dim=1):
        parts.append(lm(piece, cache, torch.tensor([done]), done + piece.shape[1]))
        done += piece.shape[1]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_padding_and_company_change_nothing(models):
    lm = models.lm
    rows = [some_rows(lm, count, seed=count) for count in (3, 17, 8)]
    batch, lengths = pad_rows(rows)
    cache = KVCache.allocate(lm.config, 3, 40, CPU, torch.float32)
    together = lm(batch, cache, reach=17)
    step = some_rows(lm, 3, seed=99)[:, None]
    after = lm(step, cache, lengths, 18)
    for row, own in enumerate(rows):
        alone = lm(torch.cat((own, step[row]))[None])[0]
        torch.testing.assert_close(together[row, : len(own)], alone[:-1], atol=1e-5, rtol=0)
        torch.testing.assert_close(after[row, 0], alone[-1], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_causality(models):
    rows = some_rows(models.lm, 12)[None]
    changed = rows.clone()
    changed[:, 7:] += 1
    before, after = models.lm(rows), models.lm(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@torch.inference_mode()
def test_prompt_order(models):
    lm = models.lm
    rows = prompt_rows(lm, LMPrompt(text=(5, 6), prompt_text=(4,), prompt_speech=(100, 200)))
    wanted = torch.cat(
        (
            lm.control_embedding.weight[:1],
            lm.text_embedding.weight[4:7],
            lm.control_embedding.weight[1:2],
            lm.speech_embedding.weight[[100, 200]],
        )
    )
    assert torch.equal(rows, wanted)


def test_it_can_be_trained(babble):
    from vivavoce.models.build import build_models

    lm = build_models(babble, CPU).lm.requires_grad_(True)
    hidden = lm(some_rows(lm, 10)[None])
    lm.log_probabilities(hidden)[0, :, 3].sum().neg().backward()
    untouched = {"text_embedding.weight", "speech_embedding.weight", "control_embedding.weight"}
    without = {name for name, parameter in lm.named_parameters() if parameter.grad is None}
    assert without == untouched
