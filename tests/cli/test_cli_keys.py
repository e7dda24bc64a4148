"""`keys`: made, listed and taken back; the key itself is seen once."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.cli.cli_harness import Run
from vivavoce.errors import Unauthorized
from vivavoce.frontend.speech import FinishReason, Verdict
from vivavoce.logs import JsonFormatter
from vivavoce.server.keys import KeyRing, add_key, new_entry
from vivavoce.server.request_log import RequestLog


def test_a_key_is_printed_once_and_lets_its_owner_in(run: Run) -> None:
    made = run("keys add team-a --file keys.toml --requests-per-minute 60 --concurrent 4")
    assert made.code == 0
    key = made.text.removesuffix("\n")
    assert key.startswith("vv_")
    assert key not in made.err
    assert key not in Path("keys.toml").read_text()
    caller = KeyRing(Path("keys.toml")).authenticate(key)
    assert (caller.name, caller.may_publish) == ("team-a", False)
    assert (caller.requests_per_minute, caller.concurrent) == (60, 4)
    run("keys add night --file keys.toml --priority batch --jobs 2 --job-characters 90000 -q")
    night = KeyRing(Path("keys.toml")).named("night")
    assert (night.priority, night.jobs, night.job_characters) == ("batch", 2, 90_000)


def test_list_tells_names_and_limits_but_no_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_AUTH_KEYS_FILE", "keys.toml")
    key = run("keys add a --characters-per-minute 2500 --may-publish -q").text.strip()
    run("keys add b --owner house --expires 2999-01-01 -q")
    listed = run("keys list")
    assert key not in listed.text
    header, first, second = (line.split() for line in listed.text.splitlines())
    assert header == ["name", "owner", "publishes", "requests/min", "characters/min", "at", "once", "expires"]
    assert first == ["a", "a", "yes", "–", "2500", "–", "never"]
    assert second == ["b", "house", "no", "–", "–", "–", "2999-01-01", "00:00"]


def test_a_list_as_json_has_no_hash(run: Run) -> None:
    run("keys add b --file keys.toml --expires 2999-01-01 -q")
    (listed,) = json.loads(run("keys list --file keys.toml --json").text)
    assert (listed["name"], listed["expires"], listed["expired"]) == ("b", "2999-01-01 00:00:00+00:00", False)
    assert "sha256" not in listed


def test_an_empty_file_says_how_to_fill_it(run: Run) -> None:
    Path("keys.toml").touch(mode=0o600)
    assert "vivavoce keys add NAME --file keys.toml" in run("keys list --file keys.toml").err


def test_a_removed_key_is_refused(run: Run) -> None:
    key = run("keys add a --file keys.toml").text.strip()
    ring = KeyRing(Path("keys.toml"))
    assert "--yes" in run("keys remove a --file keys.toml", stdin=b"").error
    assert ring.authenticate(key).name == "a"
    assert run("keys remove a --file keys.toml --yes").code == 0
    with pytest.raises(Unauthorized):
        ring.authenticate(key)


def test_an_expired_key_is_marked_and_none_is_made(run: Run) -> None:
    refused = run("keys add late --file keys.toml --expires 2020-01-01")
    assert (refused.code, Path("keys.toml").exists()) == (2, False)
    assert "expires: 2020-01-01 is past" in refused.error
    add_key(Path("keys.toml"), new_entry("vv_old", "old", expires="2020-01-01"))
    run("keys add new --file keys.toml --expires 2999-01-01 -q")
    _, old, new = run("keys list --file keys.toml").text.splitlines()
    assert old.endswith("2020-01-01 00:00 expired")
    assert new.endswith("2999-01-01 00:00")


def test_usage_is_added_up_from_the_lines_that_the_server_logs(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vivavoce")
    caplog.handler.setFormatter(JsonFormatter())
    log = RequestLog()
    for number, (name, audio_s, taken) in enumerate([("anna", 1.5, True), ("anna", 2.0, True), ("bert", 0.0, False)]):
        record = log.begin(f"r{number}", name, "openai", 0.0)
        record.characters, record.admission_s = 10 * taken, 0.1 if taken else None
        log.end(record, Verdict(FinishReason.STOP if taken else FinishReason.ERROR, audio_s), 2.0)
    lines = caplog.text.splitlines()
    Path("a.log").write_text("\n".join(["server starts", lines[0], "{broken", "[1]"]))
    Path("b.log").write_text("\n".join(f"vivavoce-1  | {line}" for line in lines[1:]))
    told = json.loads(run("keys usage a.log b.log --json").text)
    for used in told.values():
        assert used.pop("last").endswith("Z")
    assert told == {
        "anna": {"requests": 2, "refused": 0, "characters": 20, "audio_s": 3.5},
        "bert": {"requests": 0, "refused": 1, "characters": 0, "audio_s": 0.0},
    }
    _, anna, bert = (line.split()[:5] for line in run("keys usage", stdin="\n".join(lines).encode()).text.splitlines())
    assert (anna, bert) == (["anna", "2", "0", "20", "3.5"], ["bert", "0", "1", "0", "0.0"])
    assert "--log-format json" in run("keys usage", stdin=b"a line for people").err
    assert run("keys usage nothing.log").code == 2
