"""The routes of LoRA adapters, their keys and folders, and the field `adapter` of requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.server.fake_backend import FakeBackend, FakeStream
from tests.server.http.serving import Served, make_state, serving
from vivavoce.engine.adapters import AdapterInfo
from vivavoce.errors import AdapterNotFound
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.server.http.app import build_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import ModelSection, ServerSettings


@dataclass
class Adapting(FakeBackend):
    """Has the adapters that were added, and notes their folders."""

    loaded: dict[str, str] = field(default_factory=dict)

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        return tuple(AdapterInfo(name, 8, ("q_proj",), 4_000) for name in self.loaded)

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo:
        self.loaded[name] = folder
        return AdapterInfo(name, 8, ("q_proj",), 4_000)

    async def remove_adapter(self, name: str) -> None:
        self._check(name)
        del self.loaded[name]

    async def speak(self, order: SpeechRequest) -> FakeStream:
        if order.adapter not in (None, "none"):
            self._check(order.adapter)
        return await super().speak(order)

    def _check(self, name: str) -> None:
        if name not in self.loaded:
            raise AdapterNotFound(f"adapter: {name!r} is not loaded (no adapter is; leave it out)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "adapters" / "brand" / "new").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "adapters" / "way-out").symlink_to(tmp_path / "secret")
    return tmp_path / "adapters"


@pytest.fixture
def server(root: Path) -> Iterator[Served]:
    settings = ServerSettings(model=ModelSection(adapters_dir=root))
    with serving(build_app, lambda: make_state(Adapting(), settings)) as served:
        yield served


def post(server: Served, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/adapters", json=fields, headers=headers or {})


def test_adapters_are_loaded_listed_named_and_removed(server: Served, root: Path) -> None:
    entry = {"id": "brand", "name": "brand", "object": "adapter", "rank": 8, "targets": ["q_proj"], "size_bytes": 4_000}
    added = post(server, name="brand")
    assert (added.status_code, added.json()) == (201, entry)
    assert post(server, name="newer", folder="brand/new").status_code == 201
    backend = server.state.dispatcher.backend
    assert isinstance(backend, Adapting)
    assert backend.loaded == {"brand": str(root / "brand"), "newer": str(root / "brand" / "new")}
    listed = httpx.get(f"{server.url}/v1/adapters").json()
    assert listed == {"object": "list", "data": [entry, {**entry, "id": "newer", "name": "newer"}]}
    asked = {"input": "Hello.", "response_format": "pcm"}
    for name in ("brand", None, "none"):
        answer = httpx.post(f"{server.url}/v1/audio/speech", json={**asked, "adapter": name})
        assert answer.status_code == 200
    assert [order.adapter for order in backend.orders] == ["brand", None, "none"]
    removed = httpx.delete(f"{server.url}/v1/adapters/brand")
    assert removed.json() == {"id": "brand", "object": "adapter.deleted", "deleted": True}
    again = httpx.delete(f"{server.url}/v1/adapters/brand")
    unknown = httpx.post(f"{server.url}/v1/audio/speech", json={**asked, "adapter": "brand"})
    for answer in (again, unknown):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"], error["type"]) == ("adapter_not_found", "adapter", "not_found_error")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "x", "folder": "../secret"}, "folder: '../secret' is not below the server's folder of adapters"),
        ({"name": "x", "folder": "/etc"}, "folder: '/etc' is not below the server's folder of adapters"),
        ({"name": "x", "folder": "way-out"}, "folder: 'way-out' is not below the server's folder of adapters"),
        ({"name": "x", "folder": "."}, "folder: '.' is not below the server's folder of adapters"),
        ({"name": "x", "folder": "a\u0000b"}, "folder: 'a\\x00b' has characters that cannot be printed"),
        ({"name": "absent"}, "folder: 'absent' is not a folder on the server; put the adapter there first"),
        ({"folder": "brand"}, "name"),
        ({"name": "x", "place": "brand"}, "place"),
    ],
)
def test_folders_elsewhere_are_refused(server: Served, fields: dict[str, object], message: str) -> None:
    answer = post(server, **fields)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_only_keys_that_may_publish_change_adapters(root: Path, tmp_path: Path) -> None:
    path, keys = tmp_path / "keys.toml", [new_key(), new_key()]
    for name, key, may_publish in (("anna", keys[0], False), ("boss", keys[1], True)):
        add_key(path, new_entry(key, name, may_publish=may_publish))
    settings = ServerSettings(model=ModelSection(adapters_dir=root))
    with serving(build_app, lambda: make_state(Adapting(), settings, KeyRing(path))) as server:
        anna, boss = ({"authorization": f"Bearer {key}"} for key in keys)
        assert post(server, name="brand").status_code == 401
        refused = post(server, anna, name="brand")
        assert refused.status_code == 403
        assert "the key 'anna' may not change adapters, which all callers use" in refused.json()["error"]["message"]
        assert post(server, boss, name="brand").status_code == 201
        assert httpx.delete(f"{server.url}/v1/adapters/brand", headers=anna).status_code == 403
        assert len(httpx.get(f"{server.url}/v1/adapters", headers=anna).json()["data"]) == 1
        foreign = post(server, boss | {"origin": "https://evil.example"}, name="newer", folder="brand/new")
        assert foreign.status_code == 403


def test_a_server_without_a_folder_or_of_other_engines_says_so() -> None:
    with serving(build_app, lambda: make_state(Adapting())) as server:
        answer = post(server, name="brand")
        assert answer.status_code == 400
        assert "set model.adapters_dir" in answer.json()["error"]["message"]
    with serving(build_app, lambda: make_state(FakeBackend())) as server:
        answer = httpx.get(f"{server.url}/v1/adapters")
        assert answer.status_code == 400
        assert "the engines of this server cannot load adapters" in answer.json()["error"]["message"]
