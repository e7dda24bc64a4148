"""A module like TensorRT 10's Python API, as far as it is used here, whose engines run in ONNX Runtime on the CPU.

Names, arguments and results are those of https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api; what
is not there raises AttributeError or TypeError, as it would.
"""

from __future__ import annotations

import ctypes
import enum
import pickle
from contextlib import nullcontext
from types import ModuleType

import numpy as np
import onnxruntime
import torch

__version__ = "10.9.0.34"


class DataType(enum.Enum):
    FLOAT, HALF, INT32 = range(3)


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class MemoryPoolType(enum.Enum):
    WORKSPACE = 0


class BuilderFlag(enum.Enum):
    FP16 = 0


_OF_ONNX = {"tensor(float)": DataType.FLOAT, "tensor(float16)": DataType.HALF, "tensor(int32)": DataType.INT32}
_NUMPY = {DataType.FLOAT: np.float32, DataType.HALF: np.float16, DataType.INT32: np.int32}


class Logger:
    WARNING = 2

    def __init__(self, min_severity):
        self.min_severity = min_severity


class Tensor:
    def __init__(self, given):
        self.name, self.dtype = given.name, _OF_ONNX[given.type]
        self.shape = tuple(size if isinstance(size, int) else -1 for size in given.shape)


class Network:
    inputs, outputs, content = (), (), b""

    @property
    def num_inputs(self):
        return len(self.inputs)

    def get_input(self, index):
        return self.inputs[index]

    def get_output(self, index):
        return self.outputs[index]


class OnnxParser:
    def __init__(self, network, logger):
        self.network, self.errors = network, []

    def parse(self, model, path=None):
        try:
            session = onnxruntime.InferenceSession(model)
        except Exception as error:
            self.errors.append(error)
            return False
        self.network.content = model
        self.network.inputs = [Tensor(one) for one in session.get_inputs()]
        self.network.outputs = [Tensor(one) for one in session.get_outputs()]
        return True

    @property
    def num_errors(self):
        return len(self.errors)

    def get_error(self, index):
        return self.errors[index]


class Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, input, min, opt, max):
        self.shapes[input] = (min, opt, max)


class Config:
    def __init__(self):
        self.flags, self.profiles, self.limits = [], [], {}

    def set_flag(self, flag):
        self.flags.append(flag)

    def set_memory_pool_limit(self, pool, pool_size):
        self.limits[pool] = pool_size

    def add_optimization_profile(self, profile):
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1


class Builder:
    built = 0

    def __init__(self, logger):
        pass

    def create_network(self, flags=0):
        assert flags == 0
        return Network()

    def create_builder_config(self):
        return Config()

    def create_optimization_profile(self):
        return Profile()

    def build_serialized_network(self, network, config):
        Builder.built += 1
        kinds = {one.name: one.dtype.name for one in (*network.inputs, *network.outputs)}
        assert ("HALF" in kinds.values()) == (BuilderFlag.FP16 in config.flags)
        for shapes in config.profiles:
            assert set(shapes) == {one.name for one in network.inputs}
        return pickle.dumps((network.content, kinds, [one.name for one in network.outputs], config.profiles))


class Context:
    def __init__(self, engine):
        self.engine, self.profile, self.shapes, self.addresses, self.runs = engine, None, {}, {}, 0

    def set_optimization_profile_async(self, profile_index, stream_handle):
        self.profile = self.engine.profiles[profile_index]
        return True

    def set_input_shape(self, name, shape):
        least, _, most = self.profile[name]
        self.shapes[name] = shape
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name, memory):
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle):
        self.runs += 1
        (output,) = self.engine.outputs
        given = {name: self._array(name, shape) for name, shape in self.shapes.items()}
        wide = {name: one if one.dtype == np.int32 else one.astype(np.float32) for name, one in given.items()}
        self._array(output, self.shapes["x"])[...] = self.engine.session.run([output], wide)[0]
        return True

    def _array(self, name, shape):
        dtype = np.dtype(_NUMPY[self.engine.get_tensor_dtype(name)])
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(self.addresses[name]), dtype).reshape(shape)


class Engine:
    def __init__(self, content, kinds, outputs, profiles):
        self.session, self.kinds = onnxruntime.InferenceSession(content), kinds
        self.outputs, self.profiles, self.contexts = outputs, profiles, []

    @property
    def num_io_tensors(self):
        return len(self.kinds)

    @property
    def num_optimization_profiles(self):
        return len(self.profiles)

    def get_tensor_name(self, index):
        return list(self.kinds)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode.OUTPUT if name in self.outputs else TensorIOMode.INPUT

    def get_tensor_dtype(self, name):
        return DataType[self.kinds[name]]

    def get_tensor_profile_shape(self, name, profile_index):
        return list(self.profiles[profile_index][name])

    def create_execution_context(self):
        self.contexts.append(Context(self))
        return self.contexts[-1]


class Runtime:
    def __init__(self, logger):
        pass

    def deserialize_cuda_engine(self, serialized_engine):
        try:
            return Engine(*pickle.loads(serialized_engine))
        except Exception:
            return None


class Stream:
    """In place of torch's, with what was waited for."""

    def __init__(self, device=None):
        self.waited, self.cuda_stream = [], id(self)

    def wait_stream(self, stream):
        self.waited.append(stream)

    def synchronize(self):
        pass


def install(monkeypatch):
    """Have `import tensorrt` find this module, and torch's CUDA find nothing missing."""
    import sys

    Builder.built = 0
    module: ModuleType = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    current = Stream()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return module
