from contextlib import contextmanager

import pytest

pytest.importorskip("triton")

import triton

from vivavoce.models.kernels.compile_ahead import compiled_ahead, launched


class Kernel:
    """Says what is asked of it."""

    def warmup(self, *args, grid):
        return "compiled", args, grid

    def __getitem__(self, grid):
        return lambda *args: ("launched", args, grid)


def test_the_interpreter_launches(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with compiled_ahead() as compiling:
        assert not compiling
        assert launched(Kernel(), (3,))(1) == ("launched", (1,), (3,))


def test_launches_inside_only_compile(monkeypatch):
    entered = []

    @contextmanager
    def mode(workers):
        entered.append(workers.submit(int).result())
        yield

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton, "AsyncCompileMode", mode, raising=False)
    with compiled_ahead() as compiling:
        assert compiling
        assert launched(Kernel(), (3,))(1) == ("compiled", (1,), (3,))
    assert entered == [0]
    assert launched(Kernel(), (3,))(1) == ("launched", (1,), (3,))
    with pytest.raises(RuntimeError), compiled_ahead():
        raise RuntimeError
    assert launched(Kernel(), (3,))(1) == ("launched", (1,), (3,))
