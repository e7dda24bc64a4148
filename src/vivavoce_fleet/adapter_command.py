"""`vivavoce adapter`: manage the LoRA adapters of a running server, over its HTTP routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from vivavoce.cli.console import Reporter, print_json, print_table, size_text
from vivavoce.cli.flags import REQUIRED, JsonOption, QuietOption, argument, command, flag, group
from vivavoce.errors import InvalidRequest

TIMEOUT_S = 120.0
"""Seconds to wait for an answer; before it, the server may load a model, or an adapter of several gigabytes."""
_PATH = "/v1/adapters"

app = group(
    "LoRA adapters of a running server: list, add, remove.",
    "vivavoce adapter list",
    "vivavoce adapter add news --server http://tts.example.org --key KEY",
)


@dataclass(frozen=True)
class AskedServer:
    """The server, and one of its models."""

    server: str = flag("Address of the server.", "URL", default="http://127.0.0.1:8880")
    key: str | None = flag("API key of the server.", "KEY", envvar="VIVAVOCE_API_KEY")
    model: str = flag("One of the server's models.  [default: its default model]", "NAME", "-m", default="")

    def ask(self, method: str, path: str, body: dict[str, str] | None = None, *, keys: str = "") -> dict[str, Any]:
        """Send a request and return the answer. keys: names that the answer must have, with spaces between them.

        InvalidRequest: the server does not answer, refuses the request, or is another program.
        """
        import httpx

        from vivavoce_hub.download import open_client, proxy_note

        if not self.server.startswith(("http://", "https://")):
            raise InvalidRequest(f"server: {self.server!r} is not an address; write one such as http://127.0.0.1:8880")
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        query = {"model": self.model} if self.model and body is None else None
        address = self.server.rstrip("/") + path
        try:
            with open_client(self.server, timeout=TIMEOUT_S) as client:
                answer = client.request(method, address, params=query, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            reason = str(error) or type(error).__name__
            way = proxy_note(address) if isinstance(error, httpx.ConnectError | httpx.ProxyError) else ""
            remedy = "check the proxy, or name the server in NO_PROXY" if way else "is it running there?"
            raise InvalidRequest(f"server: {self.server} cannot be reached{way} ({reason}); {remedy}") from None
        try:
            told = answer.json()
            if not answer.is_success:
                raise InvalidRequest(f"server: answered with status {answer.status_code}: {told['error']['message']}")
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(
                f"server: {self.server} answers {answer.status_code}, but not as vivavoce does; check the address"
            ) from None
        if not isinstance(told, dict) or not told.keys() >= set(keys.split()):
            raise InvalidRequest(f"server: {self.server} does not answer as vivavoce does; check the address")
        return told


_NAME = argument("The adapter's name in requests.", "NAME", default=REQUIRED)


@command(app, "vivavoce adapter list", "vivavoce adapter list --model mine --json", name="list")
def list_(at: AskedServer, as_json: JsonOption = False) -> None:
    """List the adapters that requests may name."""
    found = at.ask("GET", _PATH, keys="data")["data"]
    if as_json:
        print_json(found)
    elif found:
        rows = [
            (one["name"], str(one["rank"]), size_text(one["size_bytes"]), ", ".join(one["targets"])) for one in found
        ]
        print_table(rows, ("name", "rank", "size", "targets"))
    else:
        Reporter().report(f"no adapter is loaded; `vivavoce adapter add NAME --server {at.server}` loads one")


@command(app, "vivavoce adapter add news", "vivavoce adapter add brand --folder brand/2026-03 --model mine")
def add(
    name: str = _NAME,
    *,
    folder: str = flag("The folder, below the server's model.adapters_dir.  [default: NAME]", "FOLDER", default=""),
    at: AskedServer,
    quiet: QuietOption = False,
) -> None:
    """Load an adapter into all engines of a model. The API key needs may_publish."""
    told = at.ask("POST", _PATH, {"name": name, "folder": folder, "model": at.model}, keys="rank size_bytes")
    size = size_text(told["size_bytes"])
    Reporter(quiet).report(f"adapter {name!r} is loaded (rank {told['rank']}, {size}); requests may name it")


@command(app, "vivavoce adapter remove news")
def remove(name: str = _NAME, *, at: AskedServer, quiet: QuietOption = False) -> None:
    """Remove an adapter. Running requests with it are finished. The API key needs may_publish."""
    at.ask("DELETE", f"{_PATH}/{quote(name, safe='')}")
    Reporter(quiet).report(f"adapter {name!r} is removed; no new request may name it")
