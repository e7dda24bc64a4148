"""Settings: which source wins, one line for what is wrong with any of them, and texts that keep step."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vivavoce.checkpoint.known_models import WrittenModel, parse_model
from vivavoce.engine.admission import AdmissionMode
from vivavoce.errors import InvalidRequest
from vivavoce.server.served_models import further_sections, is_on_demand
from vivavoce.server.settings import ServerSettings
from vivavoce.server.settings_checks import advice, contradictions, missing
from vivavoce.server.settings_sources import (
    DEFAULT,
    SETTINGS,
    example_file,
    masked,
    plain,
    reference,
    resolve_settings,
    try_settings,
    unread_variables,
)
from vivavoce.server.toml_file import parse_toml

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->"


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
    assert resolved.origins == dict.fromkeys(SETTINGS, DEFAULT)
    with pytest.raises(ValueError, match="frozen"):
        resolved.settings.server.port = 1


def test_later_sources_win_and_origins_tell(file: Path) -> None:
    file.write_text("[server]\nport = 1\nlegacy_port = 2\ngrpc_port = 3\n[engine]\nadmission = 'queue'\n")
    environment = {"VIVAVOCE_SERVER_LEGACY_PORT": "20", "VIVAVOCE_SERVER_GRPC_PORT": "30", "VIVAVOCE_CONFIG": "no.toml"}
    resolved = resolve_settings(file, environment, {"server.grpc_port": 300, "server.host": None})
    server = resolved.settings.server
    assert (server.host, server.port, server.legacy_port, server.grpc_port) == ("127.0.0.1", 1, 20, 300)
    assert resolved.settings.engine.admission is AdmissionMode.QUEUE
    assert {name: origin for name, origin in resolved.origins.items() if origin != DEFAULT} == {
        "server.port": "vivavoce.toml",
        "server.legacy_port": "VIVAVOCE_SERVER_LEGACY_PORT",
        "server.grpc_port": "flag --grpc-port",
        "engine.admission": "vivavoce.toml",
    }
    file.write_text("server.port = 9\n")
    resolved = resolve_settings(None, {"VIVAVOCE_CONFIG": str(file)})
    assert (resolved.value("server.port"), resolved.origins["server.port"]) == (9, "vivavoce.toml")


def test_values_of_all_kinds(file: Path) -> None:
    expected = {
        "server.legacy": True,
        "server.drain_s": 5.0,
        "server.cors_origins": ("https://a.org", "*"),
        "server.reference_dir": Path("~/voices").expanduser(),
        "server.upstream": "triton://gpu:8001",
        "engine.admission": AdmissionMode.ALL,
        "logging.format": "json",
        "model.kernels": False,
        "model.memory_gb": 12.5,
        "voices.aliases": {"alloy": "calm", "me": "my voice"},
    }
    file.write_text(
        '[server]\nlegacy = true\ndrain_s = 5\ncors_origins = ["https://a.org", "*"]\nreference_dir = "~/voices"\n'
        'upstream = "triton://gpu:8001"\n[engine]\nadmission = "all"\n[logging]\nformat = "json"\n'
        "[model]\nkernels = false\nmemory_gb = 12.5\n"
        '[voices.aliases]\nalloy = "calm"\nme = "my voice"\n'
    )
    environment = {
        "VIVAVOCE_SERVER_LEGACY": "yes",
        "VIVAVOCE_SERVER_DRAIN_S": "5",
        "VIVAVOCE_SERVER_CORS_ORIGINS": "https://a.org, *",
        "VIVAVOCE_SERVER_REFERENCE_DIR": "~/voices",
        "VIVAVOCE_SERVER_UPSTREAM": "triton://gpu:8001",
        "VIVAVOCE_ENGINE_ADMISSION": "all",
        "VIVAVOCE_LOGGING_FORMAT": "json",
        "VIVAVOCE_MODEL_KERNELS": "0",
        "VIVAVOCE_MODEL_MEMORY_GB": "12.5",
        "VIVAVOCE_VOICES_ALIASES": "alloy=calm, me=my voice",
        "VIVAVOCE_SERVER_GRPC_PORT": "",
        "VIVAVOCE_HOME": "/somewhere",
    }
    flags = {"voices.aliases": ["alloy=calm", "me=my voice"]}
    assert resolve_settings(None, {}, flags).value("voices.aliases") == expected["voices.aliases"]
    for resolved in (resolve_settings(file), resolve_settings(None, environment)):
        given = [name for name, origin in resolved.origins.items() if origin != DEFAULT]
        assert {name: resolved.value(name) for name in given} == expected


def test_further_models_in_every_form(file: Path) -> None:
    file.write_text(
        '[models]\nload = "on_demand"\n[models.more]\nfun = "Fun-CosyVoice3-0.5B"\ntuned = "base+/m/llm.pt"\n'
        'rl = { base = "fun", variant = "rl", load = "start", memory_gb = 8 }\n'
    )
    resolved = resolve_settings(file)
    more = resolved.settings.models.more
    assert (more["fun"].base, more["fun"].llm) == ("Fun-CosyVoice3-0.5B", None)
    assert (more["tuned"].base, more["tuned"].llm) == ("base", Path("/m/llm.pt"))
    assert (more["rl"].variant, more["rl"].memory_gb) == ("rl", 8.0)
    assert [is_on_demand(resolved.settings, name) for name in more] == [True, True, False]
    shown = {"base": "base", "llm": "/m/llm.pt"}
    assert plain(resolved.value("models.more"))["tuned"] == shown
    variable = {"VIVAVOCE_MODELS_MORE": "fun=Fun-CosyVoice3-0.5B, iic/CosyVoice2-0___5B,tuned=base+~/llm.pt"}
    more = resolve_settings(None, variable).settings.models.more
    assert {name: one.base for name, one in more.items()} == {
        "fun": "Fun-CosyVoice3-0.5B",
        "CosyVoice2-0.5B": "iic/CosyVoice2-0___5B",
        "tuned": "base",
    }
    assert more["tuned"].llm == Path("~/llm.pt").expanduser()


def test_further_models_are_as_the_section_model_but_for_what_they_have(tmp_path: Path) -> None:
    found = settings(
        model={"model": "base=/m/one", "gpus": "0,1", "variant": "rl", "memory_gb": 8, "flow_steps": "fast"}
        | {"adapters": {"brand": "/m/brand"}},
        models={
            "more": {
                "tuned": "base+/m/llm.pt",
                "twice": {"base": "tuned", "device": "cuda:1", "memory_gb": 4, "variant": "x"},
                "one": "one",
                "CosyVoice2-0.5B": "CosyVoice2-0.5B",
                "mine": "CosyVoice2-0.5B+/m/llm.pt",
            }
        },
    )
    sections = further_sections(found)
    assert {name: one.model for name, one in sections.items()} == {
        "tuned": "tuned=/m/one+/m/llm.pt",
        "twice": "twice=/m/one",
        "one": "one=/m/one",
        "CosyVoice2-0.5B": "CosyVoice2-0.5B=CosyVoice2-0.5B",
        "mine": "mine=CosyVoice2-0.5B+/m/llm.pt",
    }
    tuned, twice = sections["tuned"], sections["twice"]
    assert (found.model.adapters, tuned.adapters) == ({"brand": Path("/m/brand")}, {}), "adapters fit one model"
    assert (tuned.gpus, tuned.device, tuned.variant, tuned.memory_gb, tuned.flow_steps) == (
        "0,1",
        "auto",
        None,
        8,
        "fast",
    )
    assert (twice.gpus, twice.device, twice.variant, twice.memory_gb) == (None, "cuda:1", "x", 4)
    odd = tmp_path / "a=b+c.pt"
    odd.mkdir()
    assert parse_model(str(odd)) == WrittenModel(str(odd)), "a folder that exists is taken as it is"


def test_variables_that_every_command_reads() -> None:
    environment = {"VIVAVOCE_MODEL": "one", "VIVAVOCE_VOICES": "/voices"}
    both = resolve_settings(None, environment)
    assert (both.value("model.model"), both.origins["model.model"]) == ("one", "VIVAVOCE_MODEL")
    assert both.value("voices.place") == "/voices"
    own = resolve_settings(None, {**environment, "VIVAVOCE_MODEL_MODEL": "two"})
    assert (own.value("model.model"), own.origins["model.model"]) == ("two", "VIVAVOCE_MODEL_MODEL")


def test_what_a_cluster_puts_into_the_environment_is_no_setting() -> None:
    environment = {
        "VIVAVOCE_SERVER": "http://10.0.0.1:8880",
        "VIVAVOCE_ENGINE": "own",
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
            "server.port: 99999 cannot be (vivavoce.toml); give a whole number in 0 … 65535",
        ),
        ("[server]\nport = '88'", "server.port: '88' cannot be (vivavoce.toml); give a whole number in 0 … 65535"),
        ("[server]\nport = true", "server.port: True cannot be"),
        ("[server]\nport = 1979-05-27", "server.port: datetime.date(1979, 5, 27) cannot be"),
        ("[telemetry]\nservice_name = 1979-05-27", "telemetry.service_name: datetime.date(1979, 5, 27) cannot be"),
        ("[server.port]\nx = 1", "server.port: {'x': 1} cannot be"),
        ("[server]\nlegacy = 1", "server.legacy: 1 cannot be (vivavoce.toml); give true or false"),
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
        ("[engine]\nadmission = 'refused'", "give one of auto, refuse, queue, all"),
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
        (
            "[voices]\naliases = ['alloy']",
            "voices.aliases: ['alloy'] cannot be (vivavoce.toml); give a table of texts",
        ),
        ("[voices.aliases]\nalloy = 3", "give a table of texts"),
        ("[telemetry]\nservice_name = ''", "give a text that is not empty"),
        ("[telemetry]\notlp_endpoint = 'localhost:4318'", "give an address such as http://localhost:4318"),
        ("[server]\nprot = 1", "server.prot: is not a setting (vivavoce.toml); did you mean port?"),
        ("[server]\nslots = 1", "server.slots: is not a setting (vivavoce.toml); it belongs to [engine]"),
        ("[models]\nmore = 3", "models.more: 3 cannot be (vivavoce.toml); give a table of models"),
        ("[models]\nmore = ['a', 'x/a']", "give each model its own name, as NAME=MODEL; a comes twice"),
        ("[models.more]\n'a b' = 'mini'", "give names of letters, digits, dots, dashes and underscores"),
        (
            "[models.more.a]\nbase = 'mini'\nload = 'late'",
            "models.more.a.load: 'late' cannot be (vivavoce.toml); give one",
        ),
        ("[models.more.a]\nbase = 'mini'\nmemory_gb = 0", "models.more.a.memory_gb: 0 cannot be"),
        (
            "[models.more.a]\nbase = 'mini'\nslots = 3",
            "models.more.a.slots: 3 cannot be (vivavoce.toml); give its fields",
        ),
        ("[models.more.a]\nllm = 'x.pt'", "models.more.a.base: {'llm': 'x.pt'} cannot be (vivavoce.toml); give a text"),
        ("[sever]\nport = 1", "sever: is not a section (vivavoce.toml); did you mean server?"),
        ("server = 1", "server: is a section (vivavoce.toml); write [server] above its fields"),
        ("[server\nport = 1", "vivavoce.toml: is not TOML"),
        ("[[server]]\nport = 1", "server: is a section"),
    ],
)
def test_a_mistake_in_a_file_names_the_setting_and_the_file(file: Path, text: str, line: str) -> None:
    (problem,) = problems_in(file, text)
    assert line in problem
    assert "secret" not in problem


def test_mistakes_elsewhere_name_the_variable_or_flag() -> None:
    variables = {
        "VIVAVOCE_SERVER_PORT": (
            "http",
            "server.port: 'http' cannot be (VIVAVOCE_SERVER_PORT); give a whole number in",
        ),
        "VIVAVOCE_SERVER_PROT": (
            "1",
            "VIVAVOCE_SERVER_PROT: is not a setting (environment); did you mean VIVAVOCE_SERVER",
        ),
        "VIVAVOCE_CONFIG": ("/none/v.toml", "config: /none/v.toml does not exist; make it, or name another file"),
        "VIVAVOCE_SERVER_GRPC_PORT": (
            "8880",
            "server.grpc_port (VIVAVOCE_SERVER_GRPC_PORT): 8880 is server.port already",
        ),
        "VIVAVOCE_SERVER_LEGACY_PORT": ("9" * 10_000, "server.legacy_port: '9999"),
    }
    for variable, (value, begin) in variables.items():
        (problem,) = problems_in(environment={variable: value})
        assert problem.startswith(begin)
        assert len(problem) < 250
    (flag,) = problems_in(engine__admission="wait")
    assert flag == "engine.admission: 'wait' cannot be (flag --admission); give one of auto, refuse, queue, all"


def test_all_mistakes_are_found_and_the_first_is_raised(file: Path) -> None:
    text = "[server]\nport = -1\n[engine]\nslots = 0\n"
    problems = problems_in(file, text, {"VIVAVOCE_ENGINE_SLOTS": "8"})
    assert [problem.partition(":")[0] for problem in problems] == ["server.port", "engine.slots"]
    with pytest.raises(InvalidRequest, match=r"^server.port: -1 .*\(and 1 more: `vivavoce config check`\)$"):
        resolve_settings(file)


def settings(**sections: dict[str, Any]) -> ServerSettings:
    return ServerSettings.model_validate(sections)


@pytest.mark.parametrize(
    ("sections", "begin"),
    [
        ({}, None),
        ({"server": {"grpc_port": 8880}}, "server.grpc_port: 8880 is server.port already"),
        ({"server": {"health_port": 8880}}, "server.health_port: 8880 is server.port already"),
        ({"server": {"legacy": True, "legacy_port": 1, "grpc_port": 1}}, "server.grpc_port: 1 is server.legacy_port"),
        ({"server": {"legacy": False, "legacy_port": 8880}}, None),
        ({"server": {"legacy": True, "port": 0, "legacy_port": 0, "grpc_port": 0}}, None),
        ({"server": {"tls_certificate": "a.pem"}}, "server.tls_certificate: has no key"),
        ({"server": {"tls_key": "a.pem"}}, "server.tls_key: has no certificate"),
        ({"server": {"tls_client_ca": "a.pem"}}, "server.tls_client_ca: the server has no certificate"),
        ({"server": {"reference_dir": "a"}}, "server.reference_dir: is for a Triton server's voices"),
        ({"server": {"upstream": "triton://gpu:8001", "reference_dir": "a"}}, None),
        ({"model": {"kernels": False, "deterministic": True}}, "model.deterministic: needs kernels"),
        ({"model": {"flow_backend": "jit", "deterministic": True}}, "model.deterministic: flow_backend jit"),
        ({"model": {"pp": 2}}, "model.pp: 2 is for lm_backend"),
        ({"model": {"gpus": "0,1"}}, None),
        ({"model": {"gpus": "all", "engines": 2}}, "model.gpus: all gives each GPU one engine"),
        ({"model": {"gpus": "0,1", "device": "cuda:0"}}, "model.gpus: 0,1 gives each GPU one engine"),
        ({"models": {"more": {"a": "mini"}, "max_loaded": 2}}, None),
        ({"models": {"more": {"a": "mini"}, "max_loaded": 1}}, "models.max_loaded: 1 is too few for 2 loaded"),
        (
            {"models": {"more": {"a": "mini", "b": "mini"}, "load": "on_demand", "max_loaded": 1}},
            "models.max_loaded: 1 is too few for 1 loaded at the start and 2 loaded on demand; choose 2 or more",
        ),
        (
            {"models": {"more": {"a": {"base": "mini", "gpus": "0", "device": "cuda:0"}}}},
            "models.more.a.gpus: 0 and device cuda:0 were given",
        ),
        ({"server": {"metrics_key_required": True}}, "server.metrics_key_required: there are no keys"),
        ({"server": {"max_body_bytes": 65_536}}, "voices.max_recording_bytes: 16777216 is more than"),
    ],
)
def test_contradictions(sections: dict[str, dict[str, Any]], begin: str | None) -> None:
    found = list(contradictions(settings(**sections)))
    assert [line.startswith(begin or "-") for line in found] == ([] if begin is None else [True])


def test_missing_files_and_folders(tmp_path: Path, babble: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(**sections: dict[str, Any]) -> list[str]:
        lines = list(missing(settings(**sections)))
        assert all("\n" not in line for line in lines)
        return [line.partition(": ")[0] for line in lines]

    (tmp_path / "file").write_text("nothing")
    assert names() == names(model={"model": "mini"}) == []
    assert names(
        server={"tls_certificate": tmp_path / "a.pem", "tls_key": tmp_path},
        model={"model": "no-such-model"},
        auth={"keys_file": tmp_path / "keys.toml"},
        voices={"place": str(tmp_path / "file")},
    ) == ["auth.keys_file", "server.tls_certificate", "server.tls_key", "model.model", "voices.place"]
    certificates = dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), tmp_path / "file")
    assert names(server=certificates) == ["server.tls_certificate", "server.tls_client_ca"]
    upstream = {"upstream": "triton://gpu:8001", "reference_dir": tmp_path}
    assert names(server=upstream, model={"model": "no-such-model"}) == []
    more = {"a": "no-such-model", "b": "mini+/absent.pt", "c": {"base": "b"}}
    assert names(model={"model": "own=mini+/absent.pt"}, models={"more": more}) == [
        "model.model",
        "models.more.a",
        "models.more.b",
    ]
    for place in (str(tmp_path), str(tmp_path / "new" / "folder"), "redis://host/0"):
        assert names(voices={"place": place}, model={"model": str(babble)}) == []
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # the superuser may write everywhere
    assert names(voices={"place": str(tmp_path / "new")}) == ["voices.place"]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, None),
        ({"server": {"host": "127.0.0.2"}}, None),
        ({"server": {"host": "::1"}}, None),
        ({"server": {"host": "localhost"}}, None),
        ({"server": {"host": "0.0.0.0"}}, "everyone who reaches 0.0.0.0"),
        ({"server": {"host": "localhost.example.org"}}, "everyone who reaches localhost.example.org"),
        ({"server": {"host": "::"}, "auth": {"keys_file": "k"}}, "unencrypted"),
        ({"server": {"cors_origins": ["*"]}}, "any web page"),
        ({"models": {"more": {"a": "mini"}}, "voices": {"keep_recordings": False}}, "fit the default model alone"),
        (
            {"models": {"more": {"a": "mini"}}, "server": {"upstream": "triton://gpu:8001"}},
            "models.more changes nothing",
        ),
        ({"logging": {"log_text": True}}, "logs hold what is spoken"),
    ],
)
def test_advice(sections: dict[str, dict[str, Any]], words: str | None) -> None:
    assert [words in line for line in advice(settings(**sections)) if words] == ([True] if words else [])


def in_force(text: str) -> str:
    """The example with its settings no longer commented out."""
    return re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE)


def test_the_example_sets_nothing_and_holds_every_setting(file: Path) -> None:
    file.write_text(example_file(), encoding="utf-8")
    assert resolve_settings(file).settings == ServerSettings()
    file.write_text(in_force(example_file()), encoding="utf-8")
    assert try_settings(file, {}, {})[1] == []
    values = parse_toml(in_force(example_file()), Path("example"))
    written = {f"{section}.{field}": value for section, table in values.items() for field, value in table.items()}
    assert set(written) == set(SETTINGS)
    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default}
    assert defaults == {name: written[name] for name in defaults}


def test_the_documentation_keeps_step() -> None:
    table, end, _ = DOCUMENTATION.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)
    assert end, "the marks around the tables are gone"
    assert table == reference()
    for name, setting in SETTINGS.items():
        assert setting.meaning.endswith("."), name
        assert setting.default is not None or setting.example is not None, f"{name} is unset, and has no example"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
        ("redis://me:se/cr@t@host", "redis://***@host"),
        ("redis://host?db=1&password=secret&x=1", "redis://host?db=1&password=***&x=1"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("VIVAVOCE_PORT", "VIVAVOCE_PORT is not read; did you mean VIVAVOCE_SERVER_PORT?"),
        ("VIVAVOCE_HEADROOM", "did you mean VIVAVOCE_ENGINE_HEADROOM?"),
        ("VIVAVOCE_SERVR_HOST", "did you mean VIVAVOCE_SERVER_HOST?"),
        ("VIVAVOCE_Q", "VIVAVOCE_Q is not read; see `vivavoce config example`"),
        ("VIVAVOCE_HOME", None),
        ("VIVAVOCE_VOICES", None),
        ("VIVAVOCE_SERVICE_PORT", None),  # Kubernetes' own
        ("OTHER_PORT", None),
    ],
)
def test_a_variable_that_nobody_reads_is_told(name: str, said: str | None) -> None:
    lines = list(unread_variables({name: "1"}))
    assert [line for line in lines if said is None or said not in line] == []
    assert len(lines) == (said is not None)
