"""The LoRA adapters that requests can name."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vivavoce.errors import AdapterNotFound, InvalidRequest, Overloaded

if TYPE_CHECKING:  # a server's process uses the names without torch
    from torch import Tensor

    from vivavoce.checkpoint.adapter import AdapterWeights
    from vivavoce.checkpoint.config import LMConfig
    from vivavoce.models.lm.adapters import LoadedAdapter

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NO_ADAPTER = "none"
"""The adapter name that means "no adapter": the request is spoken without one, even if its voice names an adapter."""
MAX_ADAPTERS = 64
"""Upper limit of the setting `max_adapters`."""
_RETRY_S = 2.0


@dataclass(frozen=True)
class AdapterInfo:
    """A loaded adapter; targets: names of modules that it changes; size_bytes: its bytes in the model's precision."""

    name: str
    rank: int
    targets: tuple[str, ...]
    size_bytes: int


class AdapterStage(Protocol):
    """A language-model stage that can have adapters, see `LMStage`."""

    adapter_places: int

    def lay_adapter(self, weights: AdapterWeights) -> Tensor: ...

    def add_adapter(self, weights: AdapterWeights, laid: Tensor) -> LoadedAdapter: ...


def check_adapter_name(name: str) -> None:
    """Raise InvalidRequest for a name that requests, URLs or settings cannot contain unchanged."""
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"adapter: {name[:80]!r} is not a name; use 1 to 64 letters of ASCII, digits, '-', '_' and '.', a letter "
            "or digit first"
        )


class Adapters:
    """The adapters of one engine, by name. Any thread may call this.

    most: the largest number of adapters that are loaded at once; most_rank: the largest rank of an adapter. New
    requests cannot name a removed adapter; its memory is freed once the requests that use it have ended.
    """

    def __init__(self, config: Any, stage: AdapterStage | None, most: int, most_rank: int) -> None:
        self._config: LMConfig = config
        self._stage, self._most, self._most_rank = stage, most, most_rank
        self._named: dict[str, tuple[LoadedAdapter, AdapterInfo]] = {}
        self._changing = threading.Lock()

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        return tuple(info for _, info in list(self._named.values()))

    def find(self, name: str, held: dict[str, LoadedAdapter]) -> LoadedAdapter:
        """Return the adapter with this name. It is stored in `held`, so the request can use it even after `remove`.

        Raises AdapterNotFound if no adapter has this name; the message lists the loaded adapters.
        """
        if name not in held:
            found = self._named.get(name)
            if found is None:
                raise self._unknown(name)
            held[name] = found[0]
        return held[name]

    def load(self, name: str, folder: Path, place: Callable[[Callable[[], Any]], Any]) -> AdapterInfo:
        """Read an adapter from its folder, and load it.

        place: runs a function in the loop's thread, on the language model's queue, and returns its result.
        Raises InvalidRequest if the name is taken or malformed, the limit is reached, or `read_adapter` refuses the
        folder. Raises Overloaded if a removed adapter still occupies the place that the new adapter needs.
        """
        check_adapter_name(name)
        if name == NO_ADAPTER:
            raise InvalidRequest(f"adapter: {name!r} means to speak without an adapter; choose another name")
        stage, most = self._stage, self._most
        if stage is None or not most:
            raise InvalidRequest(
                "adapters: the engine has no room for adapters; load the model with EngineSettings(max_adapters=8), or "
                "name adapters or adapters_dir in the server's settings"
            )
        from vivavoce.checkpoint.adapter import read_adapter

        with self._changing:
            if name in self._named:
                raise InvalidRequest(f"adapter: {name!r} is loaded already; remove it first, or choose another name")
            if len(self._named) >= most:
                raise InvalidRequest(f"adapter: {len(self._named)} are loaded, the limit is {most}; remove one first")
            if not stage.adapter_places:
                raise Overloaded(
                    f"adapter: all {most} places are taken, some by removed adapters that requests still use; try "
                    f"again in {_RETRY_S:g} s",
                    _RETRY_S,
                )
            weights = read_adapter(folder, self._config, self._most_rank)
            laid = stage.lay_adapter(weights)
            loaded = place(lambda: stage.add_adapter(weights, laid))
            info = AdapterInfo(name, weights.rank, weights.targets, laid.nbytes)
            self._named[name] = loaded, info
        return info

    def remove(self, name: str) -> None:
        """Unload an adapter; requests that already use it keep it. Raises AdapterNotFound for an unknown name."""
        with self._changing:
            if self._named.pop(name, None) is None:
                raise self._unknown(name)

    def _unknown(self, name: str) -> AdapterNotFound:
        known = ", ".join(sorted(self._named))
        loaded = f"loaded: {known}; name one of them, or leave it out" if known else "no adapter is; leave it out"
        return AdapterNotFound(f"adapter: {name[:80]!r} is not loaded ({loaded})")
