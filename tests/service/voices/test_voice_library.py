"""Whose voices a caller finds; on disk and in a redis."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vivavoce.errors import InvalidAudio, InvalidRequest, VoiceExists, VoiceNotFound, VoiceStoreAway
from vivavoce.service.host.order import Recording
from vivavoce.service.host.speaker import VoiceSummary
from vivavoce.service.voices.cache import CacheCounts
from vivavoce.service.voices.library import VoiceLibrary
from vivavoce.service.voices.model_voices import ModelVoices
from vivavoce.service.voices.registry import VoiceRegistry
from vivavoce.service.voices.stores.folder_place import FolderPlace
from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.voice_file import read_file_summary

MODEL = "0123456789abcdef"
WAV = b"RIFF" + np.arange(1000, dtype=np.int16).tobytes()


class CountingExtractor:
    """Waits for `go`; notes the transcripts it was given."""

    def __init__(self, make) -> None:
        self._make, self.transcripts, self.go = make, [], threading.Event()
        self.go.set()

    def extract(self, source, transcript=""):
        self.transcripts.append(transcript)
        assert self.go.wait(10)
        if source.read() != WAV:
            raise InvalidAudio("reference audio: is no audio")
        return self._make("", transcript=transcript, description="", licence="")


@pytest.fixture
def extractor(full_voice):
    return CountingExtractor(full_voice)


@pytest.fixture
def model(extractor, plain_voice):
    return ModelVoices(extractor, {"first": plain_voice("first"), "a/b: *": plain_voice("a/b: *")}, MODEL)


@pytest.fixture(params=["folder", "redis"])
def place(request, folder):
    return FolderPlace(folder) if request.param == "folder" else request.getfixturevalue("open_place")()


@pytest.fixture
def library(place, model):
    return VoiceLibrary(place, model)


def names(library, owner: str) -> list[tuple[str, str, bool]]:
    return [(told.name, told.kind, told.public) for told in library.summaries(owner)]


def test_own_before_public_before_built_in(library, model, full_voice, same):
    assert library.find("acme", "first") is library.resolve("acme", None) is model.built_in["first"]
    public, own = full_voice("first"), full_voice("first")
    library.add("", public)
    same(library.find("acme", "first"), public)
    library.add("acme", own)
    same(library.resolve("acme", "first"), own)
    for other in ("", "zeta"):
        same(library.resolve(other, "first"), public)
    assert library.resolve("acme", None) is model.built_in["first"]
    library.remove("acme", "first")
    same(library.find("acme", "first"), public)
    library.remove("", "first")
    assert library.find("acme", "first") is model.built_in["first"]


def test_nobody_sees_the_voices_of_another_owner(library, full_voice):
    library.add("acme", full_voice("secret"))
    for other in ("", "zeta", "ACME"):
        for act in (library.find, library.remove):
            with pytest.raises(VoiceNotFound, match=r"'secret' is not registered") as caught:
                act(other, "secret")
            assert "known: secret" not in str(caught.value)
        assert ("secret", "stored", False) not in names(library, other)


def test_lists_hold_what_is_found(library, full_voice, plain_voice):
    assert library.add("acme", full_voice("mine")) == VoiceSummary(
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
    found = library.find("acme", "anna")
    assert library.find("acme", "anna") is library.find("zeta", "anna") is library.find("", "anna") is found
    library.add("", second, replace=True)
    same(library.find("acme", "anna"), second)
    library.remove("", "anna")
    with pytest.raises(VoiceNotFound):
        library.find("acme", "anna")


def test_built_in_and_public_voices_stay(library, plain_voice):
    for owner in ("", "acme"):
        with pytest.raises(InvalidRequest, match=r"^voice: 'first' is built into the model and cannot be removed$"):
            library.remove(owner, "first")
    library.add("", plain_voice("ours"))
    with pytest.raises(VoiceNotFound, match=r"^voice: 'ours' is a public voice, none of your own"):
        library.remove("acme", "ours")
    assert ("ours", "stored", True) in names(library, "acme")


@pytest.mark.parametrize("name", ["", "..", "x\x00y", "n" * 100_000, "\ud800", "/etc/passwd", "reference.wav"])
def test_a_name_never_reaches_a_file(library, extractor, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference.wav").write_bytes(WAV)
    for act in (library.find, library.resolve, library.remove):
        with pytest.raises(VoiceNotFound, match=r"is not registered") as caught:
            act("acme", name)
        assert str(caught.value).isprintable()
    assert extractor.transcripts == []


def test_what_is_wrong_with_the_place_is_logged_once(folder, model, caplog):
    caplog.set_level(logging.INFO)
    library = VoiceLibrary(FolderPlace(folder), model)
    assert library.state() == "ok"
    folder.write_text("no folder")
    states = [library.state() for _ in range(3)]
    assert "cannot be read (Not a directory)" in states[0]
    folder.unlink()
    assert library.state() == "ok"
    assert [record.message for record in caplog.records] == [states[0], "voice store: is in order again"]


def test_an_unknown_name_costs_no_look_at_every_voice(folder, model, full_voice, monkeypatch):
    place = FolderPlace(folder)
    for at in range(20):
        place.of("").save(full_voice(f"v{at}"))
    looked = []
    monkeypatch.setattr(
        "vivavoce.service.voices.store.read_file_summary", lambda path: looked.append(path) or read_file_summary(path)
    )
    with pytest.raises(VoiceNotFound, match=r"known: first, a/b: \*, v0, .* and more"):
        VoiceLibrary(place, model).find("o", "nobody")
    assert len(looked) < 10


def test_names_that_files_cannot_have_are_refused_before_any_work(library, extractor):
    with pytest.raises(InvalidRequest, match=r"^voice name: "):
        library.add_recording("acme", "../x", Recording(WAV))
    assert extractor.transcripts == []


def test_quotas_are_the_owners_and_the_publics(place, model, plain_voice):
    library = VoiceLibrary(place, model, owner_quota=Quota(voices=1), public_quota=Quota(voices=2))
    for owner, count in (("acme", 1), ("zeta", 1), ("", 2)):
        for at in range(count):
            library.add(owner, plain_voice(f"v{at}"))
        with pytest.raises(InvalidRequest, match=rf"^voice: there are {count} voices already, the limit; "):
            library.add(owner, plain_voice("more"))
    assert Quota().voices == 1000


def test_a_voice_of_another_model_is_refused(library, full_voice):
    with pytest.raises(InvalidRequest, match=r"was extracted for another model"):
        library.add("acme", full_voice("x", fingerprint="f" * 16))
    library.add("acme", full_voice("y", fingerprint=""))
    library.find("acme", "y")


def test_a_recording_is_extracted_once_by_ten_threads_and_kept_without_another_time(library, extractor):
    extractor.go.clear()
    barrier = threading.Barrier(11)

    def ask(at: int):
        barrier.wait()
        if at == 0:
            library.add_recording("acme", "me", Recording(WAV, "Hello"), description="mine")
            return None
        return library.resolve("zeta", Recording(bytes(WAV), "Hello"))

    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(ask, at) for at in range(10)]
        barrier.wait()
        extractor.go.set()
        assert len({id(answer.result()) for answer in answers} - {id(None)}) == 1
    assert extractor.transcripts == ["Hello"]
    assert library.recordings == CacheCounts(made=1, remembered=9)
    found = library.find("acme", "me")
    assert (found.name, found.transcript, found.description) == ("me", "Hello", "mine")
    library.add_recording("", "me", Recording(WAV, "Hello"))
    assert library.recordings == CacheCounts(made=1, remembered=10)


def test_a_taken_name_is_refused_before_the_work(library, extractor, plain_voice):
    library.add("acme", plain_voice("me"))
    with pytest.raises(VoiceExists, match=r"'me' is stored already"):
        library.add_recording("acme", "me", Recording(WAV))
    assert extractor.transcripts == []
    assert library.add_recording("acme", "me", Recording(WAV, "Hi"), replace=True).transcript == "Hi"


def test_failures_are_not_counted(library):
    with pytest.raises(InvalidAudio):
        library.resolve("acme", Recording(b"no audio"))
    assert library.recordings == CacheCounts(0, 0)


def test_while_redis_is_away_what_is_here_is_served(open_place, redis_server, model, full_voice, same):
    writer = VoiceLibrary(open_place("other copies"), model)
    library = VoiceLibrary(open_place(), model)
    public, own = full_voice("ours"), full_voice("mine")
    writer.add("", public)
    writer.add("acme", own)
    same(library.find("acme", "ours"), public)
    same(library.find("acme", "mine"), own)
    writer.add("acme", full_voice("unseen"))
    redis_server.kill()
    same(library.find("acme", "ours"), public)
    same(library.find("acme", "mine"), own)
    assert library.find("acme", "first") is library.find("never seen", "first") is model.built_in["first"]
    for owner in ("acme", "never seen"):
        with pytest.raises(VoiceStoreAway):
            library.find(owner, "unknown")
    with pytest.raises(VoiceStoreAway):
        library.add_recording("acme", "me", Recording(WAV))
    assert names(library, "acme") == [
        ("first", "built_in", True),
        ("a/b: *", "built_in", True),
        ("ours", "stored", True),
        ("mine", "stored", False),
    ]
    assert "is away since" in library.state()
    redis_server.start()
    library.find("acme", "unseen")
    assert library.state() == "ok"


def test_no_other_voice_speaks_for_one_that_cannot_be_read_now(open_place, redis_server, model, full_voice):
    writer, library = (VoiceLibrary(open_place(copies), model) for copies in ("other copies", "copies"))
    writer.add("acme", full_voice("first"))
    library.summaries("acme")
    library.find("acme", "a/b: *")
    assert library.find("zeta", "first") is model.built_in["first"]
    with pytest.raises(VoiceNotFound):
        library.find("acme", "unknown")  # tells what names there are
    redis_server.kill()
    with pytest.raises(VoiceStoreAway):
        library.find("acme", "first")
    assert library.find("zeta", "first") is model.built_in["first"]


def test_the_registry_of_one_user_works_with_a_redis(
    open_place, redis_server, extractor, plain_voice, full_voice, same
):
    built_in = {"first": plain_voice("first")}
    registry = VoiceRegistry(extractor, open_place(None).of(""), built_in, MODEL)
    anna = full_voice("anna")
    open_place(None).of("").save(anna)
    same(registry.resolve("anna"), anna)
    assert registry.names() == ["first", "anna"]
    redis_server.kill()
    assert registry.resolve("first") is built_in["first"]
    with pytest.raises(VoiceStoreAway):
        registry.resolve("anna")
