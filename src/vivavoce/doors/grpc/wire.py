"""Message classes from a table of fields, made at run time: no generated code that is bound to one protobuf release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


@dataclass(frozen=True)
class Field:
    """One field; type: "string", "bytes", "int32" or the name of a message in the same file."""

    name: str
    number: int
    type: str
    oneof: str | None = None


def file_descriptor(name: str, package: str, messages: Mapping[str, Sequence[Field]]) -> FileDescriptorProto:
    """A proto3 file of these messages; at most one oneof in each."""
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for field in fields:
            added = message.field.add(name=field.name, number=field.number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if field.type in _TYPES:
                added.type = _TYPES[field.type]
            else:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{field.type}"
            if field.oneof is not None:
                if not message.oneof_decl:
                    message.oneof_decl.add(name=field.oneof)
                added.oneof_index = 0
    return file


def message_classes(file: FileDescriptorProto) -> dict[str, type[Message]]:
    """The classes of a file's messages, by name."""
    # A pool of its own: the process may hold generated code for the same file.
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: GetMessageClass(descriptor) for name, descriptor in found.items()}
