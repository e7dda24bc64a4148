"""What a name means, and to whom; with voices on disk and in a redis."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.fleet.redis_process import false_redis
from vivavoce.errors import InvalidAudio, InvalidRequest, VoiceExists, VoiceNotFound, VoiceStoreAway, VoiceStoreError
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.speech import Recording
from vivavoce.frontend.voices.names import OPENAI_VOICES, NameRules, VoiceSummary
from vivavoce.frontend.voices.registry import ToBeExtractedError, VoiceRegistry
from vivavoce.frontend.voices.stores import Quota
from vivavoce.frontend.voices.voice import optional_fields
from vivavoce.lru_cache import CacheCounts
from vivavoce_fleet.redis_store import RedisStore

MODEL = "0123456789abcdef"

WAV = wav_header(16_000, num_samples=16_000) + (np.sin(np.arange(16_000) * 0.1) * 9000).astype("<i2").tobytes()


class CountingExtractor:
    """Decodes as the real one does, and notes the transcripts it was given; waits for `go`."""

    def __init__(self, make) -> None:
        self._make, self.transcripts, self.go = make, [], threading.Event()
        self.go.set()

    def extract(self, source, transcript=""):
        self.transcripts.append(transcript)
        assert self.go.wait(10)
        if not isinstance(source, Audio):
            decode_audio(source)
        return self._make("", transcript=transcript, description="", licence="")


@pytest.fixture
def extractor(full_voice) -> CountingExtractor:
    return CountingExtractor(full_voice)


@pytest.fixture
def built_in(plain_voice):
    return {"first": plain_voice("first"), "a/b: *": plain_voice("a/b: *", fingerprint="")}


@pytest.fixture
def open_library(extractor, built_in):
    return lambda store, **options: VoiceRegistry(extractor, store, built_in, MODEL, **options)


@pytest.fixture
def registry(open_library, store) -> VoiceRegistry:
    """With voices in a folder."""
    return open_library(store)


@pytest.fixture
def library(open_library, place) -> VoiceRegistry:
    """With voices in a folder, then in a redis."""
    return open_library(place)


def test_none_is_the_first_built_in_voice(registry, built_in, extractor, store):
    assert registry.resolve() is built_in["first"]
    with pytest.raises(
        InvalidRequest, match=r"^voice: none is given, and this model has no voice of its own; give a recordin"
    ):
        VoiceRegistry(extractor, store, {}, MODEL).resolve(None)


@pytest.mark.parametrize("name", ["nobody", "", "..", "x\x00y", "n" * 100_000, "a\nb", "\ud800", "reference.wav"])
def test_unknown_names_are_one_line_and_never_reach_a_file(registry, extractor, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference.wav").write_bytes(WAV)
    acts = [registry.find, lambda name: registry.requested(name, "acme"), lambda name: registry.remove("acme", name)]
    for act in acts if name == "reference.wav" else [registry.resolve, *acts]:
        with pytest.raises(VoiceNotFound, match=r"is not registered .*; (choose a known|add one|did you)") as caught:
            act(name)
        assert str(caught.value).isprintable()
        assert act == acts[-1] or "(known: first, a/b: *)" in str(caught.value)
    assert extractor.transcripts == []


@pytest.mark.parametrize("path", ["missing.wav", "./x", "/no/where", "SONG.MP3"])
def test_a_string_like_a_path_that_is_no_file(registry, path):
    with pytest.raises(VoiceNotFound) as caught:
        registry.resolve(path)
    assert str(caught.value) == f"voice: the file {path!r} does not exist; check the path"


def test_a_stored_name_goes_before_a_file_of_that_name(registry, store, full_voice, same, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("anna").write_bytes(WAV)
    anna = full_voice("anna")
    store.save(anna)
    same(registry.resolve("anna"), anna)


@pytest.mark.parametrize("voice", [3, np.zeros(3), ["anna"]])
def test_other_kinds_are_refused(registry, voice):
    with pytest.raises(InvalidRequest, match=r"^voice: is a .*; give a name, or a recording"):
        registry.resolve(voice)


def test_a_transcript_belongs_to_a_recording(registry, store, full_voice):
    store.save(full_voice("anna"))
    for voice in ("anna", "first", None, full_voice("x"), full_voice("")):
        with pytest.raises(InvalidRequest, match=r"^transcript: belongs to a recording; .* leave transcript out$"):
            registry.resolve(voice, "Hello")


def test_voices_of_another_model_are_refused(extractor, store, full_voice):
    store.save(full_voice("anna"))
    registry = VoiceRegistry(extractor, store, {"theirs": full_voice("theirs")}, "f" * 16)
    for act in (registry.resolve, registry.find):
        for name in ("anna", "theirs"):
            with pytest.raises(InvalidRequest) as caught:
                act(name)
            assert str(caught.value) == (
                f"voice: {name!r} was extracted for another model ({MODEL!r}, this one is '{'f' * 16}'); "
                "extract it again from its recording"
            )
    with pytest.raises(InvalidRequest, match=r"^voice: the given one was extracted for another model"):
        registry.resolve(full_voice(""))


def of_another_model(extractor, store, **options) -> VoiceRegistry:
    return VoiceRegistry(extractor, store, {}, "f" * 16, **options)


def test_another_model_extracts_a_stored_voice_again_once_and_keeps_both(library, another, extractor, full_voice, same):
    anna = full_voice("anna", recording=WAV)
    library.add("acme", anna)
    theirs = of_another_model(extractor, another())
    with pytest.raises(ToBeExtractedError):
        theirs.requested("anna", "acme", extract=False)
    assert extractor.transcripts == []
    found = theirs.requested("anna", "acme")
    assert extractor.transcripts == [anna.transcript]
    assert (found.fingerprint, found.name, found.description) == ("f" * 16, "anna", anna.description)
    assert (found.recording, found.others) == (b"", ()), "what stays in memory is what the model needs"
    assert theirs.find("anna", "acme") is theirs.requested("anna", "acme", extract=False)
    for again in (theirs, of_another_model(extractor, another())):
        same(again.find("anna", "acme"), found)
    assert len(extractor.transcripts) == 1
    same(library.find("anna", "acme"), anna)
    assert next(one for one in library.summaries("acme") if one.name == "anna") == VoiceSummary(
        "anna", "stored", False, anna.description, anna.transcript, True, **optional_fields(anna)
    )


def test_where_the_store_takes_nothing_the_features_stay_in_memory(library, another, extractor, full_voice, caplog):
    library.add("", full_voice("anna", recording=WAV))
    library.add("", full_voice("bare"))
    theirs = of_another_model(extractor, another(), quota=Quota(total_bytes=1))
    found = theirs.find("anna", "acme")
    assert theirs.find("anna", "acme") is found is theirs.requested("anna", "acme", extract=False)
    assert extractor.transcripts == [found.transcript]
    assert "could not be stored: voice: all voices together would take more" in caplog.text
    with pytest.raises(InvalidRequest, match="extract it again from its recording"):
        theirs.find("bare")


def test_a_recording_that_cannot_be_used_any_more_is_told(library, another, extractor, full_voice):
    library.add("", full_voice("anna", recording=b"no recording"))
    with pytest.raises(InvalidAudio, match="is not an audio file"):
        of_another_model(extractor, another()).find("anna")


def test_a_given_voice_is_extracted_again_too(extractor, store, full_voice):
    given = full_voice("", recording=WAV)
    theirs = of_another_model(extractor, store)
    assert theirs.resolve(given) is theirs.resolve(given)
    assert theirs.resolve(given).fingerprint == "f" * 16
    assert list(store.summaries()) == []


def test_the_fingerprint_is_computed_when_needed_and_once(extractor, store, full_voice, plain_voice):
    calls = []

    def fingerprint() -> str:
        calls.append(1)
        return MODEL

    registry = VoiceRegistry(extractor, store, {"free": plain_voice("free", fingerprint="")}, fingerprint)
    registry.resolve("free")
    registry.resolve(WAV)
    assert calls == []
    registry.resolve(full_voice())
    registry.resolve(full_voice())
    assert calls == [1]


def names(library, owner: str) -> list[tuple[str, str, bool]]:
    return [(told.name, told.kind, told.public) for told in library.summaries(owner) if told.kind != "alias"]


def test_own_before_public_before_built_in(library, built_in, open_library, full_voice, same):
    assert library.find("first", "acme") is library.requested(None, "acme") is built_in["first"]
    public, own = full_voice("first"), full_voice("first")
    library.add("", public)
    same(library.find("first", "acme"), public)
    library.add("acme", own)
    same(library.requested("first", "acme"), own)
    for other in ("", "zeta"):
        same(library.requested("first", other), public)
    assert library.requested(None, "acme") is built_in["first"]
    library.remove("acme", "first")
    same(library.find("first", "acme"), public)
    library.remove("", "first")
    assert library.find("first", "acme") is built_in["first"]


def test_aliases_are_voices_until_one_is_stored_under_the_name(open_library, place, built_in, full_voice, same):
    library = open_library(place, rules=NameRules(aliases={"me": "ours", "you": "ash", "first": "a/b: *", "x": "x"}))
    assert library.find("alloy") is library.requested("alloy", "acme") is built_in["first"]
    assert library.find("ash") is library.find("you") is library.built_in_of("you") is built_in["a/b: *"]
    assert library.find("first") is built_in["first"], "an alias hides no voice"
    for nobody in ("me", "x"):
        with pytest.raises(VoiceNotFound):
            library.find(nobody)
    listed = {told.name: told for told in library.summaries("acme") if told.kind == "alias"}
    assert set(listed) == {*OPENAI_VOICES, "you"}
    assert (listed["ash"].stands_for, listed["you"].stands_for, listed["ash"].public) == ("a/b: *", "a/b: *", True)
    with pytest.raises(InvalidRequest, match=r"^voice: 'ash' stands for 'a/b: \*' and cannot be removed"):
        library.remove("acme", "ash")
    own, ours = full_voice("ash"), full_voice("ours")
    library.add("acme", own)
    library.add("", ours)
    same(library.find("ash", "acme"), own)
    same(library.find("you", "acme"), own)
    same(library.find("me", "acme"), ours)
    assert library.find("ash", "zeta") is built_in["a/b: *"]


def test_a_model_without_voices_speaks_with_the_default_voice(extractor, store, full_voice, same):
    bare = VoiceRegistry(extractor, store, {}, MODEL)
    with pytest.raises(VoiceNotFound, match="add one from a recording"):
        bare.find("alloy")
    rules = NameRules(default="anna", unknown="default")
    library = VoiceRegistry(extractor, store, {}, MODEL, rules=rules)
    for name in (None, "alloy", "nobody"):
        with pytest.raises(VoiceNotFound):
            library.requested(name, "acme")
    anna = full_voice("anna")
    store.save(anna)
    for name in (None, "cedar", "nobody"):
        same(library.requested(name, "acme"), anna)
    assert "anna" in [told.name for told in library.summaries("")]


def test_what_rules_name_and_nobody_has_is_logged(open_library, store, caplog):
    open_library(store, rules=NameRules(aliases={"alloy": "clam"}, default="first")).warn_of_missing()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "voice missing: voices.aliases: 'alloy' stands for 'clam', which cannot be used: voice: 'clam'"
    )


def test_nobody_sees_the_voices_of_another_owner(library, full_voice):
    library.add("acme", full_voice("secret"))
    for other in ("", "zeta", "ACME"):
        for act in (lambda: library.find("secret", other), lambda: library.remove(other, "secret")):  # noqa: B023
            with pytest.raises(VoiceNotFound, match=r"'secret' is not registered") as caught:
                act()
            assert "known: secret" not in str(caught.value)
        assert ("secret", "stored", False) not in names(library, other)


def test_lists_hold_what_is_found(library, full_voice, plain_voice):
    assert library.add("acme", full_voice("mine", consent=None)) == VoiceSummary(
        "mine", "stored", False, "a calm voice", "Hello, 你好\n— said she.", True
    )
    library.add("", plain_voice("ours"))
    library.add("", plain_voice("mine"))
    library.add("acme", plain_voice("first"))
    assert names(library, "acme") == [
        ("a/b: *", "built_in", True),
        ("ours", "stored", True),
        ("first", "stored", False),
        ("mine", "stored", False),
    ]
    assert names(library, "") == [
        ("first", "built_in", True),
        ("a/b: *", "built_in", True),
        ("mine", "stored", True),
        ("ours", "stored", True),
    ]


def test_a_voice_is_the_same_object_until_it_changes(library, full_voice, same):
    first, second = full_voice("anna"), full_voice("anna")
    library.add("", first)
    found = library.find("anna", "acme")
    assert library.find("anna", "acme") is library.find("anna", "zeta") is library.find("anna", "") is found
    library.add("", second, replace=True)
    same(library.find("anna", "acme"), second)
    library.remove("", "anna")
    with pytest.raises(VoiceNotFound):
        library.find("anna", "acme")


def test_built_in_and_public_voices_stay(library, plain_voice):
    for owner in ("", "acme"):
        with pytest.raises(InvalidRequest, match=r"^voice: 'first' is built into the model and cannot be removed$"):
            library.remove(owner, "first")
    library.add("", plain_voice("ours"))
    with pytest.raises(VoiceNotFound, match=r"^voice: 'ours' is a public voice, not your own"):
        library.remove("acme", "ours")
    assert ("ours", "stored", True) in names(library, "acme")


def test_what_is_wrong_with_the_place_is_told(folder, registry):
    assert registry.state() == "ok"
    folder.write_text("no folder")
    assert "cannot be read (Not a directory)" in registry.state()
    folder.unlink()
    assert registry.state() == "ok"


def test_each_owner_and_the_public_have_the_quota(store, open_library, plain_voice):
    library = open_library(store, quota=Quota(voices=2))
    for owner in ("acme", "zeta", ""):
        for name in ("first", "second"):
            library.add(owner, plain_voice(name))
        with pytest.raises(InvalidRequest, match=r"^voice: there are 2 voices already, the limit; "):
            library.add(owner, plain_voice("more"))
    assert Quota().voices == 1000


def test_a_recording_is_extracted_once_by_ten_threads_and_kept_without_another_time(library, extractor):
    extractor.go.clear()
    barrier = threading.Barrier(11)

    def ask(at: int):
        barrier.wait()
        if at == 0:
            library.add("acme", library.requested(Recording(WAV, "Hello"), "acme").named("me"))
            return None
        return library.requested(Recording(bytes(WAV), "Hello"), "zeta")

    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(ask, at) for at in range(10)]
        barrier.wait()
        extractor.go.set()
        assert len({id(answer.result()) for answer in answers} - {id(None)}) == 1
    assert extractor.transcripts == ["Hello"]
    assert library.recordings == CacheCounts(computed=1, hits=9)
    found = library.find("me", "acme")
    assert (found.name, found.transcript) == ("me", "Hello")
    assert library.remembered(Recording(WAV, "Hello")) is not None
    assert library.recordings == CacheCounts(computed=1, hits=10)
    assert library.remembered(Recording(WAV, "Hello there")) is None


def test_impossible_and_taken_names_are_known_before_the_work(library, plain_voice):
    with pytest.raises(InvalidRequest, match=r"^voice name: "):
        library.check_free("acme", "../x")
    library.add("acme", plain_voice("me"))
    with pytest.raises(VoiceExists, match=r"'me' is stored already"):
        library.check_free("acme", "me")
    library.check_free("acme", "me", replace=True)
    library.check_free("acme", "you")


def test_while_redis_is_away_the_models_voices_speak(
    open_place, redis_server, built_in, open_library, full_voice, same
):
    writer, library = (open_library(open_place()) for _ in range(2))
    own = full_voice("mine")
    writer.add("acme", own)
    same(library.find("mine", "acme"), own)
    redis_server.kill()
    assert library.find("first", "acme") is library.find("alloy", "never seen") is built_in["first"]
    for name in ("mine", "unknown"):
        with pytest.raises(VoiceStoreAway):
            library.find(name, "acme")
    with pytest.raises(VoiceStoreAway):
        library.check_free("acme", "me")
    assert "is away since" in library.state()
    redis_server.start()
    same(library.find("mine", "acme"), own)
    assert library.state() == "ok"


def test_no_other_voice_speaks_for_one_that_cannot_be_read_now(open_place, redis_server, open_library, full_voice):
    writer, library = (
        open_library(open_place(), rules=NameRules(unknown=unknown)) for unknown in ("refuse", "default")
    )
    for name in ("first", "alloy"):
        writer.add("acme", full_voice(name))
        library.find(name, "acme")
    redis_server.kill()
    for name in ("first", "alloy", "unknown"):
        with pytest.raises(VoiceStoreAway):
            library.find(name, "acme")
        if name != "unknown":
            assert library.find(name, "zeta").name == "first"
    redis_server.start()
    writer.remove("acme", "first")
    assert library.find("first", "acme").name == "first"
    redis_server.kill()
    assert library.find("first", "acme").name == "first"


def test_a_folder_that_cannot_be_read_does_not_take_the_models_voices_along(folder, registry, built_in, full_voice):
    registry.add("", full_voice("ours"))
    shutil.rmtree(folder)
    registry.add("", full_voice("ours"))  # the folder is made again
    damages = [lambda: folder.chmod(0o777), lambda: shutil.rmtree(folder), lambda: folder.write_text("a file")]
    for damage, is_readable in zip(damages, (False, True, False), strict=True):
        damage()
        assert registry.find("first", "acme") is registry.resolve("first") is built_in["first"]
        with pytest.raises(VoiceNotFound if is_readable else VoiceStoreError):
            registry.find("ours", "acme")
        assert (registry.state() == "ok") is is_readable


FOREIGN_ANSWERS = {
    "no permission": b"-NOPERM this user has no permissions\r\n",
    "read-only": b"-READONLY You can't write against a read only replica.\r\n",
    "out of memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "disk full": b"-MISCONF Redis is configured to save RDB snapshots\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "another type": b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    "a number": b":5\r\n",
    "a number of 5000 digits": b":" + b"9" * 5_000 + b"\r\n",
    "too few": b"*0\r\n",
    "too many": b"*3\r\n$-1\r\n$-1\r\n$-1\r\n",
    "numbers": b"*2\r\n:1\r\n:2\r\n",
    "endless depth": b"*1\r\n" * 200_000,
    "an endless list": b"*2000000000\r\n" + b":1\r\n" * 1_000,
    "900 GB": b"*2\r\n$900000000000\r\nxxxx",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("answer", FOREIGN_ANSWERS.values(), ids=FOREIGN_ANSWERS)
def test_a_redis_that_refuses_does_not_take_the_models_voices_along(open_library, built_in, answer):
    with (
        false_redis(lambda: [answer]) as url,
        closing(RedisStore(f"{url}&socket_timeout=0.05", rest_s=0.0)) as store,
    ):
        library = open_library(store)
        assert library.find("first", "acme") is built_in["first"]
        with pytest.raises(VoiceStoreAway, match=r"^voice store: redis at 127.0.0.1:\d+ (refuses|is away since)"):
            library.find("unknown", "acme")
        assert library.state() != "ok"
        assert library.state().isprintable()
