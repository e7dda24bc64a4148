"""How a redis is addressed, what it asks for at the door, and what is said of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.service.voices.redis_process import BINARY, RedisProcess
from vivavoce.errors import InvalidRequest, MissingDependency, VoiceStoreAway
from vivavoce.service.voices.stores.redis_place import RedisPlace
from vivavoce.service.voices.stores.redis_server import RedisServer

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
    server = RedisServer(url)
    assert server.label == label
    server.close()


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
        RedisServer(url)
    assert SECRET not in str(caught.value)
    assert "12" not in str(caught.value)


def test_without_the_package_the_line_to_type_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingDependency, match=r"type `pip install 'vivavoce\[redis\]'`$"):
        RedisServer("redis://host")


def test_a_password_is_used_and_never_told(tmp_path, full_voice, same):
    server = _process(tmp_path, "--requirepass", SECRET)
    voice = full_voice()
    right = RedisPlace(f"redis://:{SECRET}@127.0.0.1:{server.port}", None, rest_s=0.0)
    wrong = RedisPlace(f"redis://:{SECRET}-not@127.0.0.1:{server.port}", None, rest_s=0.0)
    none = RedisPlace(server.url, None, rest_s=0.0)
    try:
        right.of("").save(voice)
        same(right.of("").load("anna"), voice)
        for refused in (wrong, none):
            with pytest.raises(VoiceStoreAway, match=r"AuthenticationError") as caught:
                refused.of("").load("anna")
            told = [str(caught.value), refused.state()]
            server.kill()
            told += [refused.state(), right.state()]
            assert not any(SECRET in line for line in told)
            assert all(line.isprintable() for line in told)
            server.start()
    finally:
        for place in (right, wrong, none):
            place.close()
        server.close()


def test_what_is_no_redis_is_away(tmp_path):
    place = RedisPlace("redis://127.0.0.1:9?socket_connect_timeout=1", None)
    with pytest.raises(VoiceStoreAway, match=r"\(Connection refused\)"):
        place.of("").names() or place.of("").version("anna")
    place.close()


def test_settings_that_lose_voices_are_told(redis_server, open_place):
    place = open_place()
    with redis.Redis.from_url(redis_server.url) as client:
        assert place.state() == "ok"
        client.config_set("appendonly", "no")
        assert "keeps nothing on disk: voices are lost when it ends" in place.state()
        client.config_set("save", "60 1")
        assert place.state() == "ok"
        client.config_set("maxmemory", 1 << 30)
        assert place.state() == "ok"
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "throws voices away when its memory is full (allkeys-lru)" in place.state()
        client.acl_setuser("default", commands=["-config"])
        assert place.state() == "ok"
        client.acl_setuser("default", commands=["+config"])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(tmp_path, full_voice, same):
    _make_certificate(tmp_path)
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    options = ["--port", "0", "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no"]
    server = _process(tmp_path, "--tls-port", "PORT", *options)
    place = RedisPlace(f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={certificate}", None)
    untrusting = RedisPlace(f"rediss://127.0.0.1:{server.port}", None)
    try:
        voice = full_voice()
        place.of("").save(voice)
        same(place.of("").load("anna"), voice)
        with pytest.raises(VoiceStoreAway, match=r"CERTIFICATE_VERIFY_FAILED"):
            untrusting.of("").load("anna")
    finally:
        place.close()
        untrusting.close()
        server.close()


def _process(tmp_path: Path, *options: str) -> RedisProcess:
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not installed")
    (tmp_path / "redis").mkdir()
    return RedisProcess(tmp_path / "redis", *options)


def _make_certificate(folder: Path) -> None:
    subject = (
        "-days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -addext keyUsage=digitalSignature,keyCertSign"
    )
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out certificate.pem"
    subprocess.run(f"openssl req -x509 {key} {subject}".split(), cwd=folder, check=True, capture_output=True)
