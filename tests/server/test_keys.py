"""API keys: who is let in, and a file that may change under way."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest, Unauthorized
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key, read_keys, remove_key, token_in
from vivavoce.server.rate_limiter import ANONYMOUS, Principal

KEY, OTHER = "vv_one", "vv_two"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """Put a new file in the place of the old one."""
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def seen(principal: Principal) -> tuple[object, ...]:
    """The name, rights and limits of the sender."""
    return tuple(getattr(principal, one.name) for one in fields(Principal))[:6]


def entry(name: str, key: str, more: str = "") -> str:
    return f'[[key]]\nname = "{name}"\nsha256 = "{digest(key)}"\n{more}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_without_a_file_no_key_is_needed() -> None:
    ring = KeyRing()
    assert not ring.required
    assert ring.authenticate(None) is ring.authenticate("whatever") is ANONYMOUS


def test_a_key_tells_its_principal_and_its_limits(file: Path) -> None:
    limits = 'owner = "house"\nmay_publish = true\nrequests_per_minute = 60\nconcurrent = 4\n'
    ring = KeyRing(write(file, entry("a", KEY, limits) + entry("b", OTHER)))
    assert ring.required
    assert seen(ring.authenticate(KEY)) == ("a", "house", True, 60.0, None, 4)
    assert seen(ring.authenticate(OTHER)) == ("b", "b", False, None, None, None)


@pytest.mark.parametrize("text", [entry("a", KEY), ""])
@pytest.mark.parametrize("token", [None, "", "vv_three", "vv_on", "vv_one ", "\udcff", "é" * 10])
def test_a_missing_or_unknown_key_is_refused_and_never_repeated(file: Path, text: str, token: str | None) -> None:
    ring = KeyRing(write(file, text))
    with pytest.raises(Unauthorized) as refused:
        ring.authenticate(token)
    if token:
        assert token.strip() not in str(refused.value)
    assert digest(KEY) not in str(refused.value)


@pytest.mark.parametrize(
    "written", ["2027-01-01", '"2027-01-01"', "2027-01-01T00:00:00Z", '"2027-01-01T01:00:00+01:00"']
)
def test_a_key_expires_when_its_day_begins(file: Path, written: str) -> None:
    now = datetime(2027, 1, 1, tzinfo=timezone.utc).timestamp()
    ring = KeyRing(write(file, entry("a", KEY, f"expires = {written}\n")), clock=lambda: now)
    with pytest.raises(Unauthorized, match="'a' has expired at 2027-01-01 00:00 UTC"):
        ring.authenticate(KEY)
    now -= 1
    assert ring.authenticate(KEY).name == "a"


@pytest.mark.parametrize("damage", ["[[key", None])
def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_keys(
    file: Path, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ring = KeyRing(write(file, entry("a", KEY)))
    file.unlink()
    if damage:
        write(file, damage)
    assert [ring.authenticate(KEY).name for _ in range(3)] == ["a"] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it is read once, and says so once"
    write(file, entry("b", OTHER))
    assert ring.authenticate(OTHER).name == "b"
    with pytest.raises(Unauthorized):
        ring.authenticate(KEY)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_that_others_may_use_is_warned_of_or_refused(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o660, True)):
        caplog.clear()
        KeyRing(write(file, entry("a", KEY), mode))
        assert any("chmod 600" in record.message for record in caplog.records) is warned
    with pytest.raises(InvalidRequest, match=r"written by everyone \(mode 602\)"):
        KeyRing(write(file, "", 0o602))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\n", "keys.toml: 'a' is unknown"),
        ("[key]\nname = 'a'\n", "not an array of tables"),
        ("key = 3\n", "not an array of tables"),
        ("[[key]\n", "keys.toml: is not TOML: .*at line 1"),
        ("# one\n[[key]]\nname = 'a'\n", "keys.toml: key 1 lacks sha256"),
        ("[[key]]\nname = 'a'\nsha256 = 'vv_secret'\n", "keys.toml: key 1: sha256: what it holds cannot be"),
        (entry("a", KEY, "conurrent = 1\n"), "keys.toml: key 1: 'conurrent' is unknown .* did you mean concurrent"),
        (entry("a", KEY, "concurrent = 0\n"), "keys.toml: key 1: concurrent: 0 cannot be; give a whole number from 1"),
        (entry("a", KEY, "concurrent = true\n"), "concurrent: True cannot be"),
        (entry("a", KEY, "requests_per_minute = inf\n"), "requests_per_minute: inf cannot be"),
        (entry("a", KEY, "characters_per_minute = '9'\n"), "characters_per_minute: '9' cannot be"),
        (entry("a", KEY, "may_publish = 'no'\n"), "may_publish: 'no' cannot be"),
        (entry("a", KEY, "owner = ''\n"), "owner: '' cannot be"),
        (entry("a", KEY, "expires = 'soon'\n"), "expires: 'soon' cannot be"),
        (entry("a/b", KEY), "name: 'a/b' cannot be"),
        (entry("a", KEY) + entry("a", OTHER), "keys.toml: key 2: name: 'a' comes twice"),
        (entry("a", KEY) + entry("b", KEY), "keys.toml: key 2: sha256: 'b' has another entry's key"),
    ],
)
def test_a_malformed_file_is_refused_with_the_number_of_the_key(file: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        KeyRing(write(file, text))
    assert "\n" not in str(refused.value)
    assert "vv_secret" not in str(refused.value)


def test_keys_come_and_go_and_comments_stay(file: Path) -> None:
    write(file, "# all keys\n\n# the first\n" + entry("a", KEY) + "\n# the last\n" + entry("z", OTHER, "# end\n"))
    before, key = file.read_text(), new_key()
    assert (len({new_key() for _ in range(100)}), len(key), key[:3]) == (100, 46, "vv_")
    fields = {"owner": "house", "may_publish": True, "requests_per_minute": 0.5, "concurrent": 2}
    add_key(file, new_entry(key, "b", **fields, expires="2999-01-01"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert seen(KeyRing(file).authenticate(key)) == ("b", "house", True, 0.5, None, 2)
    remove_key(file, "b")
    assert file.read_text().rstrip() == before.rstrip()
    remove_key(file, "a")
    assert file.read_text().startswith('# all keys\n\n# the first\n\n# the last\n[[key]]\nname = "z"')
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"]


def test_a_new_file_is_private_and_a_link_to_it_stays_one(file: Path) -> None:
    link = file.with_name("link.toml")
    link.symlink_to(file)
    add_key(link, new_entry(KEY, "a"))
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in read_keys(file)] == ["a"]


def test_a_file_that_cannot_be_changed_safely_is_left_alone(file: Path) -> None:
    inline = f'key = [{{name = "a", sha256 = "{digest(KEY)}"}}]\n'
    write(file, inline)
    for change in (lambda: remove_key(file, "a"), lambda: add_key(file, new_entry(OTHER, "b"))):
        with pytest.raises(InvalidRequest, match="edit it by hand"):
            change()
    assert file.read_text() == inline


def test_wrong_changes_are_refused(file: Path, tmp_path: Path) -> None:
    write(file, entry("a", KEY))
    with pytest.raises(InvalidRequest, match=r"'a' has a key in .* already"):
        add_key(file, new_entry(OTHER, "a"))
    with pytest.raises(InvalidRequest, match="no key of 'b'; it has a"):
        remove_key(file, "b")
    with pytest.raises(InvalidRequest, match="expires: 'soon' cannot be"):
        new_entry(KEY, "b", expires="soon")
    with pytest.raises(InvalidRequest, match="make the folder"):
        add_key(tmp_path / "none" / "keys.toml", new_entry(OTHER, "b"))


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, None),
        ({"authorization": "Bearer vv_one"}, "vv_one"),
        ({"authorization": "bearer  vv_one "}, "vv_one"),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Bearer vv_one", "x-api-key": "vv_two"}, "vv_one"),
        ({"authorization": "Basic dTpw", "x-api-key": "vv_two"}, "vv_two"),
        ({"xi-api-key": "vv_two"}, "vv_two"),
        ({"xi-api-key": ""}, None),
    ],
)
def test_where_a_request_brings_its_key(headers: dict[str, str], token: str | None) -> None:
    assert token_in(headers) == token


def test_a_key_tells_its_priority_and_its_limits_of_jobs(file: Path) -> None:
    ring = KeyRing(write(file, entry("a", KEY, 'priority = "batch"\njobs = 2\njob_characters = 900\n')))
    known = ring.authenticate(KEY)
    assert (known.priority, known.jobs, known.job_characters) == ("batch", 2, 900)
    with pytest.raises(InvalidRequest, match="priority: 'low' cannot be; give live or batch"):
        read_keys(write(file, entry("a", KEY, 'priority = "low"\n')))
