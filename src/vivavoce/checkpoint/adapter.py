"""Reads LoRA adapters of a language model (arXiv:2106.09685) from folders that PEFT writes.

`adapter_config.json` has the settings, `adapter_model.safetensors` a pair of matrices for each adapted linear layer. An
adapter that changes anything else in the model is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vivavoce.checkpoint.config import MAX_ADAPTER_RANK, LMConfig
from vivavoce.checkpoint.folder import read_json, refuse_pointer
from vivavoce.errors import CheckpointError, InvalidRequest

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PRODUCTS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The matrix products that the engine computes in each layer, and the PEFT modules that each product combines."""
TARGETS = tuple(target for targets in PRODUCTS.values() for target in targets)
_MAX_NAMES_BYTES = 4 << 20
_TENSOR = re.compile(rf"(?:.+\.)?layers\.(\d{{1,4}})\.(?:self_attn|mlp)\.({'|'.join(TARGETS)})\.lora_([AB])\.weight")
_UNSUPPORTED = {
    "use_dora": "DoRA scales whole weights; train without it",
    "lora_bias": "biases are not supported; train without them",
    "modules_to_save": "whole modules cannot differ between requests; train without them, or merge the adapter",
    "trainable_token_indices": "embeddings cannot differ between requests; train without them",
    "target_parameters": "only modules can be targets; name them in target_modules",
    "rank_pattern": "every target needs the same rank; train with r alone",
    "alpha_pattern": "every target needs the same alpha; train with lora_alpha alone",
    "layer_replication": "layers cannot be repeated; train without it",
    "fan_in_fan_out": "the model's weights are [outputs, inputs]; train without it",
    "use_qalora": "QA-LoRA pools its inputs; train without it",
}
"""Unsupported settings, with advice; an adapter is refused if one of them is not false, null or empty."""
_CHANGES_WEIGHTS = ("pissa", "olora", "corda", "loftq")
"""Refused values of `init_lora_weights`: they change the model's own weights, which other requests use, too."""


@dataclass(frozen=True, eq=False)
class AdapterWeights:
    """Weights of an adapter, float32. rank: the rank of all pairs. pairs: matrices A [rank, inputs] and B [outputs,
    rank] by (layer, target). The adapter adds B·A·x to the target's output; B includes the adapter's scale."""

    rank: int
    pairs: Mapping[tuple[int, str], tuple[Tensor, Tensor]]

    @property
    def targets(self) -> tuple[str, ...]:
        """The modules that the adapter changes in at least one layer."""
        return tuple(target for target in TARGETS if any(target == one for _, one in self.pairs))


def target_sizes(config: LMConfig) -> dict[str, tuple[int, int]]:
    """Return the number of outputs and of inputs of each target."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": (heads, hidden),
        "k_proj": (kv_heads, hidden),
        "v_proj": (kv_heads, hidden),
        "o_proj": (hidden, heads),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def read_adapter(folder: Path, config: LMConfig, most_rank: int = MAX_ADAPTER_RANK) -> AdapterWeights:
    """Read an adapter for a language model of these sizes. Raises InvalidRequest if files are missing or damaged,
    shapes do not fit, the rank is above `most_rank`, or the adapter uses a feature that is not supported."""
    try:
        settings = read_json(folder / SETTINGS, "name a folder that PEFT has written")
    except CheckpointError as error:
        raise InvalidRequest(f"adapter: {error}") from None
    for problem in _problems(settings, most_rank):
        raise InvalidRequest(f"adapter: {SETTINGS} of {folder.name}: {problem}")
    rank, alpha = settings["r"], settings["lora_alpha"]
    scale = alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank
    found = _tensors(folder, config, rank)
    pairs = {}
    for (layer, target), halves in sorted(found.items()):
        if len(halves) < 2:
            there, lacking = ("A", "B") if "A" in halves else ("B", "A")
            raise InvalidRequest(
                f"adapter: {WEIGHTS} of {folder.name}: layer {layer} has lora_{there} of {target} without its "
                f"lora_{lacking}; save it again"
            )
        pairs[layer, target] = halves["A"].float(), halves["B"].float() * scale
    if not pairs:
        raise InvalidRequest(f"adapter: {WEIGHTS} of {folder.name}: it holds no tensor; save it again")
    return AdapterWeights(rank, pairs)


def _problems(settings: Mapping[str, Any], most_rank: int) -> Iterator[str]:
    if settings.get("peft_type") != "LORA":
        yield f"peft_type is {_shown(settings.get('peft_type'))}, not LORA; train a LoRA adapter"
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= most_rank:
        yield f"r is {_shown(rank)}, outside of 1 … {most_rank}; choose a rank inside, or raise max_adapter_rank"
    if type(alpha) not in (int, float) or not math.isfinite(alpha):  # type: ignore[arg-type]
        yield f"lora_alpha is {_shown(alpha)}, not a number; save the adapter again"
    if settings.get("bias", "none") != "none":
        yield f"bias is {_shown(settings['bias'])}, not none; train without biases"
    for field, remedy in _UNSUPPORTED.items():
        if settings.get(field):
            yield f"{field} is {_shown(settings[field])}; {remedy}"
    begun = settings.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_WEIGHTS):
        yield f"init_lora_weights is {_shown(begun)}, which changes the model's own weights; convert it to plain LoRA"
    targets = settings.get("target_modules")
    for target in targets if isinstance(targets, list) else ():
        if str(target).rpartition(".")[2] not in TARGETS:
            yield f"target_modules has {_shown(target)}; choose of {', '.join(TARGETS)}"


def _tensors(folder: Path, config: LMConfig, rank: int) -> dict[tuple[int, str], dict[str, Tensor]]:
    """Read the matrices A and B of each layer and target."""
    path, sizes, label = folder / WEIGHTS, target_sizes(config), f"adapter: {WEIGHTS} of {folder.name}"
    most = config.num_layers * sum(map(sum, sizes.values())) * rank * 4 + _MAX_NAMES_BYTES
    found: dict[tuple[int, str], dict[str, Tensor]] = {}
    try:
        refuse_pointer(path)
        if (size := path.stat().st_size) > most:
            raise InvalidRequest(
                f"{label}: {size} bytes are more than the {most} that rank {rank} takes; it belongs to another model"
            )
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            for name in names:
                if not (match := _TENSOR.fullmatch(name)):
                    raise InvalidRequest(
                        f"{label}: {_shown(name)} is not lora_A or lora_B of {', '.join(TARGETS)}; train only these"
                    )
                layer, target, half = int(match[1]), match[2], match[3]
                outputs, inputs = sizes[target]
                wanted = [rank, inputs] if half == "A" else [outputs, rank]
                if layer >= config.num_layers or (shape := file.get_slice(name).get_shape()) != wanted:
                    problem = (
                        f"layer {layer}, the model has {config.num_layers}"
                        if layer >= config.num_layers
                        else f"shape {shape}, expected {wanted}"
                    )
                    raise InvalidRequest(f"{label}: {_shown(name)} has {problem}; it belongs to another model")
                tensor = file.get_tensor(name)
                if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                    raise InvalidRequest(f"{label}: {_shown(name)} has numbers that are not finite; train it again")
                found.setdefault((layer, target), {})[half] = tensor
    except CheckpointError as error:
        raise InvalidRequest(f"adapter: {error}") from None
    except OSError as error:
        pickled = "; adapter_model.bin is a pickle: save it as safetensors" if path.with_suffix(".bin").exists() else ""
        raise InvalidRequest(
            f"{label}: it cannot be read ({error.strerror or type(error).__name__}){pickled or '; check the folder'}"
        ) from None
    except SafetensorError:
        raise InvalidRequest(f"{label}: it is damaged, or not a safetensors file; save it again") from None
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
