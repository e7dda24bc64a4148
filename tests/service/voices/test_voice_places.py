"""Which place a user means, and namespaces in a folder."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.service.voices.stores.folder_place import FolderPlace
from vivavoce.service.voices.stores.opening import copies_home, open_voice_store
from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.stores.redis_place import RedisPlace
from vivavoce.service.voices.summary import StoredSummary

OWNERS = [
    "acme",
    "ACME",
    "Acme ",
    "../acme",
    "..",
    "/etc",
    "a/b",
    "owners",
    "a\x00b",
    "\ud800",
    "x" * 5000,
    "Zoë",
    "Zoe\u0308",
]


@pytest.fixture
def place(folder):
    return FolderPlace(folder)


def test_namespaces_are_apart_whatever_the_owner_is_called(place, folder, plain_voice):
    for at, owner in enumerate(["", *OWNERS]):
        place.of(owner).save(plain_voice(f"v{at}"))
    for at, owner in enumerate(["", *OWNERS]):
        assert place.of(owner).names() == [f"v{at}"]
    assert {path.parent.parent for path in folder.rglob("*.safetensors")} == {folder.parent, folder / "owners"}
    folders = [path.name for path in (folder / "owners").iterdir()]
    assert len({name.casefold() for name in folders}) == len(OWNERS)
    assert all(len(name) == 64 and name.isalnum() for name in folders)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["voices"]


def test_public_voices_are_the_folders_own(place, store, full_voice, same):
    voice = full_voice()
    store.save(voice)
    same(place.of("").load("anna"), voice)
    assert place.of("acme").names() == []


def test_all_folders_are_private(place, folder, full_voice):
    before = os.umask(0)
    try:
        place.of("acme").save(full_voice())
    finally:
        os.umask(before)
    found = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}


def test_summaries_need_no_tensors(store, folder, full_voice, plain_voice):
    anna = full_voice("anna")
    store.save(anna)
    store.save(plain_voice("Bert"))
    path = folder / "anna.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5000)
    (folder / "junk.safetensors").write_bytes(b"junk")
    (folder / "list.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")
    assert store.summaries() == [
        StoredSummary("Bert", "", "", False),
        StoredSummary("anna", anna.description, anna.transcript, True),
    ]


def test_every_save_has_a_version_of_its_own(store, full_voice):
    voice = full_voice()
    assert store.version("anna") is None
    assert store.version("../anna") is None
    versions = []
    for _ in range(5):
        store.save(voice, replace=True)
        versions.append(store.version("anna"))
        assert store.version("anna") == versions[-1]
    assert None not in versions
    assert len(set(versions)) == 5


def test_quotas(store, folder, full_voice, plain_voice):
    quota = Quota(voices=2)
    store.save(plain_voice("a"), quota=quota)
    store.save(plain_voice("b"), quota=quota)
    with pytest.raises(InvalidRequest) as caught:
        store.save(plain_voice("c"), quota=quota)
    assert str(caught.value) == "voice: there are 2 voices already, the limit; remove one, or replace it"
    store.save(full_voice("b"), replace=True, quota=quota)
    store.save(plain_voice("c"))  # who asks for no quota has none
    store.save(full_voice("b"), replace=True, quota=quota)  # one that is full already may be changed
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    store.save(full_voice("b"), replace=True, quota=Quota(total_bytes=size))
    with pytest.raises(InvalidRequest, match=r"^voice: all voices together would take more than \S+ MiB, the limit"):
        store.save(full_voice("b"), replace=True, quota=Quota(total_bytes=size - 1))


def test_a_folder_says_what_is_wrong(place, folder, plain_voice, monkeypatch):
    assert place.state() == "ok"
    place.of("").save(plain_voice())
    assert place.state() == "ok"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert place.state() == (f"voice store: {str(folder)!r} is read-only; voices can be neither added nor removed")
    assert FolderPlace(folder / ".lock").state().startswith("voice store: ")


@pytest.mark.parametrize("place", ["~/mine", Path("~/mine")])
def test_a_path_is_a_folder(place, monkeypatch, tmp_path, plain_voice):
    monkeypatch.setenv("HOME", str(tmp_path))
    open_voice_store(place, None).of("").save(plain_voice("anna"))
    assert (tmp_path / "mine" / "anna.safetensors").exists()


@pytest.mark.parametrize("place", [None, ""])
def test_without_a_place_it_is_the_users_own(place, monkeypatch, tmp_path, plain_voice):
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    open_voice_store(place, None).of("").save(plain_voice("anna"))
    assert (tmp_path / "voices" / "anna.safetensors").exists()
    assert copies_home() == tmp_path / "voice-copies"
    monkeypatch.delenv("VIVAVOCE_HOME")
    assert copies_home().name == "voice-copies"


@pytest.mark.parametrize("url", ["redis://host", "rediss://host:1/2", "REDIS://host"])
def test_a_redis_url_is_a_redis(url, tmp_path):
    place = open_voice_store(url, tmp_path)
    assert isinstance(place, RedisPlace)
    place.close()


@pytest.mark.parametrize("url", ["file:///voices", "http://user:hunter2@host/", "s3://bucket", "redis+tls://host"])
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidRequest, match=r"^voices: \S+:// is no place for voices; give a folder's path, or a URL"):
        open_voice_store(url, None)


def test_a_folder_needs_no_redis(monkeypatch, tmp_path, plain_voice):
    monkeypatch.setitem(sys.modules, "redis", None)
    open_voice_store(tmp_path, None).of("").save(plain_voice())
    with pytest.raises(MissingDependency):
        open_voice_store("redis://host", None)
