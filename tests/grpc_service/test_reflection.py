"""The port describes itself: its files are those of the .proto files, and grpcurl finds its way by them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.grpc_service.calling import Caller, calling, failing, spoken
from tests.server.fake_backend import FakeBackend
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce_grpc import protos
from vivavoce_grpc.protos import FILES, SERVICES, message

PROTOS = Path(protos.__file__).parent
MANUAL = (Path(__file__).parents[2] / "docs" / "grpc.md").read_text(encoding="utf-8")
FOUND = ["vivavoce.v1.Speech", "cosyvoice.CosyVoice", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]


def test_what_is_compiled_is_what_the_files_say(tmp_path: Path) -> None:
    """Else compile them again, as `vivavoce_grpc.protos` says."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    out, names = tmp_path / "compiled.binpb", sorted(path.name for path in PROTOS.glob("*.proto"))
    assert protoc.main(["", f"-I{PROTOS}", "--include_source_info", f"--descriptor_set_out={out}", *names]) == 0
    assert FileDescriptorSet.FromString(out.read_bytes()) == FILES


async def reflected(caller: Caller, version: str = "v1", **question: Any) -> Any:
    call = caller.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")()
    await call.write(message("grpc.reflection.v1.ServerReflectionRequest")(host="here", **question).SerializeToString())
    answer = message("grpc.reflection.v1.ServerReflectionResponse").FromString(await call.read())
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    assert (answer.valid_host, answer.original_request.host) == ("here", "here")
    return answer


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_services_are_listed_and_described_with_their_comments(version: str) -> None:
    async with calling() as caller:
        listed = await reflected(caller, version, list_services="*")
        assert {service.name for service in listed.list_services_response.service} == set(FOUND) == set(SERVICES)
        described = {}
        for name in ("vivavoce.v1.Speech", "vivavoce.v1.Speech.Speak", "vivavoce.v1.Start", "vivavoce.v1.Start.voice"):
            answer = await reflected(caller, version, file_containing_symbol=name)
            (described[name],) = answer.file_descriptor_response.file_descriptor_proto
        (by_name,) = (
            await reflected(caller, version, file_by_filename="vivavoce.proto")
        ).file_descriptor_response.file_descriptor_proto
    assert set(described.values()) == {by_name}
    file = FileDescriptorProto.FromString(by_name)
    assert file in FILES.file
    assert any("0.5 to 2.0" in place.leading_comments for place in file.source_code_info.location)


@pytest.mark.parametrize(
    "question",
    [
        {"file_containing_symbol": "nobody.Knows"},
        {"file_by_filename": "../../etc/passwd"},
        {"all_extension_numbers_of_type": "vivavoce.v1.Start"},
        {"file_containing_extension": {"containing_type": "vivavoce.v1.Start", "extension_number": 1}},
        {},
    ],
)
async def test_what_is_not_there_is_said(question: dict[str, Any]) -> None:
    async with calling() as caller:
        answer = await reflected(caller, **question)
    assert (answer.WhichOneof("message_response"), answer.error_response.error_code) == ("error_response", 5)


async def test_who_has_no_key_learns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, new_entry(new_key(), "berta"))
    async with calling(keys=KeyRing(path)) as caller:
        assert (await failing(reflected(caller, list_services="")))[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("name", FOUND)
async def test_health_knows_every_service(name: str) -> None:
    asked = message("grpc.health.v1.HealthCheckRequest")(service=name).SerializeToString()
    async with calling() as caller:
        assert await caller.channel.unary_unary("/grpc.health.v1.Health/Check")(asked) == b"\x08\x01"


def lines_of(manual: str) -> list[str]:
    """The lines with grpcurl, each with what it continues on."""
    blocks = re.findall(r"^```\n(.*?)^```", manual, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if "grpcurl" in line]


async def shell(line: str, folder: Path) -> str:
    running = await asyncio.create_subprocess_shell(
        line, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 0, (line, told)
    return told.decode()


def replies_in(told: str) -> list[dict[str, Any]]:
    """The JSON objects that grpcurl prints one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (begin := told.find("{", at)) >= 0:
        reply, at = decoder.raw_decode(told, begin)
        found.append(reply)
    return found


async def test_the_manuals_lines_for_grpcurl(tmp_path: Path) -> None:
    if shutil.which("grpcurl") is None:
        pytest.skip("grpcurl is not installed")
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "berta"))
    (tmp_path / "me.wav").write_bytes(b"RIFF" * 20_000)
    lines = lines_of(MANUAL)
    assert len(lines) >= 8
    calm = {("", "calm"): VoiceSummary("calm", "built_in", True)}
    async with calling(FakeBackend(stored=calm)) as open_port, calling(keys=KeyRing(path)) as locked:
        for line in lines:
            port = locked.port if "KEY" in line else open_port.port
            told = await shell(line.replace("localhost:50000", f"127.0.0.1:{port}").replace("KEY", key), tmp_path)
            if "Speech/Speak" in line and "jq" not in line and "voice" in line:
                pcm = b"".join(base64.b64decode(one["audio"]["audio"]) for one in replies_in(told) if "audio" in one)
                assert pcm == spoken("Hello there.")
            if line.rstrip().endswith("list"):
                assert set(told.split()) == set(FOUND), shlex.split(line)
    assert [name for _, name in open_port.speaker.stored] == ["calm"]  # what was added was removed
