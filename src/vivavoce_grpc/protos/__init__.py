"""Messages of the gRPC port: .proto files for people and clients, and their compiled form for this program.

Message classes are made at run time from `compiled.binpb`, because generated code works with one protobuf release only.
A test compares this file with the .proto files. After a change of a .proto file, run in this folder:

    python -m grpc_tools.protoc -I . --include_source_info --descriptor_set_out=compiled.binpb *.proto
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

FILES = FileDescriptorSet.FromString(files(__name__).joinpath("compiled.binpb").read_bytes())
POOL = DescriptorPool()  # a separate pool, because the process may hold generated code for the same files
for _file in FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())
SERVICES = tuple(f"{file.package}.{service.name}" for file in FILES.file for service in file.service)


def message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(name))
