"""What is known and needed of models; downloads from a fake hub: contents, resuming, faults, updates."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.checkpoint.known_models import (
    KNOWN_MODELS,
    RECORD,
    DownloadRecord,
    FileRecord,
    find_model,
    is_needed,
    known_model,
    model_folder,
    models_home,
    read_record,
)
from vivavoce.errors import DownloadError, InvalidRequest, ModelNotFound, UnsupportedModel
from vivavoce.frontend.voices.stores import voices_home
from vivavoce_hub.download import DownloadProgress, check_path, download, write_record


@pytest.mark.parametrize("name", ["CosyVoice2-0.5B", "cosyvoice2-0.5b", "iic/cosyvoice2-0.5B"])
def test_a_model_is_known_by_name_and_by_hub_id_in_any_case(name: str) -> None:
    assert known_model(name).hf_id == "FunAudioLLM/CosyVoice2-0.5B"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFound) as caught:
        known_model("CosyVoice4")
    assert all(name in str(caught.value) for name in ["'CosyVoice4'", *KNOWN_MODELS])


@pytest.mark.parametrize("path", ["", "/llm.pt", "../llm.pt", "a/../../llm.pt", "..\\llm.pt", "."])
def test_unsafe_names_are_refused(path: str) -> None:
    with pytest.raises(DownloadError, match="is not a safe file name"):
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
    assert find_model(tmp_path) == find_model(str(tmp_path)) == tmp_path


def test_a_folder_is_found_under_the_name_that_modelscope_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_model("iic/CosyVoice2-0___5B") is known_model("CosyVoice2-0.5B")
    assert known_model("Fun-CosyVoice3-0.5B-2512").name == "Fun-CosyVoice3-0.5B"
    for home in (tmp_path / "hub" / "iic", models_home()):
        (home / "CosyVoice2-0___5B").mkdir(parents=True)
    assert find_model(tmp_path / "hub" / "iic" / "CosyVoice2-0.5B") == tmp_path / "hub" / "iic" / "CosyVoice2-0___5B"
    for name in ("CosyVoice2-0.5B", "iic/CosyVoice2-0.5B", "FunAudioLLM/CosyVoice2-0.5B", "CosyVoice2-0___5B"):
        assert find_model(name) == models_home() / "CosyVoice2-0___5B"
    monkeypatch.chdir(tmp_path / "hub")
    assert find_model("iic/CosyVoice2-0.5B") == Path("iic/CosyVoice2-0___5B")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIVAVOCE_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where the system knows no such user
    for find in (models_home, voices_home):
        with pytest.raises(InvalidRequest, match="no home directory; set VIVAVOCE_HOME to a folder"):
            find()
    with pytest.raises(ModelNotFound, match="'~nobody/model' is neither a folder nor"):
        find_model("~nobody/model")


def test_a_known_model_that_is_absent_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        find_model("cosyvoice2-0.5b")
    assert "`vivavoce download CosyVoice2-0.5B`" in str(caught.value)
    assert str(tmp_path / "home" / "models" / "CosyVoice2-0.5B") in str(caught.value)


def test_neither_folder_nor_name() -> None:
    with pytest.raises(
        ModelNotFound, match=r"neither a folder nor a known model; .*one of Fun-CosyVoice3-0.5B, CosyVoice2-0.5B, "
    ):
        find_model("./no-such-folder")


def test_a_model_of_another_token_rate_is_refused_with_the_reason() -> None:
    for name in ("CosyVoice-300M-25Hz", "iic/CosyVoice-300M-25Hz"):
        with pytest.raises(UnsupportedModel, match=rf"^model: {name} has 25 speech tokens a second.* or -Instruct$"):
            find_model(name)


def test_a_downloaded_model_is_found_until_a_file_is_lost() -> None:
    model = known_model("CosyVoice2-0.5B")
    folder = model_folder(model)
    folder.mkdir(parents=True)  # as a download leaves it that failed at once
    with pytest.raises(DownloadError, match="not downloaded to"):
        find_model(model.name)
    (folder / "llm.pt").write_bytes(b"12345")
    record = DownloadRecord(model.name, "hf", model.hf_id, "a" * 40, {"llm.pt": FileRecord(5, "0" * 64)})
    write_record(folder, record)
    assert find_model(model.name) == folder
    (folder / "llm.pt").unlink()
    with pytest.raises(DownloadError, match="not complete"):
        find_model(model.name)


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        *dict.fromkeys(("llm.pt", "llm.rl.pt", "flow.cache.pt", "flow.safetensors", "spk2info.pt"), True).items(),
        *dict.fromkeys(("speech_tokenizer_v3.onnx", "cosyvoice.yaml", "LICENSE.txt", "README.md"), True).items(),
        *dict.fromkeys(("CosyVoice-BlankEN/config.json", "CosyVoice-BlankEN/merges.txt"), True).items(),
        *dict.fromkeys(("CosyVoice-BlankEN/model.safetensors", "flow.decoder.estimator.fp32.onnx"), False).items(),
        *dict.fromkeys(("speech_tokenizer_v3.batch.onnx", "config.json"), False).items(),
        *dict.fromkeys(("asset/llm.pt", "../llm.pt", ".gitattributes", "model.py"), False).items(),
    ],
)
def test_what_inference_needs_of_a_repository(path: str, needed: bool) -> None:
    assert is_needed(path) is needed


NAME = "CosyVoice2-0.5B"
NEEDED = {"cosyvoice2.yaml", "llm.pt", "flow.pt", "hift.pt", "spk2info.pt", "CosyVoice-BlankEN/config.json"}
NEEDED |= {"campplus.onnx", "speech_tokenizer_v2.onnx", "CosyVoice-BlankEN/vocab.json"}


def fails(**arguments: Any) -> str:
    with pytest.raises(DownloadError) as caught:
        download(NAME, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def contents(folder: Path) -> dict[str, bytes]:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith((".", RECORD))}


@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_only_what_inference_needs_arrives(hub: Any, tmp_path: Path, source: Any) -> None:
    folder = download(NAME.lower(), source=source, endpoint=hub.endpoint)
    assert folder == tmp_path / "home" / "models" / NAME == find_model(NAME)
    assert contents(folder) == {path: hub.files[path] for path in NEEDED}


def test_the_record_pins_the_revision_and_every_file(hub: Any) -> None:
    folder = download(NAME, endpoint=hub.endpoint)
    record = json.loads((folder / RECORD).read_text())
    assert (record["model"], record["source"], record["revision"]) == (NAME, "hf", hub.commit)
    assert {path: file["sha256"] for path, file in record["files"].items()} == {
        path: hashlib.sha256(hub.files[path]).hexdigest() for path in NEEDED
    }


@pytest.mark.parametrize("revision", [None, "a" * 40])
def test_a_complete_folder_asks_the_hub_nothing(hub: Any, revision: str | None) -> None:
    download(NAME, endpoint=hub.endpoint)
    hub.seen.clear()
    download(NAME, endpoint=hub.endpoint, revision=revision)
    assert hub.seen == []


@pytest.mark.parametrize(("source", "branch"), [("hf", "main"), ("modelscope", "master")])
def test_a_branch_is_looked_up_again_but_same_files_stay(hub: Any, source: Any, branch: str) -> None:
    download(NAME, source=source, endpoint=hub.endpoint)
    hub.seen.clear()
    download(NAME, source=source, endpoint=hub.endpoint, revision=branch)
    assert len(hub.seen) == 1
    assert hub.transfers() == []


@pytest.mark.parametrize(
    ("source", "variable"), [("hf", "HF_ENDPOINT"), ("modelscope", "VIVAVOCE_MODELSCOPE_ENDPOINT")]
)
def test_the_endpoint_comes_from_the_environment(
    hub: Any, monkeypatch: pytest.MonkeyPatch, source: Any, variable: str
) -> None:
    monkeypatch.setenv(variable, hub.endpoint + "/")
    assert contents(download(NAME, source=source)).keys() == NEEDED
    assert not any(seen.path.startswith("//") for seen in hub.seen)


@pytest.mark.parametrize("given", ["argument", "environment"])
def test_the_token_never_reaches_another_host(hub: Any, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    if given == "environment":
        monkeypatch.setenv("HF_TOKEN", "secret\n")
    download(NAME, endpoint=hub.endpoint, token="secret" if given == "argument" else None)
    by_server = {
        server: {seen.authorization for seen in hub.seen if seen.server == server}
        for server in ("hub", "redirect", "storage")
    }
    assert by_server == {"hub": {"Bearer secret"}, "redirect": {"Bearer secret"}, "storage": {None}}


def test_a_broken_connection_is_resumed_in_the_same_call(hub: Any) -> None:
    hub.drops["llm.pt"] = [50_000, 20_000]
    folder = download(NAME, endpoint=hub.endpoint)
    assert contents(folder)["llm.pt"] == hub.files["llm.pt"]
    ranges = [seen.range for seen in hub.seen if seen.server == "storage" and seen.path == "llm.pt"]
    assert ranges == [None, "bytes=50000-", "bytes=70000-"]
    assert hub.sent["llm.pt"] == len(hub.files["llm.pt"])


def test_a_later_call_goes_on_where_the_first_stopped(hub: Any) -> None:
    hub.drops["llm.pt"] = [50_000, 0]
    assert "HF_ENDPOINT" in fails(endpoint=hub.endpoint)
    with pytest.raises(DownloadError, match="not complete"):
        find_model(NAME)
    folder = download(NAME, endpoint=hub.endpoint)
    assert contents(folder) == {path: hub.files[path] for path in NEEDED}
    assert hub.sent["llm.pt"] == len(hub.files["llm.pt"])


@pytest.mark.parametrize(
    ("path", "stale"),
    [("llm.pt", b"another revision"), ("llm.pt", b"x" * 200_000), ("cosyvoice2.yaml", b"sample_rate: 16000\n")],
)
def test_a_beginning_of_other_bytes_is_thrown_away(hub: Any, tmp_path: Path, path: str, stale: bytes) -> None:
    tmp_path.joinpath(f"{path}.part").write_bytes(stale)
    folder = download(NAME, endpoint=hub.endpoint, target=tmp_path)
    assert contents(folder)[path] == hub.files[path]


@pytest.mark.parametrize("path", ["llm.pt", "flow.pt"])
def test_wrong_bytes_are_deleted_and_named(hub: Any, tmp_path: Path, path: str) -> None:
    hub.corrupt = frozenset({path})
    message = fails(endpoint=hub.endpoint, target=tmp_path)
    content = hub.files[path]
    expected, got = (hashlib.sha256(data).hexdigest() for data in (content, bytes(len(content))))
    assert all(word in message for word in (path, expected, got))
    assert not (tmp_path / path).exists()
    assert not (tmp_path / f"{path}.part").exists()


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x"])
def test_a_file_of_another_size_than_announced_is_refused(hub: Any, tmp_path: Path, change: Any) -> None:
    listed = hub.files["cosyvoice2.yaml"]
    siblings = [{"rfilename": path, "size": len(content)} for path, content in hub.files.items()]
    hub.listing = json.dumps({"sha": hub.commit, "siblings": siblings}).encode()
    hub.files["cosyvoice2.yaml"] = change(listed)
    message = fails(endpoint=hub.endpoint, target=tmp_path)
    assert f"cosyvoice2.yaml: expected {len(listed)} bytes" in message


def test_a_small_file_of_other_bytes_is_refused(hub: Any, tmp_path: Path) -> None:
    hub.corrupt = frozenset({"cosyvoice2.yaml"})
    message = fails(endpoint=hub.endpoint, target=tmp_path)
    # as `git hash-object` says of the file
    assert (
        "cosyvoice2.yaml: expected 19 bytes with checksum 31d7c13af6247b38a2377f0122e5fafc5b47dc61, got 19" in message
    )
    assert not list(tmp_path.glob("cosyvoice2.yaml*"))


@pytest.mark.parametrize("missing", sorted(NEEDED - {"spk2info.pt"}))
@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_a_repository_without_a_needed_file_is_no_model(hub: Any, missing: str, source: Any) -> None:
    del hub.files[missing]
    assert f"lists no {missing} in " in fails(endpoint=hub.endpoint, source=source)
    assert hub.transfers() == []


@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_a_list_without_end_is_not_read(hub: Any, source: Any) -> None:
    hub.listing = b'{"siblings": [' + b" " * 8_000_000
    assert "lists more than 4000000 bytes" in fails(endpoint=hub.endpoint, source=source)
    hub.listing = None
    hub.listed_extra = tuple(f"llm.v{number}.pt" for number in range(100))
    assert f"lists {len(NEEDED) + 100} files, the limit is 100" in fails(endpoint=hub.endpoint, source=source)


def test_what_follows_a_redirect_is_not_read(hub: Any) -> None:
    hub.redirect_mb = 100
    download(NAME, endpoint=hub.endpoint)
    assert 0 < hub.redirected_mb < 100


@pytest.mark.parametrize("path", ["../precious", "{folder}/precious"])
def test_a_strangers_record_removes_nothing_elsewhere(hub: Any, tmp_path: Path, path: str) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "model"
    folder.mkdir()
    precious.write_bytes(b"kept")
    files = {path.format(folder=tmp_path): FileRecord(4, "0" * 64)}
    write_record(folder, DownloadRecord(NAME, "hf", NAME, "a" * 40, files))
    download(NAME, endpoint=hub.endpoint, target=folder, revision="main")
    assert precious.read_bytes() == b"kept"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": {"llm.pt": {"size": 1e999, "sha256": ""}}}', "[]"])
def test_a_record_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    assert read_record(tmp_path) is None


def test_the_token_is_not_sent_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("the hub is asked"))
    message = fails(endpoint="http://hub.example")
    assert message.startswith("endpoint: http://hub.example is not https, so that others could read the token; use")
    assert "secret" not in message


def test_an_update_replaces_adds_and_removes(hub: Any) -> None:
    folder = download(NAME, endpoint=hub.endpoint)
    hub.commit = "b" * 40
    hub.files["llm.safetensors"] = b"new language model" * 100
    hub.files["flow.pt"] = b"new flow" * 200
    for path in ("spk2info.pt", "hift.pt", "cosyvoice2.yaml"):
        hub.files[path] = hub.files[path].swapcase()  # of the same size
    del hub.files["llm.pt"]
    hub.seen.clear()
    download(NAME, endpoint=hub.endpoint, revision="b" * 40)
    assert contents(folder) == {path: hub.files[path] for path in NEEDED - {"llm.pt"} | {"llm.safetensors"}}


def test_without_checksums_a_branch_is_transferred_again(hub: Any) -> None:
    hub.publishes_checksums = False
    folder = download(NAME, source="modelscope", endpoint=hub.endpoint)
    hub.files["flow.pt"] = hub.files["flow.pt"].swapcase()
    download(NAME, source="modelscope", endpoint=hub.endpoint, revision="master")
    assert contents(folder)["flow.pt"] == hub.files["flow.pt"]


def test_an_update_that_is_cut_off_while_names_change_counts_as_incomplete(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(NAME, endpoint=hub.endpoint)
    hub.commit = "b" * 40
    hub.files["flow.pt"], hub.files["llm.pt"] = (hub.files[path].swapcase() for path in ("flow.pt", "llm.pt"))

    def only_flow(source: Path, target: Path) -> None:
        if target.name == "flow.pt":
            raise OSError(5, "Input/output error")
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", only_flow)
        assert "Input/output error" in fails(endpoint=hub.endpoint, revision="main")
    with pytest.raises(DownloadError, match="not complete"):
        find_model(NAME)
    assert contents(download(NAME, endpoint=hub.endpoint)) == {path: hub.files[path] for path in NEEDED}


def test_a_failed_update_leaves_the_old_revision_in_use(hub: Any) -> None:
    folder = download(NAME, endpoint=hub.endpoint)
    before = contents(folder)
    hub.commit = "b" * 40
    hub.files["flow.pt"], hub.files["llm.pt"] = b"new flow" * 200, b"new language model" * 200
    hub.corrupt = frozenset({"flow.pt"})
    fails(endpoint=hub.endpoint, revision="main")
    assert find_model(NAME) == folder
    assert {path: content for path, content in contents(folder).items() if not path.endswith(".part")} == before


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "set HF_TOKEN"), (404, "check the revision"), (500, "try again later")]
)
def test_a_refusal_says_what_to_do(hub: Any, tmp_path: Path, status: int, advice: str) -> None:
    hub.status = status
    message = fails(endpoint=hub.endpoint, target=tmp_path)
    for word in (f"answered {status}", advice, "by hand", str(tmp_path)):
        assert word in message


@pytest.mark.parametrize("name", ["../llm.pt", "/etc/llm.pt"])
@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_a_list_that_climbs_out_is_refused(hub: Any, tmp_path: Path, name: str, source: Any) -> None:
    hub.listed_extra = (name,)
    message = fails(source=source, endpoint=hub.endpoint, target=tmp_path / "in")
    assert repr(name) in message
    assert contents(tmp_path) == {"in/.vivavoce-download.lock": b""}


@pytest.mark.parametrize(
    "listing",
    [
        b"<html>welcome</html>",
        b"[]",
        b"[" * 100_000,
        b'{"sha": "a", "siblings": [{"rfilename": "llm.pt"}]}',
        b'{"sha": "a", "siblings": [{"rfilename": "llm.pt", "size": 1e999}]}',
        b'{"Data": null}',
    ],
)
@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_an_answer_that_is_no_list(hub: Any, listing: bytes, source: Any) -> None:
    hub.listing = listing
    assert "is not a file list" in fails(source=source, endpoint=hub.endpoint)


def test_offline_asks_nobody(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in fails(endpoint=hub.endpoint)
    assert hub.seen == []


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
def test_an_endpoint_that_cannot_be_reached(endpoint: str, tmp_path: Path) -> None:
    message = fails(endpoint=endpoint, target=tmp_path)
    assert all(word in message for word in ("cannot be reached", "HF_ENDPOINT", str(tmp_path)))


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("ALL_PROXY", "socks5://me:secret@127.0.0.1:1", r"needs the package socksio: pip install 'httpx\[socks\]'"),
        ("https_proxy", "socks5h://127.0.0.1:1", r"needs the package socksio"),
        ("HTTPS_PROXY", "ftp://me:secret@127.0.0.1:1", "cannot be used: correct it"),
        ("SSL_CERT_FILE", "/no/such/secret", "cannot be used: correct it"),
    ],
)
def test_a_proxy_or_certificate_of_the_environment_is_named(
    hub: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, advice: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequest, match=f"^network: the variable {variable} {advice}.*, or unset it$") as caught:
        download(NAME)
    assert "secret" not in str(caught.value)
    assert (download(NAME, endpoint=hub.endpoint) / "llm.pt").is_file()  # at this machine, without the proxy


def test_names_without_a_proxy_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "[::1]")
    with pytest.raises(InvalidRequest, match="the variable NO_PROXY cannot be used"):
        download(NAME)


def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:1")
    message = fails(endpoint="https://hub.invalid")
    assert "cannot be reached through the proxy of HTTPS_PROXY (" in message
    assert "secret" not in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_fills_up(hub: Any, tmp_path: Path) -> None:
    tmp_path.joinpath("llm.pt.part").symlink_to("/dev/full")
    assert f"{tmp_path} is full; free some space" in fails(endpoint=hub.endpoint, target=tmp_path)


def test_too_little_space_is_seen_beforehand(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(1000, 990, 10))
    assert "VIVAVOCE_HOME" in fails(endpoint=hub.endpoint)
    assert hub.transfers() == []


def test_one_folder_holds_one_model(hub: Any, tmp_path: Path) -> None:
    download(NAME, endpoint=hub.endpoint, target=tmp_path)
    with pytest.raises(DownloadError, match=f"holds {NAME}, not CosyVoice-300M"):
        download("CosyVoice-300M", endpoint=hub.endpoint, target=tmp_path)


def test_two_at_once_transfer_once(hub: Any) -> None:
    start = threading.Barrier(2)
    folders = []

    def run() -> None:
        start.wait()
        folders.append(download(NAME, endpoint=hub.endpoint))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2
    assert sorted(hub.transfers()) == sorted(NEEDED)
    assert len([seen for seen in hub.seen if seen.path.startswith("/api/")]) == 1


def test_progress_rises_to_the_total(hub: Any) -> None:
    steps: list[DownloadProgress] = []
    hub.drops["llm.pt"] = [50_000]
    download(NAME, endpoint=hub.endpoint, progress=steps.append)
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total == sum(len(hub.files[path]) for path in NEEDED)
    assert {step.file for step in steps} == {path for path in NEEDED if hub.files[path]}


def test_what_cannot_be_asked_for(hub: Any) -> None:
    with pytest.raises(ModelNotFound):
        download("CosyVoice4", endpoint=hub.endpoint)
    with pytest.raises(InvalidRequest, match="choose one of hf, modelscope"):
        download(NAME, source="github", endpoint=hub.endpoint)  # type: ignore[arg-type]
