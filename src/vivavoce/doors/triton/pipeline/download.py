"""Stage 0: the model, by name from a hub or the program's own, or a folder; and stored speakers if wanted."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, Literal, cast

from vivavoce.checkpoint.folder import SPEAKERS, detect_generation
from vivavoce.checkpoint.hub.download import download
from vivavoce.checkpoint.hub.fill import DownloadProgress
from vivavoce.checkpoint.hub.registry import known_model
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.doors.triton.pipeline.context import Context, Say
from vivavoce.errors import DownloadError, InvalidRequest, ModelNotFound
from vivavoce.service.default_model import model_folder

_MOST_BYTES = 256 << 20
"""Of a speakers' file: thousands of speakers."""
_TIMEOUT_S = 60.0


def bring_model(context: Context) -> dict[str, Any]:
    """The folder that all else works with, and what it holds.

    Raises:
        VivavoceError: there is no such model, a hub fails, or the speakers' file is damaged.
    """
    settings = context.settings
    folder = _model(settings.model, settings.hub, context.say).resolve()
    detect_generation(folder)
    if settings.spk2info is not None:
        folder = _with_speakers(folder, settings.spk2info, context.work.model, context.say)
    voices = sorted(read_spk2info(folder / SPEAKERS)) if (folder / SPEAKERS).is_file() else []
    context.say(f"the model is in {folder}; stored speakers: {', '.join(voices[:5]) or 'none'}")
    return {"model_dir": str(folder), "speakers": voices, "content": _content(folder)}


def _model(name: str, hub: str, say: Say) -> Path:
    if not Path(name).expanduser().is_dir():
        try:
            known = known_model(name)
        except ModelNotFound:
            return model_folder(name)  # the program's own, or an error that lists what there is
        return download(known.name, source=cast(Literal["hf", "modelscope"], hub), progress=_files(say))
    return Path(name).expanduser()


def _files(say: Say) -> Any:
    begun: set[str] = set()

    def show(now: DownloadProgress) -> None:
        if now.file not in begun:
            begun.add(now.file)
            say(f"{now.file}: {now.file_size / 1e6:,.1f} MB ({now.total / 1e6:,.1f} MB in all)")

    return show


def _with_speakers(folder: Path, source: str, target: Path, say: Say) -> Path:
    """A folder of links to the model's files, with this speakers' file in place of its own."""
    target.mkdir(parents=True, exist_ok=True)
    names = {item.name for item in folder.iterdir()}
    for link in target.iterdir():
        if link.is_symlink() and link.name not in names:
            link.unlink()  # of a model that was asked for before
    for item in folder.iterdir():
        link = target / item.name
        if item.name != SPEAKERS and not (link.is_symlink() and link.resolve() == item.resolve()):
            link.unlink(missing_ok=True)
            link.symlink_to(item)
    new = target / f"{SPEAKERS}.new"
    if source.startswith(("http://", "https://")):
        say(f"fetching {source}")
        _fetch(source, new)
    else:
        path = Path(source).expanduser()
        if not path.is_file():
            raise InvalidRequest(f"spk2info: {path} is no file; give a file, or an address that begins with https://")
        shutil.copyfile(path, new)
    try:
        read_spk2info(new)
        os.replace(new, target / SPEAKERS)
    finally:
        new.unlink(missing_ok=True)
    return target


def _fetch(url: str, target: Path) -> None:
    import httpx

    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=_TIMEOUT_S) as reply:
            reply.raise_for_status()
            taken = 0
            with target.open("wb") as file:
                for piece in reply.iter_bytes():
                    taken += len(piece)
                    if taken > _MOST_BYTES:
                        raise DownloadError(f"spk2info: {url} is larger than {_MOST_BYTES} bytes; is it the right one?")
                    file.write(piece)
    except httpx.HTTPError as error:
        raise DownloadError(
            f"spk2info: {url} cannot be fetched ({error or type(error).__name__}); fetch it by hand and give the file"
        ) from None


def _content(folder: Path) -> str:
    """Changes when a file of the model does; sizes and times stand for bytes, which take minutes to read."""
    facts = sorted(
        (path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
