"""In which precision a model runs where nobody said."""

from pathlib import Path

import pytest
import torch

from vivavoce.errors import InvalidRequest
from vivavoce.frontend import model_choice
from vivavoce.frontend.model_choice import choose_dtype, share_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("has", [True, False])
def test_a_large_model_is_read_in_16_bit_where_a_cpu_multiplies_it(
    babble_v3: Path, babble_v1: Path, monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    monkeypatch.setattr(model_choice, "_has_bfloat16", lambda: has)
    assert choose_dtype("auto", CPU, babble_v3) is torch.float32
    monkeypatch.setattr(model_choice, "_LARGE_BYTES", 1)
    assert choose_dtype("auto", CPU, babble_v3) is (torch.bfloat16 if has else torch.float32)
    assert choose_dtype("auto", CPU, babble_v1) is choose_dtype("auto", CPU) is torch.float32
    assert choose_dtype("float32", CPU, babble_v3) is torch.float32
    assert choose_dtype("auto", CUDA, babble_v3) is torch.float16


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="dtype: 'int4' is unknown"):
        choose_dtype("int4", CPU)


def test_engines_on_one_device_share_it() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        share_device(CPU, 1, bounded=False)
        assert torch.get_num_threads() == 4
        share_device(CPU, 3, bounded=False)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    share_device(CUDA, 2, bounded=True)
    with pytest.raises(InvalidRequest, match="engines: 2 on one cuda device would each take all"):
        share_device(CUDA, 2, bounded=False)
