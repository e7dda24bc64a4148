import multiprocessing
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from vivavoce.files import locked, replace_file, replacing, untrusted


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


def test_who_waits_for_a_lock_may_give_up(tmp_path):
    held, again = (locked(tmp_path / "lock", timeout_s=0.05) for _ in range(2))
    with held, pytest.raises(TimeoutError, match=r"another process has held lock for 0.05 s"):
        again.__enter__()
    with locked(tmp_path / "lock", timeout_s=0.0):
        pass


def test_a_planted_link_is_no_lock(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("lock", "folder"):
        with pytest.raises(OSError, match=f"{name} is a link; remove it"), locked(tmp_path / name):
            pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("mode", "problem"), [(0o755, None), (0o2775, None), (0o702, "everyone .mode 702.; chmod o-w")]
)
def test_a_place_that_everyone_may_write_is_not_trusted(tmp_path, mode, problem):
    tmp_path.chmod(mode)
    found = untrusted(tmp_path)
    assert found is None if problem is None else re.search(problem, found)


def test_a_place_of_another_user_is_not_trusted_unless_it_is_roots(tmp_path, monkeypatch):
    owner = tmp_path.stat().st_uid or os.chown(tmp_path, 4711, -1) or 4711
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    assert untrusted(tmp_path) == f"belongs to user {owner}, but user 10001 runs this; chown it to 10001"
    assert untrusted(tmp_path, any_owner=True) is None
    assert untrusted(Path("/")) is None
