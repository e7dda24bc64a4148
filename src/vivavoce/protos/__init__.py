"""What crosses the gRPC port: .proto files to read and to make clients from, and their compiled form for this program.

Its messages are made at run time from `compiled.binpb`, so that no generated code is bound to one protobuf release. A
test compares the two; after a change, in this folder:

    python -m grpc_tools.protoc -I . --include_source_info --descriptor_set_out=compiled.binpb *.proto
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

FILES = FileDescriptorSet.FromString(files(__name__).joinpath("compiled.binpb").read_bytes())
"""With their comments."""
POOL = DescriptorPool()  # of its own: the process may hold generated code for the same files
for _file in FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())
SERVICES = tuple(f"{file.package}.{service.name}" for file in FILES.file for service in file.service)
"""Their full names."""


def message(name: str) -> Any:
    """The class of the message of this full name."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))
