"""A model repository on disk: templates filled, models copied, put in place as a whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from vivavoce.doors.triton.plan import LANGUAGE_MODEL, LanguageModel, RepositoryPlan
from vivavoce.doors.triton.templates import fill_template
from vivavoce.errors import InvalidRequest

MARK = ".vivavoce-repository.json"
"""Lies in every repository that was rendered here; a folder without it is somebody else's. Triton passes files by."""
CONFIG, CODE = "config.pbtxt", "1/model.py"


def render_repository(plan: RepositoryPlan, folder: Path) -> bool:
    """Write the repository of `plan` to `folder`; what stood there before is replaced as a whole.

    A folder that is as it should be is not touched, so a server that watches it sees nothing.

    Returns:
        Whether anything was written.

    Raises:
        InvalidRequest: a template lacks a value, or `folder` holds something else than a rendered repository.
        OSError: the place cannot be written.
    """
    files = rendered_files(plan)
    if _read(folder) == files:
        return False
    _refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    try:
        _write(new, files, plan.names)
        _replace(folder, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return True


def rendered_files(plan: RepositoryPlan) -> dict[str, bytes]:
    """Every file of the repository by its relative path.

    Raises:
        InvalidRequest: a template lacks a value.
    """
    package = resources.files("vivavoce.doors.triton") / "repository"
    files = {MARK: _mark(plan)}
    for name in plan.names:
        template = (package / name / CONFIG).read_text(encoding="utf-8")
        files[f"{name}/{CONFIG}"] = fill_template(template, plan.filled, name=f"{name}/{CONFIG}").encode()
        if name != LANGUAGE_MODEL or plan.language_model is not LanguageModel.ENGINE:
            files[f"{name}/{CODE}"] = (package / name / "1" / "model.py").read_bytes()
    return files


def _mark(plan: RepositoryPlan) -> bytes:
    facts = {
        "mode": plan.mode.value,
        "models": list(plan.names),
        "language_model": plan.language_model.value,
        "values": dict(sorted(plan.filled.items())),
    }
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()


def _read(folder: Path) -> dict[str, bytes] | None:
    """The files of a rendered repository, without what Python compiled beside them; None: there is none."""
    if not (folder / MARK).is_file():
        return None
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _refuse_foreign(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise InvalidRequest(f"repository: {folder} is no folder; choose another place")
    if any(folder.iterdir()) and not (folder / MARK).is_file():
        raise InvalidRequest(f"repository: {folder} holds other files; choose an empty or a new folder")


def _write(folder: Path, files: dict[str, bytes], names: tuple[str, ...]) -> None:
    # A server under another user reads the repository; a temporary folder is its owner's only.
    folder.chmod(0o755)
    for name in names:
        (folder / name / "1").mkdir(parents=True)  # Triton wants a version's folder, even an empty one
    for path, content in files.items():
        (folder / path).write_bytes(content)


def _replace(folder: Path, new: Path) -> None:
    """Two renames, as no single one exchanges folders everywhere; what is in `new` afterwards is to be thrown away."""
    if not folder.exists():
        os.rename(new, folder)
        return
    old = new.with_name(new.name.replace(".new-", ".old-"))
    os.rename(folder, old)
    try:
        os.rename(new, folder)
    except BaseException:
        os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
