"""Voices in a redis that answers. What becomes of them while it does not: test_redis_away.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import torch

from vivavoce.errors import InvalidRequest, VoiceExists, VoiceNotFound, VoiceStoreError
from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.summary import StoredSummary

PUBLIC_KEY = "vivavoce:voices:public"


@pytest.fixture
def voices(open_place):
    return open_place().of("")


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def test_round_trip_is_exact(voices, open_place, full_voice, plain_voice, same):
    kept = {"anna": full_voice("anna"), "中文女": plain_voice("中文女")}
    for voice in kept.values():
        voices.save(voice)
    for server in (voices, open_place("other copies").of(""), open_place(None).of("")):
        for name, voice in kept.items():
            same(server.load(name), voice)
            same(server.load(name), voice)  # from the copy
        assert server.names() == list(server) == ["anna", "中文女"]
        assert "anna" in server
        for foreign in ("nobody", 3, "a/b", "ANNA"):
            assert foreign not in server


def test_summaries_hold_what_people_read(voices, full_voice, plain_voice):
    anna = full_voice("anna")
    voices.save(anna)
    voices.save(plain_voice("Bert"))
    assert voices.summaries() == [
        StoredSummary("Bert", "", "", False),
        StoredSummary("anna", anna.description, anna.transcript, True),
    ]


def test_unknown_names_list_known_ones(voices, plain_voice):
    voices.save(plain_voice("anna"))
    for act in (voices.load, voices.remove):
        with pytest.raises(VoiceNotFound, match=r"'bert' is not registered \(known: anna\)"):
            act("bert")
        with pytest.raises(InvalidRequest, match=r"^voice name: "):
            act("../anna")


def test_a_taken_name_is_kept_unless_replaced(voices, full_voice, same):
    first, second = full_voice(), full_voice()
    voices.save(first)
    with pytest.raises(VoiceExists, match=r"'anna' is stored already; choose another name, or replace it"):
        voices.save(second)
    same(voices.load("anna"), first)
    voices.save(second, replace=True)
    same(voices.load("anna"), second)
    assert voices.names() == ["anna"]


@pytest.mark.parametrize("replace", [False, True])
def test_names_that_differ_in_case_only_are_refused_as_on_disk(voices, plain_voice, replace):
    voices.save(plain_voice("straße"))
    with pytest.raises(VoiceExists, match=r"'STRASSE' differs from the stored 'straße' in case only"):
        voices.save(plain_voice("STRASSE"), replace=replace)
    assert "STRASSE" not in voices
    with pytest.raises(VoiceNotFound):
        voices.load("STRASSE")


def test_both_normal_forms_are_one_name(voices, plain_voice):
    voices.save(plain_voice("Zoe\u0308"))
    assert voices.names() == ["Zo\u00eb"]
    assert voices.load("Zoe\u0308").name == "Zo\u00eb"


def test_what_others_change_is_seen_at_once(voices, open_place, full_voice, same):
    other = open_place("other copies").of("")
    first, second = full_voice(), full_voice()
    voices.save(first)
    same(other.load("anna"), first)
    before = other.version("anna")
    voices.save(second, replace=True)
    assert other.version("anna") != before
    same(other.load("anna"), second)
    voices.remove("anna")
    assert other.version("anna") is None
    with pytest.raises(VoiceNotFound):
        other.load("anna")
    voices.save(first)
    assert other.version("anna") not in (None, before)


def test_of_ten_servers_one_gets_a_new_name(open_place, plain_voice, same):
    kept = [plain_voice("anna") for _ in range(10)]
    servers = [open_place(None).of("") for _ in range(10)]
    barrier = threading.Barrier(10)

    def save(at: int) -> bool:
        barrier.wait()
        try:
            servers[at].save(kept[at])
        except VoiceExists:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        won = list(pool.map(save, range(10)))
    assert sum(won) == 1
    same(servers[0].load("anna"), kept[won.index(True)])


def test_readers_find_the_old_voice_or_the_new_one(voices, open_place, plain_voice):
    other = open_place("other copies").of("")
    kept = [plain_voice("anna") for _ in range(10)]
    voices.save(kept[0])
    barrier = threading.Barrier(4)

    def write() -> None:
        barrier.wait()
        for voice in kept:
            voices.save(voice, replace=True)

    def read(_: int) -> bool:
        barrier.wait()
        return all(
            any(torch.equal(found.embedding, voice.embedding) for voice in kept)
            for found in (other.load("anna") for _ in range(20))
        )

    with ThreadPoolExecutor(4) as pool:
        writer = pool.submit(write)
        assert all(pool.map(read, range(3)))
        writer.result()
    assert torch.equal(other.load("anna").embedding, kept[-1].embedding)


def test_quotas_hold_against_simultaneous_saves(open_place, plain_voice):
    servers = [open_place(None).of("someone") for _ in range(6)]
    barrier = threading.Barrier(6)

    def save(at: int) -> bool:
        barrier.wait()
        try:
            servers[at].save(plain_voice(f"v{at}"), quota=Quota(voices=2))
        except InvalidRequest as error:
            assert str(error) == "voice: there are 2 voices already, the limit; remove one, or replace it"  # noqa: PT017
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(save, range(6))) == 2
    taken = servers[0].names()[0]
    servers[0].save(plain_voice(taken), replace=True, quota=Quota(voices=2))
    servers[0].save(plain_voice(taken), replace=True, quota=Quota(voices=1))  # what is too full already may be changed
    with pytest.raises(InvalidRequest, match=r"would take more than 0.0\d* MiB, the limit"):
        servers[0].save(plain_voice(taken), replace=True, quota=Quota(total_bytes=2000))


def test_the_same_save_twice_is_one(voices, redis_server, full_voice, same, monkeypatch):
    """A connection may break after redis has saved, and before it has said so."""
    evaluate, calls = redis.Redis.eval, []

    def broken_once(self, *arguments):
        answer = evaluate(self, *arguments)
        calls.append(answer)
        if len(calls) == 1:
            raise redis.ConnectionError("lost")
        return answer

    monkeypatch.setattr(redis.Redis, "eval", broken_once)
    voice = full_voice()
    voices.save(voice)
    assert calls[:2] == [[b"kept"], [b"kept"]]
    same(voices.load("anna"), voice)


def test_namespaces_are_apart(open_place, plain_voice):
    place = open_place()
    owners = ["", "acme", "ACME", "../acme", "public", "a\x00b", "\ud800", "x" * 5000]
    for at, owner in enumerate(owners):
        place.of(owner).save(plain_voice(f"v{at}"))
    for at, owner in enumerate(owners):
        assert place.of(owner).names() == [f"v{at}"]


def test_keys_tell_no_owner_and_nothing_is_left_behind(open_place, client, plain_voice):
    place = open_place()
    for owner in ("", "acme"):
        place.of(owner).save(plain_voice("anna"))
    keys = {key.decode() for key in client.scan_iter()}
    assert PUBLIC_KEY in keys
    assert len(keys) == 2
    assert not any("acme" in key for key in keys)
    for owner in ("", "acme"):
        place.of(owner).remove("anna")
    assert client.dbsize() == 0


def test_a_damaged_value_is_one_line_and_can_be_removed(voices, open_place, client, full_voice):
    voices.save(full_voice())
    client.hset(PUBLIC_KEY, "data:anna", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    other = open_place("other copies").of("")
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' in redis at 127.0.0.1:\d+/0 is damaged; remove it"):
        other.load("anna")
    other.remove("anna")
    assert other.names() == []


def test_a_full_server_is_one_line(voices, client, full_voice, same):
    kept = full_voice()
    voices.save(kept)
    client.config_set("maxmemory", 1)
    with pytest.raises(VoiceStoreError, match=r"^voice store: redis at \S+ refuses \(\w+\); ask who runs it"):
        voices.save(full_voice("bert"))
    same(voices.load("anna"), kept)
    assert voices.names() == ["anna"]


def test_another_kind_of_key_is_one_line(voices, client):
    client.set(PUBLIC_KEY, "mine")
    with pytest.raises(VoiceStoreError, match=r"refuses \(WRONGTYPE\)"):
        voices.load("anna")
