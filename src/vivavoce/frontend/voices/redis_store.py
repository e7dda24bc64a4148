"""Voices in one redis, which several servers share, with copies on this machine's disk.

Every namespace (the public voices, and those of each owner) is one hash. What redis does in one step, a script in its
language Lua says; every script has one key, the hash of a namespace.

The hash holds three fields for each voice, `head:ID`, `about:ID` and `data:ID`, where ID is the name without its case,
and one more, `state`, that every change sets to something new. As index and values are one key, neither can be there
without the other, whatever is deleted, evicted or restored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace as changed
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from vivavoce.errors import InvalidRequest, MissingDependency, VoiceStoreAway, VoiceStoreError
from vivavoce.frontend.voices.folder_store import LocalCopies
from vivavoce.frontend.voices.names import PUBLIC, VoiceSummary, folded
from vivavoce.frontend.voices.stores import Quota, VoiceStore, namespace_id, taken_name
from vivavoce.frontend.voices.voice import Voice, decode_voice

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

KEY = "vivavoce:voices:"
"""Prefix of keys, followed by "public", or by "owner:" and the SHA-256 of the owner."""
TIMEOUT_S = 1.0
"""For a connection and each piece of an answer; options in the URL such as `?socket_timeout=2` win."""
DEADLINE_S = 3.0
"""No operation waits for another piece of an answer after this time."""
HEALTH_CHECK_S = 30
"""A connection idle for longer is checked before the next command."""
REST_S = 3.0
"""Seconds between two attempts to reach a server that is away; other requests fail at once."""
DEFAULT_PORT = 6379

_FORM = "write redis://[user:password@]host[:port][/number], or rediss:// for TLS"
_NONCE, _DIGEST = 32, 64
_Answer = TypeVar("_Answer")

SAVE = """
local key, id, head, about, data = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local prefix, may_replace, max_voices, max_bytes = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local old = redis.call('HGET', key, 'head:' .. id)
if old == head then return {'kept'} end
if ARGV[9] ~= '' and (not old or string.sub(old, 1, string.len(ARGV[9])) ~= ARGV[9]) then return {'changed'} end
if old then
  local name = string.sub(old, prefix + 1)
  if name ~= string.sub(head, prefix + 1) then return {'twin', name} end
  if may_replace ~= '1' then return {'taken'} end
end
if max_voices >= 0 then
  local voices, bytes = 0, 0
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) == 'data:' and field ~= 'data:' .. id then
      voices = voices + 1
      bytes = bytes + redis.call('HSTRLEN', key, field)
    end
  end
  if not old and voices + 1 > max_voices then return {'many'} end
  if bytes + string.len(data) > max_bytes then return {'large'} end
end
redis.call('HSET', key, 'head:' .. id, head, 'about:' .. id, about, 'data:' .. id, data, 'state', head)
return {'kept'}
"""
"""ARGV: id, head, about, data, bytes of a head before its name, "1" to replace, most voices (−1: any), most bytes,
the nonce that is to be replaced ("": any).

Answers {"kept"}, {"taken"}, {"twin", the name that differs in case only}, {"many"}, {"large"} or {"changed"}. The same
head twice is the same save twice: the answer to the first was lost.
"""

REMOVE = """
local key, id = KEYS[1], ARGV[1]
if redis.call('HDEL', key, 'head:' .. id, 'about:' .. id, 'data:' .. id) == 0 then return 0 end
redis.call('HSET', key, 'state', ARGV[2])
if redis.call('HLEN', key) == 1 then redis.call('DEL', key) end
return 1
"""
"""ARGV: id, a new state. Answers whether there was something to remove."""

LIST = """
local key, kind, found = KEYS[1], ARGV[1], {}
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, string.len(kind)) == kind then
    found[#found + 1] = redis.call('HGET', key, field)
  end
end
return {redis.call('HGET', key, 'state'), found}
"""
"""ARGV: "head:" or "about:". Answers the state, and those fields of all voices as of that state."""


class RedisStore(VoiceStore):
    """A `VoiceStore` in redis, which connects with the first command; values are the bytes of `voice.py`.

    While redis answers, it alone decides: a copy is used only if redis has its digest, and copies of removed voices
    are deleted with the next command in their namespace. While redis is away, copies are read; a voice without a copy
    and every change raise `VoiceStoreAway`. One request in `REST_S` seconds tries to reach it, the others do not wait.
    A redis that refuses a command counts as away for that command.
    """

    def __init__(
        self,
        url: str,
        cache: Path | None = None,
        *,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """cache: the folder of the copies; None: keep no copies. Errors as `open_voice_store`."""
        self.label = _label(url)
        self._operation = local()  # per thread: the deadline of its operation
        self._errors, self._redis = _client(url, self.label, lambda: self._operation.until - clock())
        self._cache, self._rest_s, self._clock = cache, rest_s, clock
        self._lock = Lock()
        self._namespaces: dict[str, _Namespace] = {}
        self._away: str | None = None  # since when, and why; None while it answers
        self._away_since = self._next_try = 0.0

    def summaries(self, owner: str = PUBLIC) -> list[VoiceSummary]:
        """All voices; while redis is away, those with copies, if this server ever listed them."""
        space = self._namespace(owner)
        try:
            state, found = self._run(space, LIST, "about:")
            self._notice(space, state)
        except VoiceStoreAway:
            known = space.copies.summaries()
            if known is None:
                raise
        else:
            known = [summary for about in found if (summary := _read_about(about)) is not None]
        return sorted((changed(one, public=owner == PUBLIC) for one in known), key=lambda one: one.name)

    def state(self) -> str:
        """Answer "ok" if redis answers, is durable, and copies can be written, else the problem in one line."""
        served = "voices are not served" if self._cache is None else "voices seen before are served from local copies"
        self._namespace(PUBLIC)
        try:
            risk = self._ask(self._find_risk)
        except VoiceStoreAway as error:
            return f"{self._away or error}; {served}"
        if risk is not None:
            return f"{self.label} {risk}; see docs/voices.md; {served}"
        with self._lock:
            problems = [space.copies.problem for space in self._namespaces.values()]
        return next((f"voice store: {problem}" for problem in problems if problem), "ok")

    def close(self) -> None:
        self._redis.connection_pool.disconnect()

    def _load(self, name: str, owner: str) -> Voice | None:
        space = self._namespace(owner)
        try:
            content = self._content(space, name)
        except VoiceStoreAway:
            content = space.copies.read(name) if space.copies.version(name) is not None else None
            if content is None:
                raise
        return None if content is None else decode_voice(content, f"voice: {name!r} in {self.label}")

    def _save(
        self, voice: Voice, content: bytes, owner: str, replace: bool, quota: Quota | None, expected: str | None = None
    ) -> bool:
        name, space = voice.name, self._namespace(owner)
        head = _Head(uuid.uuid4().hex, _digest(content), name)
        about = json.dumps([name, voice.description, voice.transcript, voice.has_prompt], ensure_ascii=False)
        options = _NONCE + _DIGEST, int(replace), *((quota.voices, quota.total_bytes) if quota else (-1, -1))
        code, *rest = self._run(space, SAVE, folded(name), "".join(head), about, content, *options, expected or "")
        if code == b"changed":
            return False
        if code in (b"taken", b"twin"):
            raise taken_name(name, *(twin.decode("utf-8", "replace") for twin in rest))
        if quota is not None and code in (b"many", b"large"):
            raise quota.too_many() if code == b"many" else quota.too_large()
        try:
            state, heads = self._compare_copies(space)  # another server may have removed or replaced it since
        except VoiceStoreError:  # redis has the voice, whatever became of it since
            state, heads = space.copies.state, [head]
        if head in heads:
            space.copies.put(name, content, state)
        return True

    def _remove(self, name: str, owner: str) -> bool:
        space = self._namespace(owner)
        if self._head(space, name) is None:
            return False
        # Sent twice, or by two servers at once, the second finds nothing, and the voice is removed all the same.
        self._run(space, REMOVE, folded(name), uuid.uuid4().hex)
        space.copies.drop(name)
        return True

    def _version(self, name: str, owner: str) -> str | None:
        space = self._namespace(owner)
        try:
            head = self._head(space, name)
        except VoiceStoreAway:
            version = space.copies.version(name)
            if version is None and not space.copies.lists(name):
                raise  # it may have come since
            return version or f"unread-{uuid.uuid4().hex}"
        return None if head is None else head.nonce

    def _namespace(self, owner: str) -> _Namespace:
        """The owner's namespace; starts the clock of an operation on it."""
        self._operation.until = self._clock() + DEADLINE_S
        with self._lock:
            if owner not in self._namespaces:
                place = "public" if owner == PUBLIC else f"owner:{namespace_id(owner)}"
                copies = LocalCopies(self._cache, namespace_id(self.label), place.replace(":", "-"))
                self._namespaces[owner] = _Namespace(KEY + place, copies)
            return self._namespaces[owner]

    def _head(self, space: _Namespace, name: str) -> _Head | None:
        found, state = self._fields(space, f"head:{folded(name)}", "state")
        self._notice(space, state)
        head = None if found is None else _Head.parse(found)
        return head if head is not None and head.name == name else None

    def _content(self, space: _Namespace, name: str) -> bytes | None:
        """The voice's bytes as redis has them now, from the copy if it is equal; None if redis lacks the voice."""
        head = self._head(space, name)
        if head is None:
            return None
        copied = space.copies.read(name)
        if copied is not None and _digest(copied) == head.digest:
            return copied
        found, content, state = self._fields(space, f"head:{folded(name)}", f"data:{folded(name)}", "state")
        if found is None or content is None:  # removed just now
            return None
        if _digest(content) != _Head.parse(found).digest:
            raise VoiceStoreError(f"voice: {name!r} in {self.label} is damaged; remove it and add it again")
        space.copies.put(name, content, state)
        return content

    def _notice(self, space: _Namespace, state: bytes | None) -> None:
        """Compare the copies again if the namespace changed since the last comparison."""
        if state != space.copies.state:
            self._compare_copies(space)

    def _compare_copies(self, space: _Namespace) -> tuple[bytes | str | None, list[_Head]]:
        """Delete copies of voices that redis lacks; return the namespace's state and the heads of its voices."""
        state, found = self._run(space, LIST, "head:")
        heads = [_Head.parse(head) for head in found]
        space.copies.keep_only((head.name for head in heads), state)
        return state, heads

    def _fields(self, space: _Namespace, *fields: str) -> list[bytes | None]:
        def read(redis: Any) -> list[bytes | None]:
            answer = zip(redis.hmget(space.key, fields), fields, strict=True)
            return [one if one is None else bytes(memoryview(one)) for one, _ in answer]

        return self._ask(read)

    def _run(self, space: _Namespace, script: str, *arguments: bytes | str | int) -> Any:
        return self._ask(lambda redis: redis.eval(script, 1, space.key, *arguments))

    def _ask(self, command: Callable[[Redis], _Answer]) -> _Answer:
        """The server's answer to a command, which may be sent twice if the connection breaks.

        VoiceStoreAway: unreachable now or a moment ago, refuses the command, or answers nonsense.
        """
        with self._lock:
            now, away = self._clock(), self._away
            if away is not None and now < self._next_try:
                raise _absence(away)
            self._next_try = now + self._rest_s
        try:
            answer = command(self._redis)
        except self._errors.ResponseError as error:
            self._set_away(None)
            code = str(error).split(" ", 1)[0]  # that begins a refusal: "OOM", "READONLY", …
            refusal = code if code.isupper() and code.isalpha() else type(error).__name__
            raise VoiceStoreAway(
                f"voice store: {self.label} refuses ({refusal}); ask who runs it to look at its log"
            ) from None
        except Exception as error:  # nonsense answers raise errors outside of the package's own
            # The package's own messages may hold a password.
            cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
            raise _absence(self._set_away(getattr(cause, "strerror", None) or type(error).__name__)) from None
        self._set_away(None)
        return answer

    def _set_away(self, reason: str | None) -> str:
        """Record why the server does not answer, or that it does (None); log a change; return since when and why."""
        with self._lock:
            before, away = self._away, None
            if reason is not None:
                self._away_since = time.time() if before is None else self._away_since
                since = datetime.fromtimestamp(self._away_since, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
                away = f"{self.label} is away since {since} ({reason})"
                self._next_try = self._clock() + self._rest_s
            self._away = away
        if (before is None) != (away is None):
            log.warning("voice store: %(state)s", {"state": away or f"{self.label} answers again"})
        return away or ""

    def _find_risk(self, redis: Redis) -> str | None:
        """Why redis refuses voices or may lose acknowledged ones; None if all is well, or if it hides its settings."""
        redis.hmget(KEY + "public", "state")
        redis.eval(REMOVE, 1, KEY + "public", "", "")  # a write without effect: names are never empty
        try:
            memory: Any = redis.info("memory")
            settings: Any = {**redis.config_get("save"), **redis.config_get("appendonly")}
        except self._errors.ResponseError:  # a hosted service that hides its settings
            return None
        if memory.get("maxmemory") and str(memory.get("maxmemory_policy")).startswith("allkeys"):
            return f"throws voices away when its memory is full ({memory['maxmemory_policy']})"
        if 0 < memory.get("maxmemory", 0) <= memory["used_memory"] - memory.get("mem_not_counted_for_evict", 0):
            return "takes no more voices: its memory is full (maxmemory)"
        if settings.get("appendonly") == "no" and settings.get("save") == "":
            return "keeps nothing on disk: voices are lost when it ends (appendonly no)"
        return None


class _Namespace(NamedTuple):
    key: str
    copies: LocalCopies


class _Head(NamedTuple):
    """nonce: new for every save; digest: SHA-256 of the content; both hexadecimal."""

    nonce: str
    digest: str
    name: str

    @classmethod
    def parse(cls, data: bytes) -> _Head:
        """Split the three fields. Bytes that another program wrote are accepted too; their digest never matches."""
        text = data.decode("utf-8", "replace")
        return cls(text[:_NONCE], text[_NONCE : _NONCE + _DIGEST], text[_NONCE + _DIGEST :])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _absence(away: str) -> VoiceStoreAway:
    return VoiceStoreAway(f"voice store: {away}; try again in some seconds")


def _read_about(about: bytes) -> VoiceSummary | None:
    try:
        name, description, transcript, has_prompt = json.loads(about)
        return VoiceSummary(str(name), "stored", True, str(description), str(transcript), bool(has_prompt))
    except (ValueError, TypeError):
        return None


class _BoundedSocket:
    """A socket bound by the operation's deadline: redis' own timeout bounds one piece, not all of them."""

    def __init__(self, plain: Any, left_s: Callable[[], float]) -> None:
        self._plain, self._left_s = plain, left_s

    def __getattr__(self, name: str) -> Any:
        if name in ("recv", "recv_into", "sendall") and self._left_s() <= 0:
            raise TimeoutError
        return getattr(self._plain, name)


def _client(url: str, label: str, left_s: Callable[[], float]) -> tuple[Any, Redis]:
    """The package's errors and a client; left_s: seconds left for this thread's operation."""
    try:
        from redis import Connection, Redis, SSLConnection, exceptions
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise MissingDependency(
            "voices: a redis store needs the package redis; type `pip install 'vivavoce[redis]'`"
        ) from None
    kind: Any = SSLConnection if url.startswith("rediss:") else Connection
    connect = {"_connect": lambda connection: _BoundedSocket(kind._connect(connection), left_s)}
    try:
        return exceptions, Redis.from_url(
            url,
            connection_class=type("BoundedConnection", (kind,), connect),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            health_check_interval=HEALTH_CHECK_S,
            # One retry at once, as the server may be back; a timeout is not retried.
            retry=Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,)),
        )
    except (ValueError, TypeError, exceptions.RedisError):  # their messages may hold the URL
        raise InvalidRequest(f"voices: the options in the URL of {label} cannot be read; {_FORM}") from None


def _label(url: str) -> str:
    """Host, port and number without user and password; InvalidRequest if the URL cannot be read."""
    try:
        parts = urlsplit(url)
        host, port, number = parts.hostname or "", parts.port, parts.path.strip("/")
        # A password with one of these signs may look like a host; then an "@" follows later.
        is_whole = "@" not in parts.path + parts.query + parts.fragment
        # The number has one place: copies of two databases must not lie in one folder.
        is_plain = "db" not in parse_qs(parts.query, keep_blank_values=True)
        can_be_read = host and port != 0 and is_whole and is_plain and (not number or number.isdecimal())
    except ValueError:  # a port that is not a number
        can_be_read = False
    if not can_be_read:
        raise InvalidRequest(f"voices: the redis URL cannot be read; {_FORM}")
    return f"redis at {f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}{parts.path.rstrip('/')}"
