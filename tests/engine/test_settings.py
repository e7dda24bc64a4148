"""What an operator may choose, and what is planned where nothing was chosen."""

import weakref
from dataclasses import replace

import pytest
import torch

from vivavoce.engine.settings import (
    CUDA_BYTES,
    FEWEST_BYTES,
    LATER_BYTES,
    LEAST_ROOM,
    MAX_POSITIONS,
    EngineSettings,
    host_memory,
    plan_memory,
    uses_kernels,
)
from vivavoce.errors import InvalidRequest


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"slots": 0}, "slots"), ({"slots": 5_000}, "slots"), ({"max_waiting": 0}, "max_waiting"),
     ({"slots_share": 0.0}, "slots_share"), ({"slots": "4"}, "slots: '4' is not a whole number"),
     ({"slots": 2.5}, "slots: 2.5 is"), ({"slots": True}, "slots: True is"),
     ({"memory_bytes": "8G"}, "memory_bytes: '8G' is"), ({"tp": "2"}, "tp: '2' is"),
     ({"max_waiting": None}, "max_waiting: None is"), ({"headroom": "0.5"}, "headroom: '0.5' is"),
     ({"deterministic": "no"}, "deterministic: 'no' is of type str, not bool"),
     ({"state_bytes": -1}, "state_bytes"), ({"memory_bytes": 0}, "memory_bytes"),
     ({"deterministic": True, "kernels": False}, "deterministic"),
     ({"lm_backend": "gguf"}, "lm_backend: 'gguf' is unknown; use one of torch, vllm, trtllm"),
     ({"flow_backend": ""}, "flow_backend: '' is unknown"),
     ({"flow_backend": "onnx", "deterministic": True}, "deterministic: flow_backend onnx"),
     ({"flow_backend": "tensorrt", "trt_concurrent": 0}, "trt_concurrent: 0 is outside of 1"),
     ({"trt_concurrent": 2}, "trt_concurrent: 2 is for flow_backend tensorrt"),
     ({"tp": 2}, "tp: 2 is for lm_backend vllm or trtllm"), ({"lm_backend": "vllm", "pp": 65}, "pp: 65 is outside")],
)  # fmt: skip
def test_settings_outside_their_limits_are_refused(settings, field):
    with pytest.raises(InvalidRequest, match=field):
        EngineSettings(**settings)


@pytest.mark.parametrize(
    ("chosen", "slots", "state_bytes"), [({}, 32, 1 << 28), ({"slots": 3, "state_bytes": 0}, 3, 0)]
)
def test_a_host_has_its_own_measures_and_what_was_chosen_stands(models, monkeypatch, chosen, slots, state_bytes):
    monkeypatch.setattr("vivavoce.engine.settings.host_memory", lambda: 1 << 30)
    plan = plan_memory(models, EngineSettings(**chosen))
    assert (plan.slots, plan.capacity, plan.state_bytes) == (slots, MAX_POSITIONS, state_bytes)


@pytest.fixture
def on_a_gpu(models, monkeypatch):
    """Models that say that they are on a device with 100 GiB free and 2 GiB of weights."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((100 << 30) + LATER_BYTES, 139 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 << 30)
    monkeypatch.setattr("vivavoce.engine.settings.usable", lambda device: True)
    return replace(models, device=torch.device("cuda"), dtype=torch.float16)


def slot_bytes(models, plan):
    lm = models.config.lm
    return 2 * lm.num_layers * lm.num_kv_heads * lm.head_dim * plan.capacity * 2  # keys and values in 16 bit


def test_a_device_is_divided(on_a_gpu):
    plan = plan_memory(on_a_gpu, EngineSettings())
    assert plan.slots == 256
    assert plan.slots_bytes == 257 * slot_bytes(on_a_gpu, plan)
    assert 8.2e9 < plan.batches_bytes < 8.3e9
    assert plan.num_bytes == 100 << 30
    assert plan.batch_frames == 16_384


def test_another_runtime_s_language_model_has_a_share_of_the_device(on_a_gpu):
    outline = replace(on_a_gpu, lm=on_a_gpu.lm.__class__(on_a_gpu.config.lm).to("meta"))
    whole, plan = plan_memory(on_a_gpu, EngineSettings()), plan_memory(outline, EngineSettings(lm_backend="vllm"))
    assert (plan.slots, plan.capacity, plan.batches_bytes) == (256, MAX_POSITIONS, whole.batches_bytes)
    assert plan.num_bytes == whole.num_bytes
    assert plan.slots_bytes == pytest.approx(plan.num_bytes / 4, abs=1)
    half = plan_memory(outline, EngineSettings(lm_backend="vllm", slots=9, slots_share=0.5))
    assert (half.slots, half.slots_bytes) == (9, 2 * plan.slots_bytes)


def test_no_more_memory_is_planned_than_may_be_taken(on_a_gpu):
    for gigabytes, frames in ((8, 2_048), (16, 4_096), (62, 16_384)):
        plan = plan_memory(on_a_gpu, EngineSettings(memory_bytes=gigabytes << 30))
        assert plan.batch_frames == frames
        assert (2 << 30) + CUDA_BYTES + plan.num_bytes == gigabytes << 30
    plan, room = plan_memory(on_a_gpu, EngineSettings(memory_bytes=12 << 30, kernels=False)), (10 << 30) - CUDA_BYTES
    assert (plan.slots_bytes + plan.state_bytes, plan.batch_frames) == (room - int(0.25 * room), None)


def test_what_batches_need_is_told_where_it_does_not_fit(on_a_gpu):
    plan = plan_memory(on_a_gpu, EngineSettings(memory_bytes=5 << 30, slots=8))
    assert plan.batches_bytes == FEWEST_BYTES
    assert plan.slots_bytes + plan.state_bytes <= (3 << 30) - CUDA_BYTES < plan.num_bytes


class Held:
    """Stands for what a closed engine leaves: it knows itself, so only the collector frees it."""

    def __init__(self):
        self.itself = self


def test_what_is_left_of_closed_engines_is_freed_before_memory_is_divided(on_a_gpu):
    held = weakref.ref(Held())
    plan_memory(on_a_gpu, EngineSettings())
    assert held() is None


def test_kernels_run_where_they_are_faster(models, on_a_gpu):
    assert uses_kernels(on_a_gpu, EngineSettings())
    assert not uses_kernels(replace(on_a_gpu, dtype=torch.float32), EngineSettings())
    assert not uses_kernels(models, EngineSettings())
    assert uses_kernels(models, EngineSettings(kernels=True))
    assert uses_kernels(models, EngineSettings(deterministic=True))
    assert not uses_kernels(on_a_gpu, EngineSettings(kernels=False))


def test_kernels_that_cannot_run_are_refused(models, monkeypatch):
    monkeypatch.setattr("vivavoce.engine.settings.usable", lambda device: False)
    for settings, field in (({"kernels": True}, "kernels"), ({"deterministic": True}, "deterministic")):
        with pytest.raises(InvalidRequest, match=field):
            uses_kernels(models, EngineSettings(**settings))


def test_slots_that_were_asked_for_take_from_the_state(on_a_gpu):
    few, many = (plan_memory(on_a_gpu, EngineSettings(slots=slots)) for slots in (8, 1024))
    assert few.state_bytes - many.state_bytes == (1024 - 8) * slot_bytes(on_a_gpu, few)


@pytest.mark.parametrize(
    ("free", "settings", "message"),
    [
        (LATER_BYTES + LEAST_ROOM - 1, {}, r"memory: \d+ bytes of cuda are free"),
        (100 << 30, {"memory_bytes": (2 << 30) + CUDA_BYTES + LEAST_ROOM - 1}, "memory_bytes"),
        (100 << 30, {"slots": 4000, "memory_bytes": 4 << 30}, "memory: 4000 slots take"),
    ],
)
def test_too_little_memory_is_refused(on_a_gpu, monkeypatch, free, settings, message):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 139 << 30))
    with pytest.raises(InvalidRequest, match=message):
        plan_memory(on_a_gpu, EngineSettings(**settings))


GROUPS_2 = {
    "memory.max": "max",
    "a/memory.max": "2147483648",
    "a/b/memory.max": "max",
    "a/b/c/memory.max": "3000000000",
}
GROUPS_1 = {"memory/memory.limit_in_bytes": "1000000000", "memory/a/memory.limit_in_bytes": "9223372036854771712"}


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b/c", GROUPS_2, 2 << 30),
        ("0::/", {"memory.max": "1000000000"}, 10**9),
        ("4:memory:/a\n3:cpu:/b\n0::/", GROUPS_1, 10**9),
        ("4:cpu,memory:/docker/of-the-host\n0::/", GROUPS_1, 10**9),
        ("0::/a", {"a/memory.max": "max"}, None),
        ("4:cpu:/a", GROUPS_1, None),
    ],
)
def test_the_memory_of_a_process_is_what_its_control_groups_leave_it(tmp_path, groups, files, limit):
    known, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    for name, content in files.items():
        (mounted / name).parent.mkdir(parents=True, exist_ok=True)
        (mounted / name).write_text(content + "\n")
    machine = host_memory(known, mounted)
    assert machine > 3 << 30
    known.write_text(groups + "\n")
    assert host_memory(known, mounted) == (limit or machine)
