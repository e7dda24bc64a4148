"""What a folder makes of files that are no voices, of names, of a disk that refuses."""

from __future__ import annotations

import errno
import os
import stat
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save, save_file

from vivavoce.errors import InvalidRequest, VoiceExists, VoiceNotFound, VoiceStoreError
from vivavoce.service.voices.names import VoiceSummary
from vivavoce.service.voices.stores import Quota
from vivavoce.service.voices.voice import Voice

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
        VoiceSummary("anna", "stored", True, anna.description, anna.transcript, True),
    ]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.", save({"weight": torch.zeros(3)})]
)
def test_a_damaged_or_foreign_file_is_one_line_and_is_not_overwritten(store, folder, full_voice, content):
    folder.mkdir()
    (folder / "anna.safetensors").write_bytes(content)
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' in anna.safetensors is damaged, or no voice") as caught:
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
    assert store.state().startswith("voice store: ")


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
