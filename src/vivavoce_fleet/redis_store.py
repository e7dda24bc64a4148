"""A store of voices in Redis, which several servers share.

Every namespace (the public voices, and those of each owner) is one hash, which holds three fields for each voice:
`head:ID`, `about:ID` and `data:ID`, where ID is the voice's name, case-folded. Because all these fields are in one
hash, they can only be deleted, evicted or restored together.
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
from threading import Lock, local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from vivavoce.errors import InvalidRequest, MissingDependency, VoiceStoreAway, VoiceStoreError
from vivavoce.frontend.voices.names import PUBLIC, VoiceSummary, folded
from vivavoce.frontend.voices.stores import Quota, VoiceStore, namespace_id, taken_name
from vivavoce.frontend.voices.voice import Voice, decode_voice, optional_fields

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger("vivavoce.redis_store")  # the command line shows notes of loggers below `vivavoce`

KEY = "vivavoce:voices:"
"""Prefix of keys, followed by "public", or by "owner:" and the SHA-256 of the owner."""
TIMEOUT_S = 1.0
"""Seconds for connecting, and for each piece of an answer; `?socket_timeout=2` in the URL overrides this value."""
DEADLINE_S = 3.0
"""Seconds after which an operation does not wait for the next piece of its answer."""
HEALTH_CHECK_S = 30
"""A connection that was idle for more seconds than this is checked before the next command."""
REST_S = 3.0
"""Seconds between two attempts to reach a server that is away; other requests fail at once."""
DEFAULT_PORT = 6379

NOT_SERVED = "stored voices are not served"

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
redis.call('HSET', key, 'head:' .. id, head, 'about:' .. id, about, 'data:' .. id, data)
return {'kept'}
"""
"""ARGV: id, head, about, data, bytes of a head before the name, "1" to allow replacing, most voices (−1: no limit),
most bytes, the nonce of the head that may be replaced ("": any).

Answers {"kept"}, {"taken"}, {"twin", the name that differs in case only}, {"many"}, {"large"} or {"changed"}. If the
head is stored already, the same save was sent twice, because its first answer was lost.
"""


class RedisStore(VoiceStore):
    """A `VoiceStore` in Redis. It connects with the first command, and stores the bytes that `voice.py` makes.

    While redis is away, every method raises `VoiceStoreAway`. One request in `REST_S` seconds tries to reach it, the
    others do not wait. A redis that refuses a command counts as away for that command.
    """

    def __init__(self, url: str, *, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Errors as `open_voice_store`."""
        self.label = _label(url)
        self._operation = local()  # per thread: the deadline of its operation
        self._errors, self._redis = _client(url, self.label, lambda: self._operation.until - clock())
        self._rest_s, self._clock = rest_s, clock
        self._lock = Lock()
        self._away: str | None = None  # a message with time and cause; None while redis answers
        self._away_since = self._next_try = 0.0

    def summaries(self, owner: str = PUBLIC) -> list[VoiceSummary]:
        key = self._key(owner)

        def read(redis: Any) -> list[bytes | None]:
            fields = [field for field in redis.hkeys(key) if field.startswith(b"about:")]
            return redis.hmget(key, fields) if fields else []

        known = (summary for about in self._ask(read) if about and (summary := _read_about(about)) is not None)
        return sorted((changed(one, public=owner == PUBLIC) for one in known), key=lambda one: one.name)

    def state(self) -> str:
        """Return "ok" if redis answers and is durable, else the problem in one line."""
        key = self._key(PUBLIC)
        try:
            risk = self._ask(lambda redis: self._find_risk(redis, key))
        except VoiceStoreAway as error:
            return f"{self._away or error}; {NOT_SERVED}"
        return "ok" if risk is None else f"{self.label} {risk}; see docs/voices.md"

    def close(self) -> None:
        self._redis.connection_pool.disconnect()

    def _load(self, name: str, owner: str) -> Voice | None:
        found, content = self._fields(owner, f"head:{folded(name)}", f"data:{folded(name)}")
        head = _Head.parse(found)
        if head is None or head.name != name or content is None:
            return None
        label = f"voice: {name!r} in {self.label}"
        if _digest(content) != head.digest:
            raise VoiceStoreError(f"{label} is damaged; remove it and add it again")
        return decode_voice(content, label)

    def _save(
        self, voice: Voice, content: bytes, owner: str, replace: bool, quota: Quota | None, expected: str | None = None
    ) -> bool:
        key, name = self._key(owner), voice.name
        head = "".join(_Head(uuid.uuid4().hex, _digest(content), name))
        # Older versions read four values, and take the truth value of the last one as has_prompt.
        last = {"has_prompt": voice.has_prompt, **told} if (told := optional_fields(voice)) else voice.has_prompt
        about = json.dumps([name, voice.description, voice.transcript, last], ensure_ascii=False)
        limits = (quota.voices, quota.total_bytes) if quota else (-1, -1)
        options = _NONCE + _DIGEST, int(replace), *limits, expected or ""
        code, *rest = self._ask(lambda redis: redis.eval(SAVE, 1, key, folded(name), head, about, content, *options))
        if code == b"changed":
            return False
        if code in (b"taken", b"twin"):
            raise taken_name(name, *(twin.decode("utf-8", "replace") for twin in rest))
        if quota is not None and code in (b"many", b"large"):
            raise quota.too_many() if code == b"many" else quota.too_large()
        return True

    def _remove(self, name: str, owner: str) -> bool:
        if self._version(name, owner) is None:
            return False
        # If the command is sent twice, the second one finds nothing; the voice is removed all the same.
        key = self._key(owner)
        self._ask(lambda redis: redis.hdel(key, *(f"{part}:{folded(name)}" for part in ("head", "about", "data"))))
        return True

    def _version(self, name: str, owner: str) -> str | None:
        head = _Head.parse(self._fields(owner, f"head:{folded(name)}")[0])
        return head.nonce if head is not None and head.name == name else None

    def _key(self, owner: str) -> str:
        """Return the key of the owner's hash, and start the deadline of this thread's operation."""
        self._operation.until = self._clock() + DEADLINE_S
        return KEY + ("public" if owner == PUBLIC else f"owner:{namespace_id(owner)}")

    def _fields(self, owner: str, *fields: str) -> list[bytes | None]:
        key = self._key(owner)

        def read(redis: Any) -> list[bytes | None]:
            answer = zip(redis.hmget(key, fields), fields, strict=True)
            return [one if one is None else bytes(memoryview(one)) for one, _ in answer]

        return self._ask(read)

    def _ask(self, command: Callable[[Redis], _Answer]) -> _Answer:
        """Return redis' answer to a command, which may be sent twice if the connection breaks.

        VoiceStoreAway: redis is or was just now unreachable, refuses the command, or sends a malformed answer.
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
            code = str(error).split(" ", 1)[0]  # such as "OOM" or "READONLY"
            refusal = code if code.isupper() and code.isalpha() else type(error).__name__
            raise VoiceStoreAway(
                f"voice store: {self.label} refuses ({refusal}); ask its operator to look at its log"
            ) from None
        except Exception as error:  # malformed answers raise errors of other classes, too
            # The package's own messages may hold a password.
            cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
            raise _absence(self._set_away(getattr(cause, "strerror", None) or type(error).__name__)) from None
        self._set_away(None)
        return answer

    def _set_away(self, reason: str | None) -> str:
        """Record why redis is away (None: it answers); log a change; return since when and why it is away, or ""."""
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

    def _find_risk(self, redis: Redis, key: str) -> str | None:
        """Return why redis refuses voices or may lose stored ones; None if there is no such risk, or it is unknown."""
        redis.hmget(key, "head:")
        redis.hdel(key, "head:")  # a write without effect: names are never empty
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


class _Head(NamedTuple):
    """nonce: new for every save; digest: SHA-256 of the content; both hexadecimal."""

    nonce: str
    digest: str
    name: str

    @classmethod
    def parse(cls, data: bytes | None) -> _Head | None:
        """Split the three fields. Bytes that another program wrote are accepted too; their digest never matches."""
        if data is None:
            return None
        text = data.decode("utf-8", "replace")
        return cls(text[:_NONCE], text[_NONCE : _NONCE + _DIGEST], text[_NONCE + _DIGEST :])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _absence(away: str) -> VoiceStoreAway:
    return VoiceStoreAway(f"voice store: {away}; try again in some seconds")


def _read_about(about: bytes) -> VoiceSummary | None:
    try:
        name, description, transcript, last = json.loads(about)
        more = dict(last) if isinstance(last, dict) else {"has_prompt": last}
        has_prompt = bool(more.pop("has_prompt", True))
        told: dict[str, Any] = {key: str(value) for key, value in more.items()}
        return VoiceSummary(str(name), "stored", True, str(description), str(transcript), has_prompt, **told)
    except (ValueError, TypeError):
        return None


class _BoundedSocket:
    """A socket that obeys the operation's deadline; redis' own timeout limits only each piece of an answer."""

    def __init__(self, plain: Any, left_s: Callable[[], float]) -> None:
        self._plain, self._left_s = plain, left_s

    def __getattr__(self, name: str) -> Any:
        if name in ("recv", "recv_into", "sendall") and self._left_s() <= 0:
            raise TimeoutError
        return getattr(self._plain, name)


def _client(url: str, label: str, left_s: Callable[[], float]) -> tuple[Any, Redis]:
    """Return the redis package's errors, and a client. left_s: returns the seconds left for this thread's operation."""
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
    """Return host, port and database of the URL, without user and password. InvalidRequest: the URL cannot be read."""
    try:
        parts = urlsplit(url)
        host, port, number = parts.hostname or "", parts.port, parts.path.strip("/")
        # After a password with /, ? or #, the real "@" is behind the supposed host, which is then part of the password.
        is_whole = "@" not in parts.path + parts.query + parts.fragment
        # The database number must be in the path, which messages show, and not in the query.
        is_plain = "db" not in parse_qs(parts.query, keep_blank_values=True)
        can_be_read = host and port != 0 and is_whole and is_plain and (not number or number.isdecimal())
    except ValueError:  # a port that is not a number
        can_be_read = False
    if not can_be_read:
        raise InvalidRequest(f"voices: the redis URL cannot be read; {_FORM}")
    return f"redis at {f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}{parts.path.rstrip('/')}"
