from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vivavoce.errors import InvalidRequest, VivavoceError, VoiceExists, VoiceNotFound, VoiceStoreError
from vivavoce.service.voices.store import VoiceStore, voices_home
from vivavoce.service.voices.voice import Voice

TRAVERSALS = ["../x", "a/b", "..", "x\x00y", "x" * 5000, "", "/etc/passwd", ".lock", "a\\..\\b", "x\ny"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_round_trip_is_exact(store, full_voice, plain_voice, same):
    voices = {"anna": full_voice("anna"), "中文女": plain_voice("中文女")}
    for voice in voices.values():
        store.save(voice)
    for name, voice in voices.items():
        same(store.load(name), voice)
    assert store.names() == ["anna", "中文女"]
    assert list(store) == store.names()
    assert "anna" in store
    assert "nobody" not in store
    assert 3 not in store


def test_another_store_on_the_same_folder_sees_the_voice(store, folder, full_voice, same):
    voice = full_voice()
    store.save(voice)
    same(VoiceStore(folder).load("anna"), voice)


def test_a_folder_that_is_not_there_holds_nothing_and_is_not_made(store, folder):
    assert store.names() == []
    assert "anna" not in store
    with pytest.raises(VoiceNotFound):
        store.load("anna")
    with pytest.raises(VoiceNotFound):
        store.remove("anna")
    assert not folder.exists()


def test_files_and_folder_are_private(store, folder, full_voice):
    before = os.umask(0)
    try:
        store.save(full_voice())
        store.save(full_voice(), replace=True)
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_nothing_but_the_voice_and_the_lock_is_left(store, folder, full_voice):
    store.save(full_voice())
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "anna.safetensors"]


def test_unknown_voice_lists_known_ones(store, plain_voice):
    for i in range(10):
        store.save(plain_voice(f"v{i}"))
    for act in (store.load, store.remove):
        with pytest.raises(VoiceNotFound) as caught:
            act("anna")
        assert str(caught.value) == (
            "voice: 'anna' is not registered (known: v0, v1, v2, v3, v4, v5, v6, v7 and more); "
            "add it with `vivavoce voice add`"
        )


def test_a_taken_name_is_kept_unless_replaced(store, full_voice, same):
    first, second = full_voice(), full_voice()
    store.save(first)
    with pytest.raises(VoiceExists, match=r"'anna' is stored already"):
        store.save(second)
    same(store.load("anna"), first)
    store.save(second, replace=True)
    same(store.load("anna"), second)
    assert store.names() == ["anna"]


def test_remove(store, full_voice):
    store.save(full_voice("anna"))
    store.save(full_voice("bert"))
    store.remove("anna")
    assert store.names() == ["bert"]
    with pytest.raises(VoiceNotFound):
        store.load("anna")


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("taken", "name"), [("Anna", "anna"), ("straße", "STRASSE"), ("É", "é")])
def test_names_that_differ_in_case_only_are_refused(store, plain_voice, taken, name, replace):
    store.save(plain_voice(taken))
    with pytest.raises(VoiceExists, match=r"in case only; choose another name"):
        store.save(plain_voice(name), replace=replace)
    assert store.names() == [taken]
    assert name not in store
    with pytest.raises(VoiceNotFound):
        store.load(name)


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


def test_both_normal_forms_are_one_name(store, folder, plain_voice):
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    store.save(plain_voice(decomposed))
    assert store.names() == [composed]
    assert decomposed in store
    assert store.load(decomposed).name == composed
    with pytest.raises(VoiceExists):
        store.save(plain_voice(composed))


def test_a_decomposed_file_name_is_found_and_replaced(store, folder, full_voice, same):
    """Archives made on other systems may bring such names along."""
    store.save(full_voice("Zo\u00eb"))
    (folder / "Zo\u00eb.safetensors").rename(folder / "Zoe\u0308.safetensors")
    assert store.names() == ["Zo\u00eb"]
    new = full_voice("Zo\u00eb")
    store.save(new, replace=True)
    same(store.load("Zo\u00eb"), new)
    assert [unicodedata.normalize("NFC", path.name) for path in folder.glob("*.safetensors")] == [
        "Zo\u00eb.safetensors"
    ]


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
    (folder / "folder.safetensors").mkdir()
    os.mkfifo(folder / "pipe.safetensors")
    save_file({"weight": torch.zeros(3)}, folder / "weights.safetensors")
    assert store.names() == ["anna"]
    for name in ("folder", "pipe", "a*b", ".hidden"):
        assert name not in store
    for name in ("folder", "pipe"):
        with pytest.raises(VoiceNotFound):
            store.load(name)


def test_a_foreign_file_is_neither_loaded_nor_overwritten(store, folder, plain_voice):
    folder.mkdir()
    save_file({"weight": torch.zeros(3)}, folder / "weights.safetensors")
    with pytest.raises(VoiceStoreError, match=r"^voice: 'weights' in weights.safetensors is damaged, or no voice"):
        store.load("weights")
    with pytest.raises(VoiceExists):
        store.save(plain_voice("weights"))


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR."])
def test_a_damaged_file_is_one_line(store, folder, full_voice, content):
    store.save(full_voice())
    (folder / "anna.safetensors").write_bytes(content)
    with pytest.raises(VoiceStoreError) as caught:
        store.load("anna")
    assert str(caught.value).isprintable()
    assert str(caught.value).startswith("voice: 'anna' in anna.safetensors is damaged")


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_one_line(store, folder, full_voice, kept):
    store.save(full_voice())
    path = folder / "anna.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(VoiceStoreError, match=r"is damaged"):
        store.load("anna")


def test_a_giant_file_is_not_read_to_its_end(store, folder, full_voice):
    store.save(full_voice())
    with (folder / "anna.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # takes no space
    with pytest.raises(VoiceStoreError, match=r"larger than 16 MiB"):
        store.load("anna")


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


def test_a_misfit_is_refused_before_anything_is_made(store, folder, full_voice):
    with pytest.raises(InvalidRequest):
        store.save(full_voice(mel=torch.zeros(4001, 80)))
    assert not folder.exists()


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path, plain_voice):
    place = tmp_path / "voices"
    place.write_text("a file")
    store = VoiceStore(place)
    for act in (store.names, lambda: store.save(plain_voice()), lambda: store.load("a"), lambda: "a" in store):
        with pytest.raises(VoiceStoreError, match=r"^voice store: .*check the folder"):
            act()


def test_a_forbidden_file_is_one_line(store, plain_voice, monkeypatch):
    store.save(plain_voice("anna"))

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(VoiceStoreError, match=r"^voice store: .* cannot be read .Permission denied.; check the folder"):
        store.load("anna")
    assert store.names() == []


def test_a_voice_removed_while_it_is_loaded_is_unknown(store, plain_voice, monkeypatch):
    store.save(plain_voice("anna"))
    open_path = Path.open

    def removed_first(path, *args, **kwargs):
        path.unlink(missing_ok=True)
        return open_path(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", removed_first)
    with pytest.raises(VoiceNotFound):
        store.load("anna")


def test_of_ten_threads_one_gets_a_new_name(folder, plain_voice, same):
    voices = [plain_voice("anna") for _ in range(10)]
    barrier = threading.Barrier(10)

    def save(voice: Voice) -> bool:
        barrier.wait()
        try:
            VoiceStore(folder).save(voice)
        except VoiceExists:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        won = list(pool.map(save, voices))
    assert sum(won) == 1
    same(VoiceStore(folder).load("anna"), voices[won.index(True)])


def test_readers_find_the_old_voice_or_the_new_one(store, plain_voice):
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


def test_a_writer_keeps_other_processes_out(store, folder, plain_voice, monkeypatch):
    replace_file, refusals = os.replace, []

    def replace(*paths) -> None:
        with (folder / ".lock").open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as refusal:
                refusals.append(refusal)
        replace_file(*paths)

    monkeypatch.setattr(os, "replace", replace)
    store.save(plain_voice("anna"))
    store.save(plain_voice("anna"), replace=True)
    assert len(refusals) == 2


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    assert voices_home() == tmp_path / "voices"
    monkeypatch.delenv("VIVAVOCE_HOME")
    assert voices_home().parts[-2:] == ("vivavoce", "voices")


def test_every_error_is_one_of_ours(store):
    for name in (*TRAVERSALS, "unknown"):
        with pytest.raises(VivavoceError):
            store.load(name)
