"""vLLM as the runtime of the language model: its asynchronous engine loads the merged folder and uses our sampling.

Written for releases 0.32 and 0.33; 0.32.0 was run, on a CPU.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch

from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.errors import EngineStopped, StageFailed
from vivavoce.models.build import LanguageModel, Models
from vivavoce_runtimes.streamed_lm import Ask, import_runtime

INSTALL = "pip install 'vllm>=0.32,<0.34' into an environment of its own, beside vivavoce"

OWNER = "VIVAVOCE_VLLM_OWNER"
"""The environment variable that tells vLLM's processes which process started them."""
_ENVIRONMENT = {
    # vLLM's processes would log to standard output, which is for audio and figures.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Spawned processes import `vllm_sampler`, which ends them when this process ends.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The newer runner has another interface for logits processors; it needs a GPU and could not be tested.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # On a CPU vLLM would take half of the host's memory, and pin threads to cores, also those of this process.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Environment variables that vLLM reads at import; values that the user has set stay."""


class VllmRuntime:
    """The `TokenRuntime` of vLLM. MissingDependency: as `import_runtime`; StageFailed: vLLM cannot start."""

    name = "vllm"

    def __init__(
        self, folder: Path, models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan
    ) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ[OWNER] = str(os.getpid())
        vllm = import_runtime("vllm", (0, 32), (0, 34), INSTALL)
        engines, errors = import_module("vllm.v1.engine.async_llm"), import_module("vllm.v1.engine.exceptions")
        self._dead, self._params, self._numbers = errors.EngineDeadError, vllm.SamplingParams, itertools.count()
        self._kinds = import_module("vllm.sampling_params").RequestOutputKind
        device, share = models.device, {}
        if memory.slots_bytes:
            total = torch.cuda.get_device_properties(device).total_memory
            share["gpu_memory_utilization"] = memory.slots_bytes / total
        arguments = vllm.AsyncEngineArgs(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype=str(models.dtype).removeprefix("torch."),
            max_model_len=memory.capacity,
            max_num_seqs=memory.slots,
            tensor_parallel_size=settings.tp,
            pipeline_parallel_size=settings.pp,
            logits_processors=[import_module("vivavoce_runtimes.vllm_sampler").RepetitionAware],
            # On a CPU vLLM would compile code, which needs a C++ compiler.
            enforce_eager=device.type == "cpu",
            **share,
        )
        try:
            self._engine = engines.AsyncLLM.from_engine_args(arguments)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise StageFailed(f"lm_backend: vllm could not start ({reason}); its own log above says why") from error

    @property
    def healthy(self) -> bool:
        return self._engine is not None and not self._engine.errored

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[int], None]:
        params = self._params(
            temperature=0.0,  # the sampler leaves only one id
            max_tokens=ask.most,
            stop_token_ids=list(ask.ends),
            detokenize=False,
            output_kind=self._kinds.DELTA,
            extra_args={"draws": asdict(ask.draws)},
        )
        prompt, number = {"prompt_token_ids": list(ask.prompt)}, str(next(self._numbers))
        try:
            async with aclosing(self._engine.generate(prompt, params, number)) as outputs:
                async for output in outputs:
                    yield output.outputs[0].token_ids
        except self._dead as error:
            raise EngineStopped("lm_backend: vllm's engine has stopped, its own log says why; start again") from error

    def close(self) -> None:
        engine, self._engine = self._engine, None
        engine.shutdown()
