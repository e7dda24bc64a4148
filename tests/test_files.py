import multiprocessing
import stat
import threading

import pytest

from vivavoce.files import locked, replace_file, replacing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    replace_file(path, "müde")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", None])
    assert path.read_text(encoding="utf-8") == "müde"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_private_file_is_its_owners_only(tmp_path):
    replace_file(tmp_path / "a", b"x", private=True, sync=True)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def _hold(path, held, free):
    with locked(path):
        held.set()
        free.wait(10)


@pytest.mark.parametrize("name", ["", "lock"])
def test_a_lock_is_held_by_one_process(tmp_path, name):
    context = multiprocessing.get_context("fork")
    held, free = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / name, held, free))
    holder.start()
    assert held.wait(10)

    def refuse():
        raise BlockingIOError

    with pytest.raises(BlockingIOError), locked(tmp_path / name, on_wait=refuse):
        pass
    waited = threading.Event()
    threading.Timer(0.05, free.set).start()
    with locked(tmp_path / name, on_wait=waited.set):
        assert waited.is_set()
        assert free.is_set()
    holder.join(10)
