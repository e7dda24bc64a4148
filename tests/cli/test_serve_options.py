"""The flags of `serve`: each sets the setting that declares it, and one that is not given sets nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from vivavoce.cli.main import app
from vivavoce.cli.serve import flag_values
from vivavoce.server.settings_sources import Resolved, resolve_settings


def resolved(*arguments: str) -> Resolved:
    """The settings of a command line."""
    group = typer.main.get_command(app)
    parent = group.make_context("vivavoce", ["serve", *arguments])
    context = group.commands["serve"].make_context("serve", list(arguments), parent=parent)  # type: ignore[attr-defined]
    return resolve_settings(None, {}, flag_values(context.params))


def test_nothing_given_sets_nothing() -> None:
    assert set(resolved().origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("arguments", "setting", "value"),
    [
        (["--port", "0"], "server.port", 0),
        (["--legacy"], "server.legacy", True),
        (["--no-web-page"], "server.web_page", False),
        (["--model-dir", "x"], "model.model", "x"),
        (["--model_dir", "x"], "model.model", "x"),
        (["--model", "a=b+c.pt"], "model.model", "a=b+c.pt"),
        (["--max-loaded", "3"], "models.max_loaded", 3),
        (["--load", "on_demand"], "models.load", "on_demand"),
        (["--cors-origin", "https://a.org", "--cors-origin", "*"], "server.cors_origins", ("https://a.org", "*")),
        (["--allowed-host", "TTS.example.org"], "server.allowed_hosts", ("tts.example.org",)),
        (["--memory", "8"], "model.memory_gb", 8.0),
        (["--lm-backend", "vllm"], "model.lm_backend", "vllm"),
        (["--flow-backend", "onnx"], "model.flow_backend", "onnx"),
        (["--trt-concurrent", "1"], "model.trt_concurrent", 1),
        (["--tp", "1"], "model.tp", 1),
        (["--pp", "1"], "model.pp", 1),
        (["--trust-model-code"], "model.trust_model_code", True),
        (["--drain", "0"], "server.drain_s", 0.0),
        (["--log-format", "json"], "logging.format", "json"),
    ],
)
def test_a_flag_sets_its_setting(arguments: list[str], setting: str, value: object) -> None:
    settings = resolved(*arguments)
    assert settings.value(setting) == value
    assert [name for name, origin in settings.origins.items() if origin != "default"] == [setting]


def test_the_first_model_is_the_default_one() -> None:
    settings = resolved("--model", "a", "--model", "x/b", "-m", "c=a+/m/llm.pt")
    assert settings.value("model.model") == "a"
    assert {name: (one.base, one.llm) for name, one in settings.value("models.more").items()} == {
        "b": ("x/b", None),
        "c": ("a", Path("/m/llm.pt")),
    }
    assert settings.origins["models.more"] == "flag --model"


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(Exception, match=r"'maybe' cannot be \(flag --admission\)"):
        resolved("--admission", "maybe")
