from __future__ import annotations

import os
from pathlib import Path

import config_text
import pytest

from vivavoce.doors.triton.plan import LanguageModel, Mode, ModelSet, RepositoryPlan
from vivavoce.doors.triton.render import MARK, render_repository, rendered_files
from vivavoce.errors import InvalidRequest

VALUES = {"model_dir": "/models/mini"}
STAGED = ("audio_tokenizer", "cosyvoice2", "speaker_embedding", "tensorrt_llm", "token2wav")


def config(folder: Path, name: str) -> dict[str, list[object]]:
    return config_text.parse((folder / name / "config.pbtxt").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        (RepositoryPlan(VALUES), STAGED),
        (RepositoryPlan(VALUES, models=ModelSet.FAST), ("vivavoce",)),
        (RepositoryPlan(VALUES, models=ModelSet.BOTH), (*STAGED, "vivavoce")),
        (RepositoryPlan({**VALUES, "use_spk2info_cache": "True"}), ("cosyvoice2", "tensorrt_llm", "token2wav")),
    ],
)
def test_models(tmp_path: Path, plan: RepositoryPlan, names: tuple[str, ...]) -> None:
    assert plan.names == names
    assert render_repository(plan, tmp_path / "models")
    folders = {path.name for path in (tmp_path / "models").iterdir() if path.is_dir()}
    assert folders == set(names)
    for name in names:
        assert config(tmp_path / "models", name)["name"] == [name]
        assert (tmp_path / "models" / name / "1" / "model.py").is_file()


@pytest.mark.parametrize(("mode", "decoupled"), [(Mode.STREAMING, "true"), (Mode.OFFLINE, "false")])
def test_mode(tmp_path: Path, mode: Mode, decoupled: str) -> None:
    render_repository(RepositoryPlan(VALUES, mode=mode, models=ModelSet.BOTH), tmp_path / "models")
    for name in ("cosyvoice2", "tensorrt_llm", "vivavoce"):
        assert config(tmp_path / "models", name)["model_transaction_policy"] == [{"decoupled": [decoupled]}]
    assert "model_transaction_policy" not in config(tmp_path / "models", "token2wav")


def test_the_built_engine_has_no_model_in_python(tmp_path: Path) -> None:
    values = {**VALUES, "engine_dir": "/engine"}
    render_repository(RepositoryPlan(values, language_model=LanguageModel.ENGINE), tmp_path / "models")
    assert config(tmp_path / "models", "tensorrt_llm")["backend"] == ["tensorrtllm"]
    assert list((tmp_path / "models" / "tensorrt_llm" / "1").iterdir()) == []


def test_relative_folders_are_read_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RepositoryPlan({"model_dir": "a/b"}).filled["model_dir"] == f"{tmp_path}/a/b"
    assert RepositoryPlan({**VALUES, "llm_tokenizer_dir": ""}).filled["llm_tokenizer_dir"] == ""


@pytest.mark.parametrize(
    ("values", "language_model", "message"),
    [
        ({"decoupled_mode": "True"}, LanguageModel.VIVAVOCE, "decoupled_mode: follows from the mode"),
        ({"llm_backend": "llmapi"}, LanguageModel.VIVAVOCE, "llm_backend: follows from"),
        ({}, LanguageModel.ENGINE, "engine needs the folder of the built engine"),
        ({}, LanguageModel.LLMAPI, "llmapi needs the folder of the merged model"),
    ],
)
def test_contradictions(values: dict[str, str], language_model: LanguageModel, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RepositoryPlan({**VALUES, **values}, language_model=language_model)


def test_a_missing_value_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"audio_tokenizer/config\.pbtxt: no value for model_dir"):
        render_repository(RepositoryPlan({}), tmp_path / "models")
    assert list(tmp_path.iterdir()) == []


def test_again_is_nothing(tmp_path: Path) -> None:
    plan, folder = RepositoryPlan(VALUES), tmp_path / "models"
    assert render_repository(plan, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    cache = folder / "cosyvoice2" / "1" / "__pycache__"
    assert not render_repository(plan, folder)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    cache.mkdir()
    (cache / "model.cpython-311.pyc").write_bytes(b"compiled by the server")
    assert not render_repository(plan, folder)


def test_another_plan_replaces_the_whole(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    render_repository(RepositoryPlan(VALUES, models=ModelSet.BOTH), folder)
    (folder / "cosyvoice2" / "config.pbtxt").write_text("name: 'edited'")
    plan = RepositoryPlan(VALUES, mode=Mode.OFFLINE)
    assert render_repository(plan, folder)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == rendered_files(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_other_users_can_read_it(tmp_path: Path) -> None:
    render_repository(RepositoryPlan(VALUES), tmp_path / "models")
    assert os.stat(tmp_path / "models").st_mode & 0o055 == 0o055


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidRequest, match="holds other files"):
        render_repository(RepositoryPlan(VALUES), tmp_path / "mine")
    with pytest.raises(InvalidRequest, match="is no folder"):
        render_repository(RepositoryPlan(VALUES), tmp_path / "mine" / "thesis.txt")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert render_repository(RepositoryPlan(VALUES), tmp_path / "empty")
    assert (tmp_path / "empty" / MARK).is_file()
