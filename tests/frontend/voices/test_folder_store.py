"""What a folder makes of files that are no voices, of names, of a disk that refuses."""

from __future__ import annotations

import errno
import os
import stat
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save, save_file

from vivavoce.errors import InvalidRequest, VoiceExists, VoiceNotFound, VoiceStoreError
from vivavoce.files import locked
from vivavoce.frontend.voices.folder_store import FAILURE_TOLD_S, FolderStore
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.frontend.voices.stores import Quota
from vivavoce.frontend.voices.voice import Voice, optional_fields

TRAVERSALS = ["../x", "a/b", "..", "x\x00y", "x" * 5000, "", "/etc/passwd", ".lock", "a\\..\\b", "x\ny"]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_nothing_outside_is_read_written_or_removed(store, folder, plain_voice, name):
    store.save(plain_voice("anna"))
    for outside in (folder.parent / "x.safetensors", folder.parent / ".safetensors"):
        outside.write_bytes(b"untouched")
    before = sorted(path for path in folder.parent.rglob("*"))
    for act in (store.load, store.remove, lambda name: store.save(plain_voice(name), replace=True)):
        with pytest.raises(InvalidRequest, match=r"^voice name: ") as caught:
            act(name)
        assert str(caught.value).isprintable()
    assert name not in store
    assert sorted(path for path in folder.parent.rglob("*")) == before


def test_a_decomposed_file_name_is_found_and_replaced(store, folder, full_voice, same):
    """Archives made on other systems may bring such names along."""
    store.save(full_voice("Zo\u00eb"))
    (folder / "Zo\u00eb.safetensors").rename(folder / "Zoe\u0308.safetensors")
    assert store.names() == ["Zo\u00eb"]
    new = full_voice("Zo\u00eb")
    store.save(new, replace=True)
    same(store.load("Zo\u00eb"), new)
    (path,) = folder.glob("*.safetensors")
    assert unicodedata.normalize("NFC", path.name) == "Zo\u00eb.safetensors"


def test_a_copied_file_is_a_voice_under_its_new_name(store, folder, full_voice, same):
    voice = full_voice()
    store.save(voice)
    (folder / "copy.safetensors").write_bytes((folder / "anna.safetensors").read_bytes())
    same(store.load("copy"), voice.named("copy"))


def test_listing_skips_what_is_no_voice(store, folder, plain_voice):
    store.save(plain_voice("anna"))
    (folder / "notes.txt").write_text("hello")
    (folder / "song.safetensors.part").write_bytes(b"x")
    (folder / ".hidden.safetensors").write_bytes((folder / "anna.safetensors").read_bytes())
    (folder / "a*b.safetensors").write_bytes((folder / "anna.safetensors").read_bytes())
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "list.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")
    (folder / "folder.safetensors").mkdir()
    os.mkfifo(folder / "pipe.safetensors")
    save_file({"weight": torch.zeros(3)}, folder / "weights.safetensors")
    assert store.names() == ["anna"]
    for name in ("folder", "pipe", "a*b", ".hidden"):
        assert name not in store
    for name in ("folder", "pipe"):
        with pytest.raises(VoiceNotFound):
            store.load(name)


def test_a_list_needs_no_tensors(store, folder, full_voice):
    anna = full_voice("anna")
    store.save(anna)
    path = folder / "anna.safetensors"
    os.truncate(path, path.stat().st_size - 5000)
    assert list(store.summaries()) == [
        VoiceSummary("anna", "stored", True, anna.description, anna.transcript, True, **optional_fields(anna)),
    ]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.", save({"weight": torch.zeros(3)})]
)
def test_a_damaged_or_foreign_file_is_one_line_and_is_not_overwritten(store, folder, full_voice, content):
    folder.mkdir()
    (folder / "anna.safetensors").write_bytes(content)
    refusal = r"^voice: 'anna' in anna.safetensors is damaged, or not a voice"
    with pytest.raises(VoiceStoreError, match=refusal) as caught:
        store.load("anna")
    assert str(caught.value).isprintable()
    with pytest.raises(VoiceExists):
        store.save(full_voice())


def test_a_failed_save_leaves_the_old_voice(store, folder, full_voice, same, monkeypatch):
    voice = full_voice()
    store.save(voice)

    def full_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(VoiceStoreError, match=r"^voice store: .* cannot be written .No space left on device.;"):
            store.save(full_voice(), replace=True)
    same(store.load("anna"), voice)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "anna.safetensors"]


def test_a_file_in_place_of_the_folder_is_one_line(store, folder, plain_voice):
    folder.write_text("a file")
    for act in (store.names, lambda: store.save(plain_voice()), lambda: store.load("a"), lambda: "a" in store):
        with pytest.raises(VoiceStoreError, match=r"^voice store: .*check the folder"):
            act()
    assert store.state().startswith(f"voice store: {str(folder)!r} cannot be read")


def test_readers_find_the_old_voice_or_the_new_one(store):
    voices = [Voice(embedding=torch.full((192,), float(i)), fingerprint="", name="anna") for i in range(20)]
    store.save(voices[0])
    barrier = threading.Barrier(5)

    def write() -> None:
        barrier.wait()
        for voice in voices:
            store.save(voice, replace=True)

    def read(_: int) -> bool:
        barrier.wait()
        return all(len(store.load("anna").embedding.unique()) == 1 for _ in range(40))

    with ThreadPoolExecutor(5) as pool:
        writer = pool.submit(write)
        assert all(pool.map(read, range(4)))
        writer.result()


def test_owners_folders_have_names_of_their_own_and_all_is_private(store, folder, plain_voice):
    before = os.umask(0)
    try:
        for owner in ("", "acme", "ACME", "../acme", "Zoë", "Zoe\u0308"):
            store.save(plain_voice(), owner)
    finally:
        os.umask(before)
    names = [path.name for path in (folder / "owners").iterdir()]
    assert len({name.casefold() for name in names}) == 5
    assert all(len(name) == 64 and name.isalnum() for name in names)
    assert [path.name for path in folder.parent.iterdir()] == ["voices"]
    found = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}


def test_a_quota_of_bytes_is_counted_by_the_byte(store, folder, full_voice, plain_voice):
    for voice in (plain_voice("a"), full_voice("b")):
        store.save(voice)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    store.save(full_voice("b"), replace=True, quota=Quota(total_bytes=size))
    with pytest.raises(InvalidRequest, match=r"^voice: all voices together would take more than \S+ MiB, the limit"):
        store.save(full_voice("b"), replace=True, quota=Quota(total_bytes=size - 1))


def test_a_folder_says_what_is_wrong(store, folder, plain_voice, monkeypatch):
    assert store.state() == "ok"
    store.save(plain_voice())
    assert store.state() == "ok"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert store.state() == f"voice store: {str(folder)!r} is read-only; voices can be neither added nor removed"


def test_what_clients_are_told_names_no_place(store, folder, plain_voice, caplog):
    folder.write_text("a file")
    for act in (store.names, lambda: store.save(plain_voice()), lambda: store.load("a"), lambda: store.remove("a")):
        with pytest.raises(VoiceStoreError, match=r"^voice store: the folder cannot be \w+ \(\w+") as caught:
            act()
        assert str(folder.parent) not in str(caught.value)
    assert all(repr(str(folder)) in record.message for record in caplog.records)
    assert len(caplog.records) == 4


def test_no_planted_link_is_followed(store, folder, full_voice, same):
    """Not by a write; a voice that is a link is read, and replaced as a file would be."""
    store.save(full_voice("bert"))
    precious = folder.parent / "precious"
    (folder / ".lock").unlink()
    for name in (".lock", ".new", "anna.safetensors", ".anna.safetensors.part"):
        (folder / name).symlink_to(precious)
    with pytest.raises(VoiceStoreError, match=r"cannot be written \(.lock is a link; remove it\)"):
        store.save(full_voice())
    assert not precious.exists()
    (folder / ".lock").unlink()
    precious.write_bytes((folder / "bert.safetensors").read_bytes())
    before = precious.read_bytes()
    same(store.load("anna"), store.load("bert").named("anna"))
    voice = full_voice()
    store.save(voice, replace=True)
    same(store.load("anna"), voice)
    (folder / "bert.safetensors").unlink()
    (folder / "bert.safetensors").symlink_to(precious)
    store.remove("bert")
    assert precious.read_bytes() == before


@pytest.mark.parametrize("owner", ["", "acme"])
def test_a_folder_that_strangers_can_change_is_refused(store, folder, plain_voice, owner):
    store.save(plain_voice("anna"), owner)
    place = folder / "owners" if owner else folder
    for act in (
        lambda: store.names(owner),
        lambda: store.version("anna", owner),
        lambda: store.load("anna", owner),
        lambda: store.save(plain_voice("bert"), owner),
        lambda: store.remove("anna", owner),
    ):
        place.chmod(0o777)
        with pytest.raises(
            VoiceStoreError, match=rf"\({place.name} may be written by everyone .mode 777.; chmod o-w it"
        ):
            act()
        assert owner or "chmod o-w it" in store.state()
        place.chmod(0o2775)  # as Kubernetes makes volumes for a group
        assert store.names(owner) == ["anna"]
    store.remove("anna", owner)


def test_a_lock_that_another_process_keeps_is_waited_for_in_vain(folder, full_voice, same):
    store, voice = FolderStore(folder, wait_s=0.05), full_voice()
    store.save(voice)
    with ThreadPoolExecutor() as pool, locked(folder / ".lock"):
        with pytest.raises(VoiceStoreError, match=r"cannot be written \(another process has held .lock for 0.05 s\)"):
            pool.submit(store.save, full_voice(), replace=True).result(30)
        same(store.load("anna"), voice)
        assert "another process has held .lock" in store.state()
    store.save(full_voice(), replace=True)
    assert store.state() == "ok"


def test_a_write_that_failed_is_told_for_a_while_or_until_one_succeeds(folder, plain_voice, monkeypatch):
    now = [0.0]
    store = FolderStore(folder, clock=lambda: now[0])

    def break_(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fail() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", break_)
            with pytest.raises(VoiceStoreError):
                store.save(plain_voice(), replace=True)

    fail()
    assert store.state().startswith(f"voice store: {str(folder)!r} cannot be written (Input/output error)")
    store.names()
    with pytest.raises(VoiceNotFound):  # nothing is written
        store.remove("nobody")
    assert store.state() != "ok"
    now[0] += FAILURE_TOLD_S
    assert store.state() == "ok"
    fail()
    store.save(plain_voice(), replace=True)
    assert store.state() == "ok"


def test_a_disk_that_is_nearly_full_is_told(store, folder, plain_voice, monkeypatch):
    store.save(plain_voice())
    for blocks, left, told in ((1 << 30, 1 << 30, "ok"), (1 << 30, 4_095, None), (0, 0, "ok")):
        found = SimpleNamespace(f_blocks=blocks, f_bavail=left, f_frsize=4_096)
        monkeypatch.setattr(os, "statvfs", lambda _, found=found: found)
        assert store.state() == (told or f"voice store: {str(folder)!r} has less than 16 MiB of disk left; make room")
