"""The voices of one namespace in redis, with copies on this machine's disk."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from threading import Lock
from typing import Any

from vivavoce.errors import VoiceStoreAway, VoiceStoreError
from vivavoce.service.voices.names import (
    check_voice_name,
    differs_in_case_only,
    folded,
    is_voice_name,
    taken_name,
    unknown_voice,
)
from vivavoce.service.voices.stores.head import PREFIX_BYTES, Head, digest
from vivavoce.service.voices.stores.local_copy import LocalCopy
from vivavoce.service.voices.stores.quota import Quota, too_large, too_many
from vivavoce.service.voices.stores.redis_scripts import LIST, REMOVE, SAVE
from vivavoce.service.voices.stores.redis_server import RedisServer
from vivavoce.service.voices.summary import StoredSummary, summary_of
from vivavoce.service.voices.voice import Voice
from vivavoce.service.voices.voice_file import decode_voice, encode_voice

_NO_QUOTA = -1


class RedisVoices:
    """Voices that several servers share, as the bytes of `voice_file`. Safe between threads.

    While redis answers, it alone decides: a copy is used if it has the digest that redis tells, and copies of voices
    that are gone are deleted as soon as this namespace is asked for anything. While redis is away, copies are read,
    what has none is refused with `VoiceStoreAway`, and so is every change.
    """

    def __init__(self, server: RedisServer, key: str, copy: LocalCopy) -> None:
        """key: of the namespace's hash, see `redis_scripts`; copy: of this namespace alone."""
        self._server, self._key, self.copy = server, key, copy
        self._lock = Lock()  # held while the copies are changed
        self._copied_state: bytes | str | None = "never looked"  # of redis, when copies were last compared with it

    def save(self, voice: Voice, *, replace: bool = False, quota: Quota | None = None) -> None:
        """Store the voice; errors as in `NamedVoices.save`. What returns is in redis."""
        name = check_voice_name(voice.name)
        voice = voice.named(name)
        data = encode_voice(voice)
        head = Head.of(name, data)
        limits = (_NO_QUOTA, _NO_QUOTA) if quota is None else (quota.voices, quota.total_bytes)
        answer = self._run(
            SAVE, _id(name), head.encode(), _about(voice), data, PREFIX_BYTES, "1" if replace else "0", *limits
        )
        _check_kept(answer, name, quota)
        self._copy_saved(head, data)

    def load(self, name: str) -> Voice:
        """Read a voice; errors as in `NamedVoices.load`."""
        name = check_voice_name(name)
        try:
            data = self._content(name)
        except VoiceStoreAway:
            data = self.copy.read(name) if self.copy.version(name) is not None else None
            if data is None:
                raise
        if data is None:
            raise unknown_voice(name, self)
        return decode_voice(data, f"voice: {name!r} in {self._server.label}").named(name)

    def remove(self, name: str) -> None:
        """Delete a voice; errors as in `NamedVoices.remove`."""
        name = check_voice_name(name)
        if self._head(name) is None:
            raise unknown_voice(name, self)
        # Sent twice, or by two servers at once, it finds nothing left: what was asked for is done all the same.
        self._run(REMOVE, _id(name), uuid.uuid4().hex)
        with self._lock:
            self.copy.drop(name)

    def version(self, name: str) -> str | None:
        """Which content the voice has now; see `NamedVoices.version`.

        While redis is away, a name that it had has a version, even if there is no copy and `load` must fail.
        """
        if not is_voice_name(name):
            return None
        name = check_voice_name(name)
        try:
            head = self._head(name)
        except VoiceStoreAway:
            version = self.copy.version(name)
            if version is None and not self.copy.lists(name):
                raise  # it may have come since
            return version or f"unread-{uuid.uuid4().hex}"
        return None if head is None else head.nonce

    def summaries(self) -> list[StoredSummary]:
        """All voices; while redis is away, those that there are copies of, if it was ever asked from here."""
        try:
            state, found = self._run(LIST, "about:")
            self._notice(state)
        except VoiceStoreAway:
            copied = self.copy.summaries()
            if copied is None:
                raise
            return copied
        known = (_read_about(about) for about in found)
        return sorted((summary for summary in known if summary is not None), key=lambda summary: summary.name)

    def names(self) -> list[str]:
        """The names of what `summaries` gives."""
        return [summary.name for summary in self.summaries()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.version(name) is not None

    def _head(self, name: str) -> Head | None:
        found, state = self._fields(f"head:{_id(name)}", "state")
        self._notice(state)
        head = None if found is None else Head.parse(found)
        return head if head is not None and head.name == name else None

    def _content(self, name: str) -> bytes | None:
        """The bytes of the voice as redis has them now, from the copy if it is the same; None: redis has none."""
        head = self._head(name)
        if head is None:
            return None
        copied = self.copy.read(name)
        if copied is not None and digest(copied) == head.digest:
            return copied
        found, data, state = self._fields(f"head:{_id(name)}", f"data:{_id(name)}", "state")
        if found is None or data is None:  # removed just now
            return None
        if digest(data) != Head.parse(found).digest:
            raise VoiceStoreError(f"voice: {name!r} in {self._server.label} is damaged; remove it and add it again")
        with self._lock:
            if state == self._copied_state:  # else it may be gone by now, and nobody would delete the copy
                self.copy.put(name, data)
        return data

    def _copy_saved(self, head: Head, data: bytes) -> None:
        """Copy what was just saved, unless another server has removed or replaced it since."""
        try:
            heads = self._compare_copies()
        except VoiceStoreError:  # redis has the voice, whatever became of it since
            heads = [head]
        with self._lock:
            if head in heads:
                self.copy.put(head.name, data)

    def _notice(self, state: bytes | None) -> None:
        """The namespace has this state now: if there was a change since copies were compared, compare them again."""
        if state != self._copied_state:
            self._compare_copies()

    def _compare_copies(self) -> list[Head]:
        """The heads of all voices; copies of others are deleted."""
        state, found = self._run(LIST, "head:")
        heads = [Head.parse(head) for head in found]
        with self._lock:
            self.copy.keep_only(head.name for head in heads)
            self._copied_state = state
        return heads

    def _fields(self, *fields: str) -> list[bytes | None]:
        answer: Any = self._server.ask(lambda redis: redis.hmget(self._key, list(fields)))
        return answer

    def _run(self, script: str, *arguments: bytes | str | int) -> Any:
        return self._server.ask(lambda redis: redis.eval(script, 1, self._key, *arguments))


def _id(name: str) -> str:
    return folded(name)


def _about(voice: Voice) -> str:
    summary = summary_of(voice)
    return json.dumps([summary.name, summary.description, summary.transcript, summary.has_prompt], ensure_ascii=False)


def _read_about(about: bytes) -> StoredSummary | None:
    """None: somebody else wrote it."""
    try:
        name, description, transcript, has_prompt = json.loads(about)
        return StoredSummary(str(name), str(description), str(transcript), bool(has_prompt))
    except (ValueError, TypeError):
        return None


def _check_kept(answer: list[bytes], name: str, quota: Quota | None) -> None:
    code, rest = answer[0], answer[1:]
    if code == b"taken":
        raise taken_name(name)
    if code == b"twin":
        raise differs_in_case_only(name, rest[0].decode("utf-8", "replace"))
    if quota is not None and code == b"many":
        raise too_many(quota.voices)
    if quota is not None and code == b"large":
        raise too_large(quota.total_bytes)
