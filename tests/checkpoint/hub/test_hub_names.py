"""Names of models and of files: what is known, what is needed, what is safe, what lies where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.hub.locate import find_model, model_folder, models_home
from vivavoce.checkpoint.hub.record import DownloadRecord, FileRecord, write_record
from vivavoce.checkpoint.hub.registry import KNOWN_MODELS, known_model
from vivavoce.checkpoint.hub.selection import check_path, is_needed
from vivavoce.errors import DownloadError, ModelNotFound, UnsupportedModel


@pytest.mark.parametrize("name", ["CosyVoice2-0.5B", "cosyvoice2-0.5b", "iic/cosyvoice2-0.5B"])
def test_a_model_is_known_by_name_and_by_hub_id_in_any_case(name: str) -> None:
    assert known_model(name).hf_id == "FunAudioLLM/CosyVoice2-0.5B"


def test_every_generation_is_known() -> None:
    assert {model.generation for model in KNOWN_MODELS.values()} == set(Generation)
    assert all(model.name == name for name, model in KNOWN_MODELS.items())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFound) as caught:
        known_model("CosyVoice4")
    message = str(caught.value)
    assert "\n" not in message
    assert all(name in message for name in ["'CosyVoice4'", *KNOWN_MODELS])


@pytest.mark.parametrize(
    "path",
    [
        "llm.pt",
        "llm.rl.pt",
        "flow.cache.pt",
        "flow.safetensors",
        "hift.pt",
        "spk2info.pt",
        "campplus.onnx",
        "speech_tokenizer_v1.onnx",
        "speech_tokenizer_v3.onnx",
        "cosyvoice.yaml",
        "cosyvoice3.yaml",
        "configuration.json",
        "CosyVoice-BlankEN/config.json",
        "CosyVoice-BlankEN/merges.txt",
        "CosyVoice-BlankEN/tokenizer.json",
        "LICENSE",
        "LICENSE.txt",
        "README.md",
    ],
)
def test_needed(path: str) -> None:
    assert is_needed(path)


@pytest.mark.parametrize(
    "path",
    [
        "CosyVoice-BlankEN/model.safetensors",
        "flow.decoder.estimator.fp32.onnx",
        "flow.encoder.fp16.zip",
        "llm.text_encoder.fp16.zip",
        "asset/dingding.png",
        "asset/llm.pt",
        "../llm.pt",
        ".gitattributes",
        "model.py",
    ],
)
def test_not_needed(path: str) -> None:
    assert not is_needed(path)


@pytest.mark.parametrize("path", ["", "/llm.pt", "../llm.pt", "a/../../llm.pt", "..\\llm.pt", "."])
def test_unsafe_names_are_refused(path: str) -> None:
    with pytest.raises(DownloadError, match="no safe file name"):
        check_path(path)


@given(st.text(alphabet="ab./\\", max_size=12))
def test_what_passes_stays_inside(path: str) -> None:
    try:
        check_path(path)
    except DownloadError:
        return
    folder = Path("/models/one")
    # resolve() also works on paths that do not exist: it follows the dots.
    assert (folder / path).resolve() != folder.resolve()
    assert (folder / path).resolve().is_relative_to(folder.resolve())


def test_a_folder_is_found_as_it_is(tmp_path: Path) -> None:
    assert find_model(tmp_path) == tmp_path
    assert find_model(str(tmp_path)) == tmp_path


def test_a_known_model_that_is_absent_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        find_model("cosyvoice2-0.5b")
    assert "`vivavoce download CosyVoice2-0.5B`" in str(caught.value)
    assert str(tmp_path / "home" / "models" / "CosyVoice2-0.5B") in str(caught.value)


def test_neither_folder_nor_name() -> None:
    with pytest.raises(ModelNotFound, match=r"neither a folder nor a known model; .*one of CosyVoice2-0.5B$"):
        find_model("./no-such-folder")


@pytest.mark.parametrize("name", ["CosyVoice-300M", "fun-cosyvoice3-0.5b"])
def test_a_generation_that_does_not_run_is_not_to_be_downloaded(name: str) -> None:
    model = known_model(name)
    with pytest.raises(UnsupportedModel) as caught:
        find_model(name)
    assert str(caught.value) == (
        f"model: {model.name} is of generation {model.generation.value}; this version runs v2 only, use CosyVoice2-0.5B"
    )


def test_a_downloaded_model_is_found_until_a_file_is_lost() -> None:
    model = known_model("CosyVoice2-0.5B")
    folder = model_folder(model)
    folder.mkdir(parents=True)
    (folder / "llm.pt").write_bytes(b"12345")
    record = DownloadRecord(model.name, "hf", model.hf_id, "a" * 40, {"llm.pt": FileRecord(5, "0" * 64)})
    write_record(folder, record)
    assert find_model(model.name) == folder
    (folder / "llm.pt").unlink()
    with pytest.raises(DownloadError, match="not complete"):
        find_model(model.name)


def test_without_a_home_models_go_to_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIVAVOCE_HOME")
    assert models_home().parts[-2:] == ("vivavoce", "models")
