"""One redis server: how it is reached, and what is said when it is not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, parse_qs, urlsplit

from vivavoce.errors import InvalidRequest, MissingDependency, VoiceStoreAway, VoiceStoreError
from vivavoce.service.voices.stores.breaker import REST_S, Absence, Breaker
from vivavoce.service.voices.stores.redis_risk import find_risk

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""For a connection, and for each answer; `?socket_timeout=5` and the like in the URL go before."""
DEFAULT_PORT = 6379

_FORM = "write redis://[user:password@]host[:port][/number], or rediss:// for TLS"
_Answer = TypeVar("_Answer")


class RedisServer:
    """A connection pool and a circuit breaker. Safe between threads; nothing is connected before it is asked.

    `label` names the server without the URL's secrets; no message holds more of the URL.
    """

    def __init__(self, url: str, *, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic) -> None:
        """url: redis:// or rediss://; rest_s, clock: see `Breaker`.

        Raises:
            MissingDependency: the package redis is not installed.
            InvalidRequest: the URL cannot be read.
        """
        self.label = _label(url)
        self._errors, self._redis = _client(url)
        self._breaker = Breaker(rest_s, clock)

    def ask(self, command: Callable[[Redis], _Answer]) -> _Answer:
        """What the server answers to a command, which may be sent twice if the connection breaks.

        Raises:
            VoiceStoreAway: it cannot be reached, or was missed a moment ago.
            VoiceStoreError: it refuses the command.
        """
        absence = self._breaker.absence
        if not self._breaker.admits() and absence is not None:
            raise self._away(absence)
        try:
            answer = self._answer(command)
        except self._errors.ResponseError as error:
            self._reached()
            raise VoiceStoreError(
                f"voice store: {self.label} refuses ({_refusal(error)}); ask who runs it to look at its log"
            ) from None
        except (self._errors.RedisError, OSError) as error:
            raise self._missed(_failure(error)) from None
        self._reached()
        return answer

    def state(self) -> str:
        """Tell "ok" if the server answers now and keeps what it is given, else what is wrong; waits for its answer."""
        try:
            risk = self.ask(find_risk)
        except VoiceStoreAway:
            absence = self._breaker.absence
            return "ok" if absence is None else self.tell(absence)  # another thread has just reached it
        except VoiceStoreError as error:
            return str(error)
        return "ok" if risk is None else f"{self.label} {risk}"

    def tell(self, absence: Absence) -> str:
        """Since when it is away, and why, in a line without secrets."""
        since = datetime.fromtimestamp(absence.since, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.label} is away since {since} ({absence.reason})"

    def close(self) -> None:
        """Close its connections; the next command opens one again."""
        self._redis.connection_pool.disconnect()

    def _answer(self, command: Callable[[Redis], _Answer]) -> _Answer:
        try:
            return command(self._redis)
        except self._errors.BusyLoadingError:
            raise
        except self._errors.ConnectionError:  # a connection that was kept, perhaps: the server may be there again
            return command(self._redis)

    def _reached(self) -> None:
        if self._breaker.succeeded():
            log.warning("voice store: %s answers again", self.label)

    def _missed(self, reason: str) -> VoiceStoreAway:
        was_there = self._breaker.absence is None
        absence = self._breaker.failed(reason)
        if was_there:
            log.warning("voice store: %s", self.tell(absence))
        return self._away(absence)

    def _away(self, absence: Absence) -> VoiceStoreAway:
        return VoiceStoreAway(f"voice store: {self.tell(absence)}; try again in some seconds")


def _client(url: str) -> tuple[Any, Redis]:
    """The package's errors and a client for the URL."""
    try:
        from redis import Redis, exceptions
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise MissingDependency(
            "voices: a redis store needs the package redis; type `pip install 'vivavoce[redis]'`"
        ) from None
    try:
        return exceptions, Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
    except (ValueError, TypeError, exceptions.RedisError):  # their messages may hold the URL
        raise InvalidRequest(f"voices: the options in the URL of {_label(url)} cannot be read; {_FORM}") from None


def _label(url: str) -> str:
    parts = _split(url)
    if parts is None or not parts.hostname:
        raise InvalidRequest(f"voices: the redis URL cannot be read; {_FORM}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"redis at {host}:{parts.port or DEFAULT_PORT}{parts.path.rstrip('/')}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        number = parts.path.strip("/")
        # What looks like a host may be half of a password that holds one of these signs: then an "@" comes later.
        is_whole = "@" not in parts.path + parts.query + parts.fragment
        # The number has one place: copies of two databases must not lie in one folder.
        is_plain = "db" not in parse_qs(parts.query, keep_blank_values=True)
        return parts if is_whole and is_plain and parts.port != 0 and (not number or number.isdecimal()) else None
    except ValueError:  # a port that is none
        return None


def _refusal(error: Exception) -> str:
    """The code that begins a refusal of the server ("OOM", "READONLY", …), as far as there is one."""
    code = str(error).split(" ", 1)[0]
    return code if code.isupper() and code.isalpha() else type(error).__name__


def _failure(error: Exception) -> str:
    """Why there was no answer; the messages of the package itself may hold more than the log should."""
    cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
    return getattr(cause, "strerror", None) or type(error).__name__
