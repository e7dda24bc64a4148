"""A folder that appears complete or not at all, and never in the place of something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest
from vivavoce.export.fresh_folder import check_target, fresh_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def fill(target: Path, content: str) -> None:
    with fresh_folder(target) as folder:
        (folder / "mark").write_text(content)


def test_absent_and_empty_targets_are_taken(tmp_path: Path, source: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "deep" / "absent", tmp_path / "empty"):
        check_target(target, source, force=False, mark="mark")
        fill(target, "new")
        assert [path.name for path in target.iterdir()] == ["mark"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty", "source"]


def test_an_earlier_export_is_replaced_by_force_alone(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "out"
    fill(target, "old")
    (target / "left").write_text("over")
    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        check_target(target, source, force=False, mark="mark")
    check_target(target, source, force=True, mark="mark")
    fill(target, "new")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"mark": "new"}


def test_force_spares_what_is_no_export(tmp_path: Path, source: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("you")
    with pytest.raises(InvalidRequest, match="holds no mark, so it is no earlier export"):
        check_target(tmp_path / "letters", source, force=True, mark="mark")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="is no folder"):
        check_target(tmp_path / "file", source, force=True, mark="mark")


@pytest.mark.parametrize("target", ["source", "source/inside", "."])
def test_the_source_is_never_replaced(tmp_path: Path, source: Path, target: str) -> None:
    (tmp_path / "mark").write_text("")
    (source / "mark").write_text("")
    with pytest.raises(InvalidRequest, match="lie within each other"):
        check_target(tmp_path / target, source, force=True, mark="mark")


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_the_current_folder_is_never_replaced(
    tmp_path: Path, source: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(InvalidRequest, match="back: the current folder lies in"):
        check_target(Path(target), source, force=True, mark="mark", field="back")


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    fill(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "mark").read_text() == "new"


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    with pytest.raises(TypeError):
        fill(tmp_path / "out", 5)  # type: ignore[arg-type]
    assert (tmp_path / "out" / "mark").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
