"""Products with packed weights: what plain ones give, and only where no gradient is asked for."""

import pytest
import torch

from vivavoce.models import layout as products
from vivavoce.models.layout import Linear, packed, packs

X = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Linear(48, 32)


@pytest.mark.skipif(not packs(torch.zeros(1, 1)), reason="torch packs no weights on this processor")
@torch.no_grad()
def test_rows_of_any_number_and_shape(layer):
    product = packed(layer.weight, layer.bias)
    for x in (X, X[0], X[0, :1], X.repeat(1, 40, 1)):
        torch.testing.assert_close(product(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_a_packed_layer_still_learns(layer):
    with torch.no_grad():
        expected = layer(X)
        layer.pack()
        assert (layer.product is not None) == packs(layer.weight)
        torch.testing.assert_close(layer(X), expected)
    layer(X).sum().backward()
    torch.testing.assert_close(layer.weight.grad, X.sum((0, 1)).expand(32, -1))


def test_where_torch_cannot_pack_it_is_plain(layer, monkeypatch):
    assert not packs(layer.weight.bfloat16())
    monkeypatch.setattr(products, "_packing_works", lambda: False)
    layer.pack()
    assert layer.product is None
