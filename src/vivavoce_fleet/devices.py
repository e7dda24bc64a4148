"""Chooses the devices of several engines from the operator's options; needs no torch."""

from __future__ import annotations

import ctypes
import os

from vivavoce.errors import InvalidRequest


def devices_of(gpus: str | None, engines: int, device: str) -> list[str]:
    """Return each engine's device: one engine per GPU of `gpus` ("all" or "0,1"), or `engines` engines on `device`.

    InvalidRequest: CUDA's driver does not know a GPU, a GPU is named twice, or both options are given.
    """
    if gpus is None:
        return [device] * engines
    if engines > 1 or device != "auto":
        raise InvalidRequest(f"gpus: {gpus} gives each GPU one engine; leave it out, or engines and device")
    present = count_gpus()
    try:
        numbers = list(range(present)) if gpus == "all" else [int(number) for number in gpus.split(",")]
    except ValueError:
        raise InvalidRequest(f"gpus: {gpus!r} is neither all nor numbers such as 0,1; give one of them") from None
    if not numbers or len(set(numbers)) < len(numbers) or not 0 <= min(numbers) <= max(numbers) < present:
        raise InvalidRequest(f"gpus: {gpus} is empty, not there, or named twice; here are {present}, counted from 0")
    return [f"cuda:{number}" for number in numbers]


def seen_alone(device: str) -> tuple[str, dict[str, str]]:
    """Return the device's name in a process that sees only this GPU, and the environment variables of that process.

    A process that sees all GPUs may take memory on two: CUDA gives every new thread device 0 by default.
    """
    if not device.startswith("cuda:"):
        return device, {}
    number, seen = int(device[5:]), [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return "cuda:0", {"CUDA_VISIBLE_DEVICES": seen[number] if number < len(seen) else str(number)}


def count_gpus() -> int:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
