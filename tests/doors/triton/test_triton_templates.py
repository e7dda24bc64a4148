from __future__ import annotations

from importlib import resources

import config_text
import pytest

from vivavoce.doors.triton.templates import fill_template, parse_values
from vivavoce.doors.triton.variables import CHUNK_STRATEGIES, VARIABLES
from vivavoce.engine.chunk_policy import Schedule
from vivavoce.errors import InvalidRequest


def test_values_and_defaults() -> None:
    text = "n: ${bls_instance_num} d: ${max_queue_delay_microseconds} s: $decoupled_mode m: '${model_dir}' $$"
    values = {"bls_instance_num": "07", "decoupled_mode": "False", "model_dir": "/models/a"}
    assert fill_template(text, values) == "n: 7 d: 0 s: false m: '/models/a' $"


def test_a_known_variable_that_does_not_occur_is_no_error() -> None:
    assert fill_template("${device}", {"engine_dir": "/e", "device": "cuda:1"}) == "cuda:1"


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("${model_dri}", {}, r"^a/b: model_dri is no variable; known are .*batching_strategy.*model_dir"),
        ("x", {"model_dri": "m", "devise": "cpu"}, "^values: model_dri, devise are no variables; known are"),
        ("${device} ${model_dir}", {}, "^a/b: no value for model_dir; add model_dir=VALUE$"),
        ("one\ntwo $ {x}", {}, "^a/b: line 2: a dollar sign begins no variable"),
        ("${decoupled_mode}", {"decoupled_mode": "yes"}, "decoupled_mode: 'yes' cannot be; give true or false"),
        ("${bls_instance_num}", {"bls_instance_num": "0"}, "'0' cannot be; give a whole number from 1 on"),
        ("${bls_instance_num}", {"bls_instance_num": "-1"}, "give a whole number from 1 on"),
        ("x", {"dynamic_chunk_strategy": "fast"}, "give one of exponential, time_based, equal, low_latency, official"),
        ("x", {"default_voice": "a\nb"}, "give one line of text"),
        ("x", {"model_dir": ""}, "model_dir: is empty"),
        ("x", {"memory_gb": "lots"}, "give gigabytes such as 8, or nothing"),
        ("x", {"kv_cache_free_gpu_mem_fraction": "1.5"}, "give a number above 0, and 1 at most"),
    ],
)
def test_refused(text: str, values: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        fill_template(text, values, name="a/b")


def test_no_value_breaks_out_of_its_quotes() -> None:
    value = 'a" } backend: "evil\\'
    package = resources.files("vivavoce.doors.triton") / "repository" / "token2wav" / "config.pbtxt"
    filled = fill_template(package.read_text(encoding="utf-8"), {"model_dir": value})
    (found,) = [entry["value"] for entry in config_text.parse(filled)["parameters"] if entry["key"] == ["model_dir"]]
    assert found == [{"string_value": [value]}]


def test_chunk_strategies_are_the_engines() -> None:
    assert set(CHUNK_STRATEGIES) == {schedule.value for schedule in Schedule}


def test_every_default_is_a_value() -> None:
    for variable in VARIABLES.values():
        if variable.default is not None:
            assert variable.checked(variable.default) == variable.default


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["a:1,b:x"], {"a": "1", "b": "x"}),
        (["a:1", "b=x,y:z"], {"a": "1", "b": "x,y:z"}),
        (["url:http://h:80/x"], {"url": "http://h:80/x"}),
        (["a:", "b="], {"a": "", "b": ""}),
        (["a:1", "a=1"], {"a": "1"}),
    ],
)
def test_typed_values(arguments: list[str], values: dict[str, str]) -> None:
    assert parse_values(arguments) == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a:1,b"], "'b' is no key:value; write key=value"),
        ([":1"], "':1' is no key:value"),
        (["a:1", "a:2"], "a: given as '1' and as '2'"),
    ],
)
def test_mistyped_values(arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_values(arguments)
