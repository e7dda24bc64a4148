"""The model repository: the recorded contract, templates that are filled strictly, and folders that are replaced."""

from __future__ import annotations

import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend

from vivavoce.engine.backends import BACKEND_SETTINGS
from vivavoce.engine.chunk_policy import Schedule
from vivavoce.errors import CheckpointError, InvalidRequest, UnsupportedModel
from vivavoce_triton.client.utterance import LoadMode
from vivavoce_triton.model_repository import (
    CHUNK_STRATEGIES,
    MARK,
    LanguageModelRuntime,
    ModelSet,
    RepositoryPlan,
    check_fits,
    fill_template,
    parse_values,
    render_repository,
    rendered_files,
)

CONTRACTS = json.loads((Path(__file__).parents[1] / "data" / "triton" / "models.json").read_text(encoding="utf-8"))
CONTRACTS["vivavoce"] = {
    **CONTRACTS["cosyvoice2"],
    "name": "vivavoce",
    "instance_group": [{"count": "1", "kind": "KIND_CPU"}],
}
SPEAKING_INPUTS = {
    "voice": "STRING",
    "instruct_text": "STRING",
    "seed": "INT64",
    "speed": "FP32",
    "reading": "STRING",
}
OUR_INPUTS = {
    "cosyvoice2": SPEAKING_INPUTS,
    "vivavoce": SPEAKING_INPUTS,
    "token2wav": {"seed": "INT64", "speed": "FP32"},
    "token2mel": {"speed": "FP32"},
    "vocoder": {"seed": "INT64"},
}
PROMPT = {"prompt_speech_tokens", "prompt_speech_feat", "prompt_spk_embedding", "seed", "speed"}
"""What our `token2wav_dit` takes in place of a recording, and beside it."""
SPEAKING_PARAMETERS = {"decoupled", "dynamic_chunk_strategy", "use_spk2info_cache", "default_voice", "voices_dir"}
OUR_PARAMETERS = {
    "cosyvoice2": SPEAKING_PARAMETERS | {"triton_backend", "llm_api_base", "llm_model_name"},
    "vivavoce": SPEAKING_PARAMETERS | {"sample_rate", *BACKEND_SETTINGS},
    **{name: {"default_voice", "memory_gb"} for name in ("token2wav", "token2mel", "token2wav_dit")},
    "tensorrt_llm": {"model_dir", "llm_backend", "decoupled"},
}
TEMPLATES = resources.files("vivavoce_triton") / "repository"
TOKEN = re.compile(r'#[^\n]*|\s+|("(?:[^"\\]|\\.)*"|\$\{\w+\}|[\w.+-]+|[\[\]{}:,])')


def parse(text):
    """A configuration in protobuf's text form, or a template of one, whose variables stay `${name}`.

    Each field's values in their order, lists spread out, as strings or messages.
    """
    assert "".join(match.group() for match in TOKEN.finditer(text)) == text, "not text format"
    return message(token for token in TOKEN.findall(text) if token not in ("", ","))


def message(tokens):
    fields = {}
    for name in tokens:
        if name == "}":
            break
        assert re.fullmatch(r"\w+", name), f"no field's name: {name!r}"
        fields.setdefault(name, []).extend(values(tokens, next(tokens)))
    return fields


def values(tokens, token):
    if token == ":":
        token = next(tokens)
    if token == "{":
        return [message(tokens)]
    if token == "[":
        return [value for token in iter(lambda: next(tokens), "]") for value in values(tokens, token)]
    return [token[1:-1].replace('\\"', '"').replace("\\\\", "\\") if token.startswith('"') else token]


def template(name):
    return parse((TEMPLATES / name / "config.pbtxt").read_text(encoding="utf-8"))


def tensor(parsed):
    """As the contract writes one."""
    found = {
        "name": parsed["name"][0],
        "type": parsed["data_type"][0].removeprefix("TYPE_"),
        "dims": [int(size) for size in parsed["dims"]],
        "optional": parsed.get("optional") == ["true"],
    }
    if parsed.get("reshape") == [{"shape": []}]:
        found["reshape_to_scalar"] = True
    if parsed.get("allow_ragged_batch") == ["true"]:
        found["allow_ragged_batch"] = True
    return found


def flat(value):
    """A contract's settings as they are parsed: every field a list, every value a string."""
    if isinstance(value, dict):
        return {key: flat(inner) if isinstance(inner, list) else [flat(inner)] for key, inner in value.items()}
    return [flat(inner) for inner in value] if isinstance(value, list) else str(value)


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_the_templates_keep_the_contract(name):
    contract, parsed = CONTRACTS[name], template(name)
    for key in ("name", "backend", "max_batch_size"):
        assert parsed[key] == [contract[key]]
    for key in ("dynamic_batching", "model_transaction_policy"):
        assert parsed.get(key) == ([flat(contract[key])] if key in contract else None), key
    assert parsed["instance_group"] == flat(contract["instance_group"])
    assert set(parsed) <= {*contract, "input", "output"}
    # Requests of different lengths share a batch, whether the contract says so or not.
    inputs = [{**one, "allow_ragged_batch": True} if -1 in one["dims"] else one for one in contract["inputs"]]
    added = OUR_INPUTS.get(name, {}).items()
    inputs += [{"name": other, "type": kind, "dims": [1], "optional": True} for other, kind in added]
    found = [tensor(one) for one in parsed["input"]]
    if name == "token2wav_dit":  # a stored voice has no recording, so that one may be left out
        beside = [one for one in map(tensor, template("token2wav")["input"]) if one["name"] in PROMPT]
        assert found[len(inputs) :] == beside
        inputs = [one | {"optional": one["optional"] or one["name"].startswith("reference")} for one in inputs]
        found = found[: len(inputs)]
    assert found == inputs
    assert [tensor(one) for one in parsed["output"]] == contract["outputs"]
    given = {field["key"][0]: field["value"][0]["string_value"][0] for field in parsed["parameters"]}
    assert {key: given[key] for key in contract["parameters"]} == contract["parameters"]
    assert given.keys() - contract["parameters"].keys() == OUR_PARAMETERS.get(name, set()) | {"device"}


def test_values_and_defaults():
    text = "n: ${bls_instance_num} d: ${max_queue_delay_microseconds} s: $decoupled_mode m: '${model_dir}' $$"
    values = {"bls_instance_num": "07", "decoupled_mode": "False", "model_dir": "/models/a"}
    assert fill_template(text, values) == "n: 7 d: 0 s: false m: '/models/a' $"


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("${model_dri}", {}, r"^a/b: model_dri is not a variable; known are .*batching_strategy.*model_dir"),
        ("x", {"model_dri": "m", "devise": "cpu"}, "^values: model_dri, devise are not variables; known are"),
        ("${device} ${model_dir}", {}, "^a/b: no value for model_dir; add model_dir=VALUE$"),
        ("one\ntwo $ {x}", {}, "^a/b: line 2: a dollar sign begins no variable"),
        ("${decoupled_mode}", {"decoupled_mode": "yes"}, "decoupled_mode: 'yes' cannot be; give true or false"),
        ("${bls_instance_num}", {"bls_instance_num": "0"}, "'0' cannot be; give a whole number from 1 on"),
        ("${bls_instance_num}", {"bls_instance_num": "-1"}, "give a whole number from 1 on"),
        ("x", {"dynamic_chunk_strategy": "fast"}, "give one of exponential, time_based, equal, low_latency, official"),
        ("x", {"default_voice": "a\nb"}, "give one line of text"),
        ("x", {"model_dir": ""}, "model_dir: is empty"),
        ("x", {"llm_api_base": "localhost:8000"}, "give an address such as http://localhost:8000/v1/chat/completions"),
        ("x", {"memory_gb": "lots"}, "give gigabytes such as 8, or nothing"),
        ("x", {"kv_cache_free_gpu_mem_fraction": "1.5"}, "give a number above 0, and 1 at most"),
    ],
)
def test_refused(text, values, message):
    with pytest.raises(InvalidRequest, match=message):
        fill_template(text, values, name="a/b")


def test_no_value_breaks_out_of_its_quotes():
    value = 'a" } backend: "evil\\'
    package = (TEMPLATES / "token2wav" / "config.pbtxt").read_text(encoding="utf-8")
    filled = fill_template(package, {"model_dir": value})
    (found,) = [entry["value"] for entry in parse(filled)["parameters"] if entry["key"] == ["model_dir"]]
    assert found == [{"string_value": [value]}]


def test_chunk_strategies_are_the_engines():
    assert set(CHUNK_STRATEGIES) == {schedule.value for schedule in Schedule}


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
def test_typed_values(arguments, values):
    assert parse_values(arguments) == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a:1,b"], "'b' is not key:value; if it holds"),
        ([":1"], "':1' is not key:value"),
        (["a:1", "a:2"], "a: given as '1' and as '2'"),
    ],
)
def test_mistyped_values(arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        parse_values(arguments)


VALUES = {"model_dir": "/models/mini"}
STAGED = ("audio_tokenizer", "cosyvoice2", "speaker_embedding", "tensorrt_llm", "token2wav")
COSYVOICE3 = ("audio_tokenizer", "cosyvoice3", "speaker_embedding", "tensorrt_llm", "token2wav", "vocoder")
DIT = ("audio_tokenizer", "cosyvoice2_dit", "speaker_embedding", "token2wav_dit")
"""Where an endpoint serves the language model."""


def config(folder, name):
    return parse((folder / name / "config.pbtxt").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        (RepositoryPlan(VALUES), STAGED),
        (RepositoryPlan(VALUES, models=ModelSet.FAST), ("vivavoce",)),
        (RepositoryPlan(VALUES, models=ModelSet.BOTH), (*STAGED, "vivavoce")),
        (RepositoryPlan({**VALUES, "use_spk2info_cache": "True"}), ("cosyvoice2", "tensorrt_llm", "token2wav")),
        (RepositoryPlan(VALUES, models=ModelSet.COSYVOICE3), COSYVOICE3),
        (RepositoryPlan({**VALUES, "llm_api_base": "http://h/v1/chat/completions"}, models=ModelSet.DIT), DIT),
    ],
)
def test_models(tmp_path, plan, names):
    assert plan.names == names
    assert render_repository(plan, tmp_path / "models")
    folders = {path.name for path in (tmp_path / "models").iterdir() if path.is_dir()}
    assert folders == set(names)
    for name in names:
        assert config(tmp_path / "models", name)["name"] == [name]
        assert (tmp_path / "models" / name / "1" / "model.py").is_file()


def test_the_built_engine_has_no_model_in_python(tmp_path):
    values = {**VALUES, "engine_dir": "/engine"}
    render_repository(RepositoryPlan(values, language_model=LanguageModelRuntime.ENGINE), tmp_path / "models")
    assert config(tmp_path / "models", "tensorrt_llm")["backend"] == ["tensorrtllm"]
    assert list((tmp_path / "models" / "tensorrt_llm" / "1").iterdir()) == []


@pytest.mark.parametrize(
    ("values", "language_model", "message"),
    [
        ({"decoupled_mode": "True"}, LanguageModelRuntime.VIVAVOCE, "decoupled_mode: follows from the mode"),
        ({"llm_backend": "llmapi"}, LanguageModelRuntime.VIVAVOCE, "llm_backend: follows from"),
        ({}, LanguageModelRuntime.ENGINE, "engine needs the folder of the built engine"),
        ({}, LanguageModelRuntime.LLMAPI, "llmapi needs the folder of the merged model"),
    ],
)
def test_contradictions(values, language_model, message):
    with pytest.raises(InvalidRequest, match=message):
        RepositoryPlan({**VALUES, **values}, language_model=language_model)


def test_a_layout_is_for_one_generation(babble, babble_v1, babble_v3, tmp_path):
    for models, fitting, other in (
        (ModelSet.COSYVOICE3, babble_v3, babble),
        (ModelSet.DIT, babble, babble_v3),
    ):
        check_fits(models, fitting)
        with pytest.raises(InvalidRequest, match=f"models: {models.value} needs a folder with cosyvoice[23].yaml"):
            check_fits(models, other)
    check_fits(ModelSet.FAST, babble_v1)
    (tmp_path / "token2wav").mkdir()
    with pytest.raises(CheckpointError, match="holds none of"):
        check_fits(ModelSet.DIT, tmp_path)
    (tmp_path / "token2wav" / "flow.yaml").touch()
    for folder in (tmp_path, tmp_path / "token2wav"):
        with pytest.raises(
            UnsupportedModel, match=r"is Step-Audio 2's, .* token2wav_dit then speaks with CosyVoice2's"
        ):
            check_fits(ModelSet.DIT, folder)


def test_a_missing_value_leaves_nothing(tmp_path):
    with pytest.raises(InvalidRequest, match=r"audio_tokenizer/config\.pbtxt: no value for model_dir"):
        render_repository(RepositoryPlan({}), tmp_path / "models")
    assert list(tmp_path.iterdir()) == []


def test_again_is_nothing(tmp_path):
    plan, folder = RepositoryPlan(VALUES), tmp_path / "models"
    assert render_repository(plan, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    cache = folder / "cosyvoice2" / "1" / "__pycache__"
    assert not render_repository(plan, folder)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    cache.mkdir()
    (cache / "model.cpython-311.pyc").write_bytes(b"compiled by the server")
    assert not render_repository(plan, folder)


def test_another_plan_replaces_the_whole(tmp_path):
    folder = tmp_path / "models"
    render_repository(RepositoryPlan(VALUES, models=ModelSet.BOTH), folder)
    (folder / "cosyvoice2" / "config.pbtxt").write_text("name: 'edited'")
    plan = RepositoryPlan(VALUES, mode=LoadMode.OFFLINE)
    assert render_repository(plan, folder)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == rendered_files(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidRequest, match="holds other files"):
        render_repository(RepositoryPlan(VALUES), tmp_path / "mine")
    with pytest.raises(InvalidRequest, match="is not a folder"):
        render_repository(RepositoryPlan(VALUES), tmp_path / "mine" / "thesis.txt")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert render_repository(RepositoryPlan(VALUES), tmp_path / "empty")
    assert (tmp_path / "empty" / MARK).is_file()


@pytest.mark.parametrize("models", [ModelSet.BOTH, ModelSet.COSYVOICE3, ModelSet.DIT])
def test_the_files_of_the_models_are_what_the_server_runs(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", FakeBackend())
    plan = RepositoryPlan(VALUES, models=models)
    files = rendered_files(plan)
    for name in plan.names:
        found: dict[str, Any] = {}
        exec(files[f"{name}/1/model.py"], found)
        assert all(hasattr(found["TritonPythonModel"], method) for method in ("initialize", "execute", "finalize"))
