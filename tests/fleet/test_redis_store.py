"""Voices in a redis that answers, is killed, frozen, started again, or was never there."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest
import redis

from tests.fleet.redis_process import false_redis, running_redis
from vivavoce.errors import InvalidRequest, VoiceStoreAway, VoiceStoreError
from vivavoce_fleet.redis_store import DEADLINE_S, RedisStore

pytestmark = pytest.mark.process

PUBLIC_KEY = "vivavoce:voices:public"


@pytest.fixture
def voices(open_place):
    return open_place()


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def test_the_same_save_twice_is_one(voices, full_voice, same, monkeypatch):
    """A connection may break after redis has saved, and before it has said so."""
    parse, calls = redis.Redis.parse_response, []

    def broken_once(self, connection, command_name, **options):
        answer = parse(self, connection, command_name, **options)
        if command_name == "EVAL":
            calls.append(answer)
            if len(calls) == 1:
                raise redis.ConnectionError("lost")
        return answer

    monkeypatch.setattr(redis.Redis, "parse_response", broken_once)
    voice = full_voice()
    voices.save(voice)
    assert calls[:2] == [[b"kept"], [b"kept"]]
    same(voices.load("anna"), voice)


def test_keys_tell_no_owner_and_nothing_is_left_behind(voices, client, plain_voice):
    for owner in ("", "acme"):
        voices.save(plain_voice("anna"), owner)
    public, owned = sorted(client.scan_iter(), key=len)
    assert public.decode() == PUBLIC_KEY
    assert b"acme" not in owned
    for owner in ("", "acme"):
        voices.remove("anna", owner)
    assert client.dbsize() == 0


def test_older_programs_read_what_is_listed_of_a_consent(voices, client, full_voice, plain_voice):
    for voice in (full_voice(), full_voice("bert", consent=None), plain_voice()):
        voices.save(voice)
    abouts = [json.loads(client.hget(PUBLIC_KEY, f"about:{name}")) for name in ("anna", "bert", "bare")]
    assert [(name, bool(last)) for name, _, _, last in abouts] == [("anna", True), ("bert", True), ("bare", False)]
    listed = {one.name: one for one in voices.summaries()}
    assert (listed["anna"].consent_by, listed["bert"].consent_by, listed["anna"].has_prompt) == ("Anna 安娜", "", True)


def test_a_damaged_value_is_one_line_and_can_be_removed(voices, open_place, client, full_voice):
    voices.save(full_voice())
    client.hset(PUBLIC_KEY, "data:anna", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    other = open_place()
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' in redis at 127.0.0.1:\d+/0 is damaged; remove it"):
        other.load("anna")
    other.remove("anna")
    assert other.names() == []


def test_a_full_server_is_one_line(voices, client, full_voice, same):
    kept = full_voice()
    voices.save(kept)
    client.config_set("maxmemory", 1)
    with pytest.raises(VoiceStoreError, match=r"^voice store: redis at \S+ refuses \(\w+\); ask its operator"):
        voices.save(full_voice("bert"))
    assert " takes no more voices: its memory is full (maxmemory); " in voices.state()
    same(voices.load("anna"), kept)
    assert voices.names() == ["anna"]


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("redis://host", "redis at host:6379"),
        (f"redis://user:{SECRET}@host:7000/3", "redis at host:7000/3"),
        (f"rediss://:{SECRET}@[::1]:7000/?socket_timeout=5", "redis at [::1]:7000"),
        (f"redis://host?password={SECRET}", "redis at host:6379"),
    ],
)
def test_a_label_holds_no_secret(url, label):
    with closing(RedisStore(url)) as server:
        assert server.label == label


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        f"redis://:{SECRET}@host:x",
        f"redis://:{SECRET}@host:99999",
        f"redis://:{SECRET}@host/db",
        f"redis://:{SECRET}/x@host/0",
        f"redis://user:12#{SECRET}@host",
        f"redis://user:12?{SECRET}@host",
        f"redis://:12@34?{SECRET}@host",
        f"redis://:{SECRET}@host?db=3",
        f"redis://:{SECRET}@host?socket_timeout=soon",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url):
    with pytest.raises(InvalidRequest, match=r"^voices: .*write redis://") as caught:
        RedisStore(url)
    assert SECRET not in str(caught.value)
    assert "12" not in str(caught.value)


def test_a_password_is_used_and_never_told(tmp_path, full_voice, same):
    with ExitStack() as opened:
        server = opened.enter_context(running_redis(tmp_path / "redis", "--requirepass", SECRET))
        right, wrong, none = (
            opened.enter_context(closing(RedisStore(f"redis://{password}127.0.0.1:{server.port}", rest_s=0.0)))
            for password in (f":{SECRET}@", f":{SECRET}-not@", "")
        )
        voice = full_voice()
        right.save(voice)
        same(right.load("anna"), voice)
        for refused in (wrong, none):
            with pytest.raises(VoiceStoreAway, match=r"AuthenticationError") as caught:
                refused.load("anna")
            told = [str(caught.value), refused.state()]
            server.kill()
            told += [refused.state(), right.state()]
            assert not any(SECRET in line for line in told)
            assert all(line.isprintable() for line in told)
            server.start()


def test_settings_that_lose_voices_are_told(voices, client):
    for change, told in (
        ({}, "ok"),
        ({"appendonly": "no"}, "keeps nothing on disk: voices are lost when it ends"),
        ({"save": "60 1"}, "ok"),
        ({"maxmemory": 1 << 30}, "ok"),
        ({"maxmemory-policy": "allkeys-lru"}, "throws voices away when its memory is full (allkeys-lru)"),
    ):
        for setting, value in change.items():
            client.config_set(setting, value)
        assert told in voices.state()
    client.acl_setuser("default", commands=["-config"])
    assert voices.state() == "ok"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(tmp_path, full_voice, same):
    subject = (
        "-days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -addext keyUsage=digitalSignature,keyCertSign"
    )
    made = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out certificate.pem"
    subprocess.run(f"openssl req -x509 {made} {subject}".split(), cwd=tmp_path, check=True, capture_output=True)
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    options = ["--port", "0", "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no"]
    with ExitStack() as opened:
        server = opened.enter_context(running_redis(tmp_path / "redis", "--tls-port", "PORT", *options))
        place, untrusting = (
            opened.enter_context(closing(RedisStore(f"rediss://127.0.0.1:{server.port}{option}")))
            for option in (f"?ssl_ca_certs={certificate}", "")
        )
        voice = full_voice()
        place.save(voice)
        same(place.load("anna"), voice)
        with pytest.raises(VoiceStoreAway, match=r"CERTIFICATE_VERIFY_FAILED"):
            untrusting.load("anna")


def test_while_it_is_killed_nothing_is_read_or_changed(redis_server, voices, full_voice, same, caplog):
    """The state tells it, and the log of coming and going; everything works again without a restart."""
    label = f"redis at 127.0.0.1:{redis_server.port}/0"
    kept = [full_voice(f"v{at}") for at in range(3)]
    for voice in kept:
        voices.save(voice)
    changes = [
        lambda: voices.save(kept[0], replace=True),
        lambda: voices.save(full_voice("w")),
        lambda: voices.remove("v1"),
    ]
    redis_server.kill()
    for change in changes:
        with pytest.raises(VoiceStoreAway) as caught:
            change()
        assert caught.value.http_status == 503
    for act in (voices.summaries, lambda: voices.load("v0"), lambda: "v0" in voices):
        with pytest.raises(VoiceStoreAway):
            act()
    state = voices.state()
    assert re.fullmatch(rf"{label} is away since .* UTC \(.*\); stored voices are not served", state)
    away = f"voice store: {state.partition(';')[0]}"
    assert str(caught.value) == f"{away}; try again in some seconds"
    redis_server.start()
    for voice in kept:
        same(voices.load(voice.name), voice)
    for change in changes:
        change()
    assert voices.names() == ["v0", "v2", "w"]
    assert voices.state() == "ok"
    assert [record.getMessage() for record in caplog.records] == [away, f"voice store: {label} answers again"]


def test_a_frozen_server_is_away_too(redis_server, open_place, voices, full_voice, same):
    voice = full_voice()
    voices.save(voice)
    hasty = open_place("?socket_timeout=0.05")
    redis_server.freeze()
    with pytest.raises(VoiceStoreAway, match=r"\(Timeout"):
        hasty.remove("anna")
    redis_server.go_on()
    same(voices.load("anna"), voice)


def test_while_it_is_away_one_request_tries_and_the_others_do_not_wait():
    """The server takes connections and never answers; the clock stands still until it is put forward."""
    now = [0.0]
    with ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}?socket_timeout=0.05"
        place = opened.enter_context(closing(RedisStore(url, rest_s=3.0, clock=lambda: now[0])))

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
                place.load("anna")

        ask()
        assert count() == 1
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(50)))
            assert "is away since" in place.state()
            assert count() == 0
            now[0] = 3.1
            list(pool.map(ask, range(50)))
            assert count() == 1


def test_threads_go_on_through_a_restart(redis_server, voices, plain_voice):
    """Readers get the voice, or are told that the server is away, whatever becomes of it meanwhile."""
    stop = threading.Event()
    voices.save(plain_voice("anna"))

    def read(_: int) -> int:
        count = 0
        while not stop.is_set() or not count:
            with suppress(VoiceStoreAway):
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


def test_a_server_that_refuses_is_told(voices, client, full_voice):
    voices.save(full_voice())
    key = next(client.scan_iter())
    before = client.hgetall(key)
    assert voices.state() == "ok"
    client.replicaof("127.0.0.1", "1")
    assert " refuses (ReadOnlyError); " in voices.state()
    assert voices.names() == ["anna"]
    client.replicaof("NO", "ONE")
    assert voices.state() == "ok"
    assert client.hgetall(key) == before  # to ask changes nothing
    client.acl_setuser("default", commands=["-hmget"])
    assert voices.state().endswith(
        " refuses (NoPermissionError); ask its operator to look at its log; stored voices are not served"
    )
    for act in (lambda: voices.load("anna"), lambda: voices.remove("anna")):
        with pytest.raises(VoiceStoreAway, match=r"refuses \(NoPermissionError\)"):
            act()


def test_a_server_that_sends_byte_after_byte_is_away():
    """Each byte puts the clock forward by half a second."""
    now, closed = [0.0], threading.Event()

    def drip():
        yield b"*2\r\n$1000\r\n"
        while not closed.wait(0.005) and now[0] < 300:
            now[0] += 0.5
            yield b"x"

    with false_redis(drip) as url, closing(RedisStore(url, clock=lambda: now[0])) as place:
        with pytest.raises(VoiceStoreAway, match=r"\(Timeout"):
            place.load("anna")
        closed.set()
        assert DEADLINE_S <= now[0] < 60
        with pytest.raises(VoiceStoreAway, match=r"is away since"):
            place.load("anna")  # at once: nothing more is sent
