"""Settings: which layer wins, and one line for what is wrong with any of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vivavoce.engine.admission import AdmissionMode
from vivavoce.errors import InvalidRequest
from vivavoce.service.operations.settings import ServerSettings
from vivavoce.service.operations.settings_fields import SETTINGS
from vivavoce.service.operations.settings_resolve import DEFAULT, Resolved, resolve_settings, try_settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("vivavoce.toml")


def problems_in(
    file: Path | None = None, text: str = "", environment: Mapping[str, str] | None = None, **flags: object
) -> list[str]:
    if file is not None:
        file.write_text(text, encoding="utf-8")
    named = {name.replace("__", "."): value for name, value in flags.items()}
    resolved, problems = try_settings(file, environment or {}, named)
    assert (resolved is None) is bool(problems)
    assert all("\n" not in problem for problem in problems)
    return problems


def test_nothing_given_is_all_defaults() -> None:
    resolved = resolve_settings()
    assert resolved.settings == ServerSettings()
    assert set(resolved.origins) == set(SETTINGS)
    assert set(resolved.origins.values()) == {DEFAULT}


def test_later_layers_win_and_origins_tell(file: Path) -> None:
    file.write_text("[server]\nport = 1\nlegacy_port = 2\ngrpc_port = 3\n[engine]\nadmission = 'queue'\n")
    environment = {"VIVAVOCE_SERVER_LEGACY_PORT": "20", "VIVAVOCE_SERVER_GRPC_PORT": "30", "VIVAVOCE_CONFIG": "no.toml"}
    resolved = resolve_settings(file, environment, {"server.grpc_port": 300, "server.host": None})
    server = resolved.settings.server
    assert (server.host, server.port, server.legacy_port, server.grpc_port) == ("127.0.0.1", 1, 20, 300)
    assert resolved.settings.engine.admission is AdmissionMode.QUEUE
    assert resolved.value("server.port") == 1
    origins = {name: origin for name, origin in resolved.origins.items() if origin != DEFAULT}
    assert origins == {
        "server.port": "vivavoce.toml:2",
        "server.legacy_port": "VIVAVOCE_SERVER_LEGACY_PORT",
        "server.grpc_port": "flag --grpc-port",
        "engine.admission": "vivavoce.toml:6",
    }


def test_a_file_that_the_environment_names(file: Path) -> None:
    file.write_text("server.port = 9\n")
    resolved = resolve_settings(None, {"VIVAVOCE_CONFIG": str(file)})
    assert (resolved.settings.server.port, resolved.origins["server.port"]) == (9, "vivavoce.toml:1")


def test_values_of_all_kinds_from_a_file(file: Path) -> None:
    file.write_text(
        '[server]\nlegacy = true\ndrain_s = 5\ncors_origins = ["https://a.org", "*"]\nreference_dir = "~/voices"\n'
        'upstream = "triton://gpu:8001"\n[logging]\nformat = "json"\n[model]\nkernels = false\n'
    )
    settings = resolve_settings(file).settings
    assert settings.server.legacy is True
    assert settings.server.drain_s == 5.0
    assert settings.server.cors_origins == ("https://a.org", "*")
    assert settings.server.reference_dir == Path("~/voices").expanduser()
    assert settings.logging.format == "json"
    assert settings.model.kernels is False


def test_values_of_all_kinds_from_the_environment() -> None:
    settings = resolve_settings(
        None,
        {
            "VIVAVOCE_SERVER_LEGACY": "yes",
            "VIVAVOCE_SERVER_CORS_ORIGINS": "https://a.org, https://b.org:8443",
            "VIVAVOCE_MODEL_MEMORY_GB": "12.5",
            "VIVAVOCE_ENGINE_ADMISSION": "all",
            "VIVAVOCE_AUTH_KEYS_FILE": "~/keys.toml",
            "VIVAVOCE_SERVER_GRPC_PORT": "",
            "VIVAVOCE_HOME": "/somewhere",
        },
    ).settings
    assert settings.server.legacy is True
    assert settings.server.cors_origins == ("https://a.org", "https://b.org:8443")
    assert settings.model.memory_gb == 12.5
    assert settings.engine.admission is AdmissionMode.ALL
    assert settings.auth.keys_file == Path("~/keys.toml").expanduser()
    assert settings.server.grpc_port is None


def test_variables_that_every_command_reads() -> None:
    environment = {"VIVAVOCE_MODEL": "one", "VIVAVOCE_VOICES": "/voices"}
    assert resolve_settings(None, environment).settings.model.model == "one"
    assert resolve_settings(None, environment).settings.voices.place == "/voices"
    own = resolve_settings(None, {**environment, "VIVAVOCE_MODEL_MODEL": "two"})
    assert (own.settings.model.model, own.origins["model.model"]) == ("two", "VIVAVOCE_MODEL_MODEL")


def test_what_a_cluster_puts_into_the_environment_is_no_setting() -> None:
    environment = {
        "VIVAVOCE_SERVER_SERVICE_HOST": "10.0.0.1",
        "VIVAVOCE_SERVER_SERVICE_PORT_HTTP": "8880",
        "VIVAVOCE_SERVER_PORT": "tcp://10.0.0.1:8880",
        "VIVAVOCE_SERVER_PORT_8880_TCP": "tcp://10.0.0.1:8880",
        "VIVAVOCE_SERVER_PORT_8880_TCP_ADDR": "10.0.0.1",
    }
    assert resolve_settings(None, environment).settings == ServerSettings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[server]\n\nport = 99999",
            "server.port: 99999 cannot be (vivavoce.toml:3); give a whole number in 0 … 65535",
        ),
        ("[server]\nport = '88'", "server.port: '88' cannot be (vivavoce.toml:2); give a whole number in 0 … 65535"),
        ("[server]\nport = true", "server.port: True cannot be"),
        ("[server]\nport = 1979-05-27", "server.port: datetime.date(1979, 5, 27) cannot be"),
        ("[telemetry]\nservice_name = 1979-05-27", "telemetry.service_name: datetime.date(1979, 5, 27) cannot be"),
        ("[server.port]\nx = 1", "server.port: {'x': 1} cannot be"),
        ("[server]\nlegacy = 1", "server.legacy: 1 cannot be (vivavoce.toml:2); give true or false"),
        ("[server]\ngrpc_port = 0.5", "give a whole number in 0 … 65535, or leave it out"),
        ("[server]\nhost = 'a b'", "give an address of this machine"),
        ("[server]\ncors_origins = 'https://a.org'", "give a list of texts"),
        ("[server]\ncors_origins = ['https://a.org/']", "give * or a page's origin"),
        ("[server]\nroot_path = 'tts/'", "give a path such as /tts"),
        ("[server]\nupstream = 'http://gpu:8000'", "give triton://HOST:PORT"),
        ("[server]\nupstream = 'triton://gpu:99999'", "give triton://HOST:PORT"),
        ("[server]\nupstream = 'triton://me:secret@gpu:8001'", "server.upstream: 'triton://***@gpu:8001' cannot be"),
        ("[server]\nupstream = 'triton://gpu:8001/?x=1'", "give triton://HOST:PORT"),
        ("[server]\ntls_key = ''", "give a path, or leave it out"),
        ("[engine]\nadmission = 'refused'", "give one of refuse, queue, all"),
        ("[engine]\nheadroom = 0", "give a number above 0, 1 at most"),
        ("[engine]\nheadroom = nan", "engine.headroom: nan cannot be"),
        ("[model]\nmemory_gb = inf", "model.memory_gb: inf cannot be"),
        ("[model]\ndevice = 'gpu'", "give auto, cpu, cuda, cuda:N or mps"),
        ("[model]\nvariant = '../x'", "give the middle of a file's name"),
        ("[voices]\nplace = 'mysql://me:secret@host'", "voices.place: 'mysql://***@host' cannot be"),
        (
            "[voices]\nplace = 'mysql://me:top secret@host/0?a=1&password=my@secret words'",
            "voices.place: 'mysql://***@host/0?a=1&password=***' cannot be",
        ),
        ("[telemetry]\nservice_name = ''", "give a text that is not empty"),
        ("[telemetry]\notlp_endpoint = 'localhost:4318'", "give an address such as http://localhost:4318"),
        ("[server]\nprot = 1", "server.prot: is no setting (vivavoce.toml:2); did you mean port?"),
        ("[server]\nslots = 1", "server.slots: is no setting (vivavoce.toml:2); it belongs to [engine]"),
        ("[sever]\nport = 1", "sever: is no section (vivavoce.toml:1); did you mean server?"),
        ("server = 1", "server: is a section (vivavoce.toml:1); write [server] above its fields"),
        ("[server\nport = 1", "vivavoce.toml:1: is no TOML"),
        ("[[server]]\nport = 1", "server: is a section"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(file: Path, text: str, line: str) -> None:
    (problem,) = problems_in(file, text)
    assert line in problem
    assert "secret" not in problem


def test_mistakes_elsewhere_name_the_variable_or_flag() -> None:
    (variable,) = problems_in(environment={"VIVAVOCE_SERVER_PORT": "http"})
    assert variable.startswith("server.port: 'http' cannot be (VIVAVOCE_SERVER_PORT); give a whole number")
    (unknown,) = problems_in(environment={"VIVAVOCE_SERVER_PROT": "1"})
    assert unknown == "VIVAVOCE_SERVER_PROT: is no setting (environment); did you mean VIVAVOCE_SERVER_PORT?"
    (flag,) = problems_in(engine__admission="wait")
    assert flag == "engine.admission: 'wait' cannot be (flag --admission); give one of refuse, queue, all"


def test_all_mistakes_are_found_and_the_first_is_raised(file: Path) -> None:
    text = "[server]\nport = -1\n[engine]\nslots = 0\n"
    problems = problems_in(file, text, {"VIVAVOCE_ENGINE_SLOTS": "8"})
    assert [problem.partition(":")[0] for problem in problems] == ["server.port", "engine.slots"]
    with pytest.raises(InvalidRequest, match=r"^server.port: -1 .*\(and 1 more: `vivavoce config check`\)$"):
        resolve_settings(file)


def test_a_file_that_is_not_there() -> None:
    (problem,) = problems_in(environment={"VIVAVOCE_CONFIG": "/none/vivavoce.toml"})
    assert problem == "config: /none/vivavoce.toml does not exist; make it, or name another file"


def test_a_long_value_is_cut() -> None:
    (problem,) = problems_in(environment={"VIVAVOCE_SERVER_PORT": "9" * 10_000})
    assert len(problem) < 250


def test_settings_cannot_be_changed() -> None:
    resolved = resolve_settings()
    assert isinstance(resolved, Resolved)
    with pytest.raises(ValueError, match="frozen"):
        resolved.settings.server.port = 1
