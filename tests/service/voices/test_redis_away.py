"""A redis that is killed, frozen, started again, or was never there."""

from __future__ import annotations

import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from vivavoce.errors import VoiceNotFound, VoiceStoreAway, VoiceStoreError
from vivavoce.service.voices.stores.redis_place import RedisPlace


@pytest.fixture
def place(open_place):
    return open_place()


@pytest.fixture
def voices(place):
    return place.of("")


def test_voices_survive_a_killed_server(redis_server, place, voices, full_voice, same):
    kept = [full_voice(f"v{at}") for at in range(5)]
    for voice in kept:
        voices.save(voice)
    redis_server.kill()
    for voice in kept:
        same(voices.load(voice.name), voice)
    assert voices.names() == [voice.name for voice in kept]
    assert [told.transcript for told in voices.summaries()] == [voice.transcript for voice in kept]
    redis_server.start()
    assert place.state() == "ok"
    for voice in kept:
        same(voices.load(voice.name), voice)


def test_a_new_server_process_reads_copies_while_redis_is_away(redis_server, open_place, voices, full_voice, same):
    voice = full_voice()
    voices.save(voice)
    redis_server.kill()
    same(open_place().of("").load("anna"), voice)
    for copies in ("no copies yet", None):
        without = open_place(copies).of("")
        for act in (without.names, without.summaries, lambda: without.load("anna")):  # noqa: B023
            with pytest.raises(VoiceStoreAway):
                act()


def test_changes_are_refused_and_work_again_without_a_restart(redis_server, voices, full_voice, same):
    first, second = full_voice(), full_voice()
    voices.save(first)
    redis_server.kill()
    acts = [
        lambda: voices.save(second, replace=True),
        lambda: voices.save(full_voice("b")),
        lambda: voices.remove("anna"),
    ]
    for act in acts:
        with pytest.raises(
            VoiceStoreAway, match=r"^voice store: redis at \S+ is away since .* UTC \(.*\); try again in some seconds$"
        ) as caught:
            act()
        assert isinstance(caught.value, VoiceStoreError)
        assert caught.value.http_status == 503
    same(voices.load("anna"), first)
    redis_server.start()
    same(voices.load("anna"), first)
    for act in acts:
        act()
    assert voices.names() == ["b"]


def test_nobody_is_told_that_an_unseen_voice_does_not_exist(redis_server, open_place, voices, plain_voice):
    other = open_place("other copies").of("")
    voices.save(plain_voice("anna"))
    assert other.names() == ["anna"]  # seen by its name, never read
    redis_server.kill()
    assert "anna" in other
    assert other.version("anna") != other.version("anna")
    for act in (other.load, other.version, other.__contains__):
        with pytest.raises(VoiceStoreAway):
            act("bert")
    with pytest.raises(VoiceStoreAway):
        other.load("anna")
    assert other.summaries() == []
    redis_server.start()
    assert other.load("anna").name == "anna"
    with pytest.raises(VoiceNotFound):
        other.load("bert")


def test_a_voice_that_another_server_removed_is_not_served_from_the_copy(
    redis_server, open_place, voices, full_voice, tmp_path
):
    other = open_place("other copies").of("")
    for name in ("anna", "bert"):
        voices.save(full_voice(name))
        other.load(name)
    voices.remove("anna")
    other.load("bert")  # any question tells that there was a change
    assert len(list((tmp_path / "other copies").rglob("*.safetensors"))) == 1
    redis_server.kill()
    with pytest.raises(VoiceStoreAway):
        other.load("anna")
    assert other.names() == ["bert"]


def test_a_voice_that_is_removed_while_it_is_read_leaves_no_copy(open_place, voices, full_voice, tmp_path, monkeypatch):
    other = open_place("other copies").of("")
    voices.save(full_voice())
    read = redis.Redis.hmget

    def removed_meanwhile(self, key, fields):
        answer = read(self, key, fields)
        if len(fields) == 3:  # with the content
            monkeypatch.undo()
            voices.remove("anna")
            assert other.names() == []
        return answer

    monkeypatch.setattr(redis.Redis, "hmget", removed_meanwhile)
    assert other.load("anna").name == "anna"
    assert list((tmp_path / "other copies").rglob("*.safetensors")) == []


def test_copies_know_case_as_redis_does(redis_server, voices, full_voice):
    voices.save(full_voice("Anna"))
    assert voices.version("ANNA") is None
    redis_server.kill()
    for act in (voices.version, voices.load):
        with pytest.raises(VoiceStoreAway):
            act("ANNA")
    assert voices.load("Anna").name == "Anna"


def test_removals_while_nobody_looked_are_seen_by_the_next_process(open_place, voices, full_voice, tmp_path):
    open_place("other copies").of("").names()
    voices.save(full_voice())
    open_place("other copies").of("").load("anna")
    voices.remove("anna")
    assert open_place("other copies").of("").version("anna") is None
    assert list((tmp_path / "other copies").rglob("*.safetensors")) == []


def test_copies_are_private(open_place, full_voice, tmp_path):
    open_place("deep/copies").of("acme").save(full_voice())
    found = list((tmp_path / "deep" / "copies").rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert not any("acme" in path.name for path in found)


def test_a_damaged_copy_is_read_again(open_place, voices, full_voice, same, tmp_path):
    voice = full_voice()
    voices.save(voice)
    (copy,) = (tmp_path / "copies").rglob("*.safetensors")
    copy.write_bytes(copy.read_bytes()[:100])
    same(voices.load("anna"), voice)
    assert len(copy.read_bytes()) > 100


def test_copies_that_cannot_be_written_cost_nothing_but_a_word(open_place, full_voice, same, tmp_path):
    (tmp_path / "a file").write_text("in the way")
    place, voice = open_place("a file"), full_voice()
    assert place.state() == "ok"
    place.of("").save(voice)
    same(place.of("").load("anna"), voice)
    assert place.state().startswith("voice store: the local copy in ")
    assert place.state().isprintable()


def test_the_state_tells_since_when(redis_server, open_place, place):
    assert place.state() == "ok"
    redis_server.kill()
    state = place.state()
    assert state.startswith(f"redis at 127.0.0.1:{redis_server.port}/0 is away since ")
    assert state.endswith("; voices seen before are served from local copies")
    assert open_place(None).state().endswith("; voices are not served")
    redis_server.start()
    assert place.state() == "ok"


def test_the_log_tells_of_coming_and_going_once(redis_server, voices, plain_voice, caplog):
    voices.save(plain_voice("anna"))
    redis_server.kill()
    for _ in range(3):
        voices.load("anna")
    redis_server.start()
    for _ in range(3):
        voices.load("anna")
    away, back = [record.getMessage() for record in caplog.records]
    assert " is away since " in away
    assert back == f"voice store: redis at 127.0.0.1:{redis_server.port}/0 answers again"


def test_a_frozen_server_is_away_too(redis_server, open_place, full_voice, same, tmp_path):
    voices, voice = open_place().of(""), full_voice()
    voices.save(voice)
    hasty = RedisPlace(f"{redis_server.url}?socket_timeout=0.05", tmp_path / "copies", rest_s=0.0)
    redis_server.freeze()
    same(hasty.of("").load("anna"), voice)
    with pytest.raises(VoiceStoreAway, match=r"\(Timeout"):
        hasty.of("").remove("anna")
    hasty.close()
    redis_server.go_on()
    same(voices.load("anna"), voice)


def test_while_it_is_away_one_request_tries_and_the_others_do_not_wait(tmp_path):
    """The server takes connections and never answers; the clock stands still until it is put forward."""
    now = [0.0]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = RedisPlace(
            f"redis://127.0.0.1:{silent.getsockname()[1]}?socket_timeout=0.05",
            tmp_path,
            rest_s=3.0,
            clock=lambda: now[0],
        )

        def count() -> int:
            """Connections that were made since the last call."""
            silent.setblocking(False)
            made = 0
            while True:
                try:
                    silent.accept()[0].close()
                except BlockingIOError:
                    return made
                made += 1

        def ask(_: int = 0) -> None:
            with pytest.raises(VoiceStoreAway):
                place.of("").load("anna")

        ask()
        assert count() == 1
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(50)))
            assert "is away since" in place.state()
            assert count() == 0
            now[0] = 3.1
            list(pool.map(ask, range(50)))
            assert count() == 1
        place.close()


def test_threads_go_on_through_a_restart(redis_server, open_place, plain_voice):
    """Readers of a copied voice never fail, whatever becomes of the server meanwhile."""
    voices, stop = open_place().of(""), threading.Event()
    voices.save(plain_voice("anna"))

    def read(_: int) -> int:
        count = 0
        while not stop.is_set() or not count:
            assert voices.load("anna").name == "anna"
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        counts = [pool.submit(read, at) for at in range(3)]
        try:
            for _ in range(2):
                redis_server.kill()
                redis_server.start()
                voices.save(plain_voice("anna"), replace=True)
        finally:
            stop.set()
        assert all(count.result() for count in counts)
