"""`download` from a hub on the loopback interface, down to the first word with the downloaded model."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.cli_harness import Run
from tests.small_checkpoint import small_checkpoint
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.known_models import is_needed

NAME = "CosyVoice2-0.5B"
COMMIT = "c" * 40


@pytest.fixture
def hub(babble: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hugging Face's two addresses, with the default model's files under another name."""
    with hub_of(babble, monkeypatch):
        yield


@contextmanager
def hub_of(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    files = {path.relative_to(model).as_posix(): path for path in model.rglob("*") if path.is_file()}
    siblings = [{"rfilename": name, "size": path.stat().st_size} for name, path in files.items()]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listing = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
            name = self.path.partition(f"/resolve/{COMMIT}/")[2]
            body = files[name].read_bytes() if name else listing
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_downloaded_model_speaks(run: Run, hub: None, home: Path, babble: Path) -> None:
    num_files = sum(is_needed(path.relative_to(babble).as_posix()) for path in babble.rglob("*"))
    result = run("download", NAME.lower())
    assert (result.code, result.out) == (0, b"")
    *files, last = result.err.splitlines()
    assert len(files) == len(set(files)) == num_files
    assert all("in all)" in line for line in files)
    assert last == f"{NAME} is complete in {home / 'models' / NAME}"
    assert run("download", NAME).err.splitlines() == [last]

    spoken = run("speak Hi. --model", NAME)
    assert spoken.code == 0
    assert "note" not in spoken.err  # nothing in an official folder says that it babbles
    report = json.loads(run("info", NAME, "--json").text)
    assert report["source"] == f"hf FunAudioLLM/{NAME} at {COMMIT}"


def test_cosyvoice3_comes_with_its_other_weights(
    run: Run, babble_v3: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(babble_v3, tmp_path / "hub"))
    shutil.copy(small_checkpoint(tmp_path / "other", Generation.V3, seed=1) / "llm.pt", model / "llm.rl.pt")
    for name in ("speech_tokenizer_v3.batch.onnx", "flow.decoder.estimator.fp32.onnx"):
        (model / name).write_bytes(b"of another runtime")
    with hub_of(model, monkeypatch):
        assert run("download FunAudioLLM/Fun-CosyVoice3-0.5B-2512 -q").code == 0
    folder = home / "models" / "Fun-CosyVoice3-0.5B"
    assert (folder / "llm.rl.pt").is_file()
    assert {path.name for path in folder.glob("*.onnx")} == {"campplus.onnx", "speech_tokenizer_v3.onnx"}
    for options, name in ((), "plain"), (("--variant", "rl"), "rl"):
        assert run("speak Hi. --model fun-cosyvoice3-0.5b", *options, "-o", f"{name}.wav").code == 0
    assert Path("plain.wav").read_bytes() != Path("rl.wav").read_bytes()


def test_a_terminal_sees_a_bar(run: Run, hub: None) -> None:
    result = run("download", NAME, "--to", "here", terminal=True)
    assert result.code == 0
    assert "MB" in result.err
    assert (Path("here") / "llm.pt").is_file()


def test_quiet_says_nothing(run: Run, hub: None) -> None:
    result = run("download", NAME, "--quiet")
    assert (result.code, result.out, result.err) == (0, b"", "")


def test_list_names_models_and_states(run: Run) -> None:
    header, newest, first, *others = run("download --list").text.splitlines()
    assert header.split()[:3] == ["name", "generation", "state"]
    assert newest.startswith("Fun-CosyVoice3-0.5B  ")
    assert first.startswith(f"{NAME}  ")
    assert len(others) == 3
    assert all("to download" in line for line in (newest, first, *others))
    for column in ("disk", "RAM (CPU)", "licence"):
        assert column in header
    for cell in ("3.09 GB", "4.09 GB", "Apache-2.0"):
        assert cell in first


def test_list_as_json_has_the_bytes_that_are_here(run: Run, hub: None, babble: Path) -> None:
    known = {one["name"]: one for one in json.loads(run("download --list --json").text)}
    assert (known[NAME]["state"], known[NAME]["bytes"]) == ("to download", 3_085_869_618)
    run("download", NAME, "-q")
    here = json.loads(run("download --list --json").text)[1]
    paths = (path for path in babble.rglob("*") if is_needed(path.relative_to(babble).as_posix()))
    assert (here["state"], here["bytes"]) == ("here", sum(path.stat().st_size for path in paths))
