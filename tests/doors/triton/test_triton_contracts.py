"""The templates keep the recorded contract; what they add to it is listed here and optional."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import config_text
import pytest

CONTRACTS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "triton" / "models.json").read_text(encoding="utf-8")
)
CONTRACTS["vivavoce"] = {
    **CONTRACTS["cosyvoice2"],
    "name": "vivavoce",
    "instance_group": [{"count": "1", "kind": "KIND_CPU"}],
}
SPEAKING_INPUTS = {"voice": "STRING", "instruct_text": "STRING", "seed": "INT64", "speed": "FP32"}
OUR_INPUTS: dict[str, dict[str, str]] = {
    "cosyvoice2": SPEAKING_INPUTS,
    "vivavoce": SPEAKING_INPUTS,
    "token2wav": {"seed": "INT64", "speed": "FP32"},
}
SPEAKING_PARAMETERS = {"decoupled", "dynamic_chunk_strategy", "use_spk2info_cache", "default_voice", "voices_dir"}
OUR_PARAMETERS = {
    "cosyvoice2": SPEAKING_PARAMETERS | {"triton_backend"},
    "vivavoce": SPEAKING_PARAMETERS,
    "token2wav": {"default_voice", "memory_gb"},
    "tensorrt_llm": {"model_dir", "llm_backend", "decoupled"},
}


def template(name: str) -> dict[str, list[Any]]:
    path = resources.files("vivavoce.doors.triton") / "repository" / name / "config.pbtxt"
    return config_text.parse(path.read_text(encoding="utf-8"))


def tensor(parsed: dict[str, list[Any]]) -> dict[str, Any]:
    """As the contract writes one."""
    found: dict[str, Any] = {
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


def expected(contract: dict[str, Any], *, ragged: bool) -> dict[str, Any]:
    """Requests of different lengths share a batch, whether the contract says so or not."""
    return {**contract, "allow_ragged_batch": True} if ragged and -1 in contract["dims"] else contract


def flat(value: Any) -> Any:
    """A contract's settings as they are parsed: every field a list, every value a string."""
    if isinstance(value, dict):
        return {key: flat(inner) if isinstance(inner, list) else [flat(inner)] for key, inner in value.items()}
    return [flat(inner) for inner in value] if isinstance(value, list) else str(value)


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_settings(name: str) -> None:
    contract, parsed = CONTRACTS[name], template(name)
    for key in ("name", "backend", "max_batch_size"):
        assert parsed[key] == [contract[key]]
    for key in ("dynamic_batching", "model_transaction_policy"):
        assert parsed.get(key) == ([flat(contract[key])] if key in contract else None), key
    assert parsed["instance_group"] == flat(contract["instance_group"])
    assert set(parsed) <= {*contract, "input", "output"}


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_inputs(name: str) -> None:
    found = [tensor(parsed) for parsed in template(name)["input"]]
    ours = [
        {"name": added, "type": kind, "dims": [1], "optional": True} for added, kind in OUR_INPUTS.get(name, {}).items()
    ]
    assert found == [expected(contract, ragged=True) for contract in CONTRACTS[name]["inputs"]] + ours


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_outputs(name: str) -> None:
    found = [tensor(parsed) for parsed in template(name)["output"]]
    assert found == [expected(contract, ragged=False) for contract in CONTRACTS[name]["outputs"]]


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_parameters(name: str) -> None:
    found = {field["key"][0]: field["value"][0]["string_value"][0] for field in template(name)["parameters"]}
    contract = CONTRACTS[name]["parameters"]
    assert {key: found[key] for key in contract} == contract
    assert found.keys() - contract.keys() == OUR_PARAMETERS.get(name, set()) | {"device"}
