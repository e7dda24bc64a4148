"""The server that stages share: one that is there already, else one of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vivavoce.doors.triton.installation import find_installation
from vivavoce.doors.triton.pipeline.settings import PipelineSettings
from vivavoce.doors.triton.pipeline.work_folder import WorkFolder
from vivavoce.doors.triton.server import TritonServer, ask


@dataclass(frozen=True)
class Address:
    """Where a server is reached."""

    host: str
    http_port: int
    grpc_port: int


@dataclass(eq=False)
class Serving:
    """Not safe for several threads."""

    settings: PipelineSettings
    work: WorkFolder
    say: Callable[[str], None]
    _server: TritonServer | None = field(default=None, init=False)

    def start(self, log_file: Path | None) -> TritonServer:
        """Start a server on the repository.

        Raises:
            VivavoceError: see `find_installation` and `TritonServer.start`.
        """
        installation = find_installation(self.settings.environment, self.say)
        server = TritonServer(installation, self.work.repository, log_file, self.settings.server)
        self.say(f"starting {installation.binary.name} on {self.work.repository}")
        server.start()
        self._server = server
        models = ", ".join(sorted(str(model["name"]) for model in server.models()))
        self.say(f"ready: {models}; HTTP {server.http_url}, gRPC {server.grpc_url}, metrics {server.metrics_url}")
        return server

    def reach(self) -> Address:
        """Our server if it runs, else somebody's at the chosen ports, else one that is started now.

        Raises:
            VivavoceError: none can be started.
        """
        if self._server is None:
            settings = self.settings.server
            if self._somebody_serves():
                self.say(f"using the server at {settings.reached_at}:{settings.http_port}")
                return Address(settings.reached_at, settings.http_port, settings.grpc_port)
            self.start(self.work.server_log)
        assert self._server is not None
        host, _, http_port = self._server.http_url.rpartition(":")
        return Address(host, int(http_port), int(self._server.grpc_url.rpartition(":")[2]))

    def stop(self) -> None:
        """Stop our server if one runs."""
        server, self._server = self._server, None
        if server is not None:
            self.say("stopping the server")
            server.stop()

    def _somebody_serves(self) -> bool:
        settings = self.settings.server
        if not settings.http_port:
            return False
        url = f"http://{settings.reached_at}:{settings.http_port}/v2/models/{self.settings.speaking_model}/ready"
        return ask(url)[0] == 200
