"""What every store does, with voices in a folder and in a redis; and which store a user means."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest, MissingDependency, VoiceExists, VoiceNotFound
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.frontend.voices.stores import Quota, open_voice_store
from vivavoce.frontend.voices.voice import optional_fields
from vivavoce_fleet.redis_store import RedisStore

OWNERS = [
    "",
    "acme",
    "ACME",
    "Acme ",
    "../acme",
    "..",
    "/etc",
    "a/b",
    "owners",
    "public",
    "a\x00b",
    "\ud800",
    "x" * 5000,
]
OWNERS += ["Zoë", "Zoe\u0308"]


def test_round_trip_is_exact(place, another, full_voice, plain_voice, same):
    voices = {"anna": full_voice("anna"), "中文女": plain_voice("中文女")}
    for voice in voices.values():
        place.save(voice)
    for store in (place, another()):
        for _ in range(2):  # once more from the copy
            for name, voice in voices.items():
                same(store.load(name), voice)
        assert store.names() == list(store) == ["anna", "中文女"]
        assert "anna" in store
        for foreign in ("nobody", 3, "a/b", "ANNA"):
            assert foreign not in store


def test_a_taken_name_is_kept_unless_replaced(place, full_voice, same):
    first, second = full_voice(), full_voice()
    place.save(first)
    with pytest.raises(VoiceExists, match=r"'anna' is stored already; choose another name, or replace it"):
        place.save(second)
    same(place.load("anna"), first)
    place.save(second, replace=True)
    same(place.load("anna"), second)
    assert place.names() == ["anna"]


def test_what_others_change_is_seen_at_once(place, another, full_voice, same):
    other = another()
    first, second = full_voice(), full_voice()
    place.save(first)
    same(other.load("anna"), first)
    before = other.version("anna")
    place.save(second, replace=True)
    assert other.version("anna") not in (None, before)
    same(other.load("anna"), second)
    place.save(full_voice("bert"))
    place.remove("anna")
    assert other.version("anna") is None
    assert other.names() == ["bert"]
    for act in (other.load, other.remove):
        with pytest.raises(VoiceNotFound, match=r"\(known: bert\)"):
            act("anna")
    place.save(first)
    assert other.version("anna") not in (None, before)


def test_every_save_has_a_version_of_its_own(place, full_voice):
    voice, versions = full_voice(), [place.version("../anna")]
    for _ in range(5):
        versions.append(place.version("anna"))
        assert place.version("anna") == versions[-1]
        place.save(voice, replace=True)
    assert versions[:2] == [None, None]
    assert len(set(versions)) == 5


def test_features_that_two_models_add_at_once_are_both_kept(another, full_voice):
    voice, barrier = full_voice(recording=b"recorded"), threading.Barrier(3)
    stores = [another() for _ in range(3)]
    stores[0].save(voice, "acme")

    def add(at: int) -> bool:
        barrier.wait()
        return stores[at].add_features(voice, full_voice("", fingerprint=f"m{at}"), "acme")

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(add, range(3)))
    stored = stores[0].load("anna", "acme")
    assert {one.fingerprint for one in stored.others} == {"m0", "m1", "m2"}
    assert (stored.fingerprint, stored.recording) == (voice.fingerprint, voice.recording)
    assert stores[1].add_features(stored, full_voice("", fingerprint="m0"), "acme"), "it is there"


def test_features_are_not_added_to_a_voice_that_is_gone_or_replaced(place, another, full_voice, same, monkeypatch):
    voice, features = full_voice(recording=b"recorded"), full_voice("", fingerprint="m")
    assert not place.add_features(voice, features)
    place.save(voice)
    other, load = another(), place._load
    new = full_voice(recording=b"another one")

    def meanwhile(act):
        """The voice, just before another server does something with it."""

        def loaded(name, owner):
            monkeypatch.setattr(place, "_load", load)
            found = load(name, owner)
            act()
            return found

        monkeypatch.setattr(place, "_load", loaded)

    meanwhile(lambda: other.save(new, replace=True))
    assert not place.add_features(voice, features)
    same(place.load("anna"), new)
    meanwhile(lambda: other.remove("anna"))
    assert not place.add_features(new, features)
    assert "anna" not in place
    place.save(new)
    with pytest.raises(InvalidRequest, match="more than 0"):
        place.add_features(new, features, quota=Quota(total_bytes=1000))


@pytest.mark.parametrize(("taken", "name"), [("Anna", "anna"), ("straße", "STRASSE"), ("É", "é")])
def test_names_that_differ_in_case_only_are_refused(place, plain_voice, taken, name):
    place.save(plain_voice(taken))
    for replace in (False, True):
        with pytest.raises(VoiceExists, match=r"in case only; choose another name"):
            place.save(plain_voice(name), replace=replace)
    assert place.names() == [taken]
    assert name not in place
    with pytest.raises(VoiceNotFound):
        place.load(name)


def test_of_ten_servers_one_gets_a_new_name(another, plain_voice, same):
    voices, stores, barrier = (
        [plain_voice("anna") for _ in range(10)],
        [another() for _ in range(10)],
        threading.Barrier(10),
    )

    def save(at: int) -> bool:
        barrier.wait()
        try:
            stores[at].save(voices[at])
        except VoiceExists:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        won = list(pool.map(save, range(10)))
    assert sum(won) == 1
    same(stores[0].load("anna"), voices[won.index(True)])


def test_quotas_hold_against_simultaneous_saves(another, plain_voice, full_voice):
    stores, barrier, quota = [another() for _ in range(6)], threading.Barrier(6), Quota(voices=2)

    def save(at: int) -> bool:
        barrier.wait()
        try:
            stores[at].save(plain_voice(f"v{at}"), quota=quota)
        except InvalidRequest as error:
            assert str(error) == "voice: there are 2 voices already, the limit; remove one, or replace it"  # noqa: PT017
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(save, range(6))) == 2
    place = stores[0]
    taken = full_voice(place.names()[0])
    place.save(taken, replace=True, quota=quota)
    place.save(plain_voice("more"))  # who asks for no quota has none
    place.save(taken, replace=True, quota=quota)  # what is too full already may be changed
    with pytest.raises(InvalidRequest, match=r"^voice: all voices together would take more than 0.0\d* MiB, the limit"):
        place.save(taken, replace=True, quota=Quota(total_bytes=2000))


def test_namespaces_are_apart_whatever_the_owner_is_called(place, plain_voice):
    for at, owner in enumerate(OWNERS):
        place.save(plain_voice(f"v{at}"), owner)
    for at, owner in enumerate(OWNERS):
        assert place.names(owner) == [f"v{at}"]


def test_summaries(place, full_voice, plain_voice):
    anna = full_voice("anna")
    for voice in (anna, plain_voice("Bert")):
        place.save(voice, "acme")
    assert list(place.summaries("acme")) == [
        VoiceSummary("Bert", "stored", False, "", "", False),
        VoiceSummary("anna", "stored", False, anna.description, anna.transcript, True, **optional_fields(anna)),
    ]


@pytest.mark.parametrize("place", ["~/mine", Path("~/mine")])
def test_a_path_is_a_folder(place, monkeypatch, tmp_path, plain_voice):
    monkeypatch.setenv("HOME", str(tmp_path))
    open_voice_store(place).save(plain_voice("anna"))
    assert (tmp_path / "mine" / "anna.safetensors").exists()


@pytest.mark.parametrize("place", [None, ""])
def test_without_a_place_it_is_the_users_own(place, monkeypatch, tmp_path, plain_voice):
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    open_voice_store(place).save(plain_voice("anna"))
    assert (tmp_path / "voices" / "anna.safetensors").exists()


@pytest.mark.parametrize("url", ["redis://host", "rediss://host:1/2", "REDIS://host"])
def test_a_redis_url_is_a_redis(url):
    place = open_voice_store(url)
    assert isinstance(place, RedisStore)
    place.close()


@pytest.mark.parametrize("url", ["file:///voices", "http://user:hunter2@host/", "s3://bucket", "redis+tls://host"])
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidRequest, match=r"^voices: \S+:// cannot hold voices; give a folder's path, or a URL"):
        open_voice_store(url)


def test_a_folder_needs_no_redis(monkeypatch, tmp_path, plain_voice):
    monkeypatch.setitem(sys.modules, "redis", None)
    open_voice_store(tmp_path).save(plain_voice())
    with pytest.raises(MissingDependency):
        open_voice_store("redis://host")
