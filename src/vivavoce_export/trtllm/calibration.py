"""Calibration: run the model on speech prompts, layer by layer, and record the ranges of its activations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.checkpoint.weights import LM_NAMES, read_tensors
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.models.layers import RMSNorm, rotary_tables
from vivavoce.models.lm.qwen2 import Layer
from vivavoce_export.files import cast
from vivavoce_export.hf_folder import Source
from vivavoce_export.merged_lm import EMBEDDING, FINAL_NORM, QwenSizes, TensorReader
from vivavoce_export.trtllm.layers import LINEARS
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary

Change = Callable[[Tensor], Tensor]
"""Rounds a tensor to the int8 values that an engine would use, and keeps the shape."""
LayerEffects = tuple[Mapping[str, Change], Change | None]
"""Functions that round a layer's activations as an engine does: for each matrix, by its Hugging Face name within the
layer, a function of its inputs [..., inputs]; and a function of keys and values [..., head_dim], or None."""
_TEXT, _SPEECH, _IDS = "text_ids", "speech_ids", "ids"
_RANDOM_PROMPTS, _RANDOM_LENGTH = 4, 64
_WITHOUT_ROUNDING = "calibration computes in it; give recorded ranges, or leave out the options that calibrate"
_RECORDED_IDS = "calibration_ids"


@dataclass(frozen=True)
class Prompt:
    """ids: of the merged model; spoken_from: the first position whose logits predict a speech token."""

    ids: tuple[int, ...]
    spoken_from: int = 0


def _check_ids(field: str, ids: Sequence[int], limit: int) -> None:
    """Refuse ids outside 0 … limit − 1, because they have another meaning in the merged vocabulary, or none."""
    strange = [one for one in (min(ids, default=0), max(ids, default=0)) if not 0 <= one < limit]
    if strange:
        raise InvalidRequest(
            f"calibration: {field} has the id {strange[0]}, the model has 0 … {limit - 1}; record the prompts with "
            "this model"
        )


def _speech_prompt(vocabulary: MergedVocabulary, text: Sequence[int], speech: Sequence[int], origin: str) -> Prompt:
    """Make the model's input for one utterance: `<|sos|>`, text ids, `<|task_id|>`, then speech tokens."""
    _check_ids(f"{_TEXT} of {origin}", text, vocabulary.text_size)
    _check_ids(f"{_SPEECH} of {origin}", speech, vocabulary.num_speech_tokens)
    ids = (vocabulary.sos, *text, vocabulary.task, *(vocabulary.speech(token) for token in speech))
    return Prompt(ids, spoken_from=len(text) + 1)


def voices_prompts(path: Path, vocabulary: MergedVocabulary) -> tuple[Prompt, ...]:
    """Make a prompt for each speaker of a spk2info.pt who has the text and the speech tokens of a recording there."""
    saved = ((name, entry.prompt) for name, entry in read_spk2info(path).items())
    return tuple(
        _speech_prompt(
            vocabulary, prompt.text_ids.tolist(), prompt.llm_speech_tokens.tolist(), f"{name!r} in {path.name}"
        )
        for name, prompt in saved
        if prompt is not None
    )


def read_prompts(path: Path, source: Source) -> tuple[Prompt, ...]:
    """Read prompts from a file: a spk2info.pt, or a JSON list of objects.

    An object is {"text_ids": […], "speech_ids": […]} with text ids and speech tokens, or {"ids": […]} with ids of the
    merged model. CheckpointError: the file is missing. InvalidRequest: it has no prompts, or has unknown ids.
    """
    if path.suffix == ".pt":
        prompts = voices_prompts(path, _known_vocabulary(path, source))
    else:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise CheckpointError(f"calibration: {path.name} is not readable JSON; check the path") from None
        if not isinstance(data, list) or not all(isinstance(entry, Mapping) for entry in data):
            raise InvalidRequest(f"calibration: {path.name} is not a list of prompts; see `export trtllm --help`")
        prompts = tuple(_prompt(entry, path, source) for entry in data)
    if not prompts:
        raise InvalidRequest(f"calibration: {path.name} holds no prompts of speech; give one with text and tokens")
    return prompts


def random_prompts(source: Source) -> tuple[Prompt, ...]:
    """Make prompts of random ids, equal in each call. They can show that two models are equal, not that one is good."""
    generator, vocabulary = torch.Generator().manual_seed(0), source.vocabulary

    def draw(below: int) -> list[int]:
        drawn: Tensor = torch.randint(below, (_RANDOM_LENGTH,), generator=generator)
        return drawn.tolist()

    def prompt() -> Prompt:
        if vocabulary is None:
            return Prompt(tuple(draw(source.sizes.vocab_size)))
        text, speech = draw(vocabulary.text_size), draw(vocabulary.num_speech_tokens)
        return _speech_prompt(vocabulary, text, speech, "random prompts")

    return tuple(prompt() for _ in range(_RANDOM_PROMPTS))


def _known_vocabulary(path: Path, source: Source) -> MergedVocabulary:
    if source.vocabulary is None:
        raise InvalidRequest(
            f"calibration: {path.name} holds speech tokens, and the model's folder has no tokenizer that says where "
            "they begin; give prompts as merged ids, or convert the official folder"
        )
    return source.vocabulary


def _prompt(entry: Mapping[str, Any], path: Path, source: Source) -> Prompt:
    rows = {name: entry.get(name) for name in ((_IDS,) if _IDS in entry else (_TEXT, _SPEECH))}
    for name, ids in rows.items():
        if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
            raise InvalidRequest(f"calibration: {path.name}: {name} of a prompt is not a list of ids; record it again")
    if _IDS not in entry:
        return _speech_prompt(_known_vocabulary(path, source), entry[_TEXT], entry[_SPEECH], path.name)
    _check_ids(f"{_IDS} of {path.name}", entry[_IDS], source.sizes.vocab_size)
    return Prompt(tuple(entry[_IDS]))


@torch.inference_mode()
def hidden_states(
    sizes: QwenSizes,
    reader: TensorReader,
    prompts: Sequence[Prompt],
    *,
    rounded_to: torch.dtype | None = None,
    effects: Callable[[int], LayerEffects] = lambda _: ({}, None),
    observe: Callable[[str, Tensor], None] | None = None,
    layer_done: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """Compute the head's inputs, [time, hidden] float32 for each prompt. Each prompt runs separately, layer by layer.

    rounded_to: dtype to which weights are rounded; products are float32. effects: layer → the engine's rounding.
    observe: called with a name as in `measure`, and the inputs or outputs [1, time, …] of this name's matrix.
    """

    def wide(tensor: Tensor, name: str) -> Tensor:
        return (tensor if rounded_to is None else cast(tensor, rounded_to, name, _WITHOUT_ROUNDING)).float()

    ids = torch.tensor([one for prompt in prompts for one in prompt.ids])
    embedded = torch.zeros(len(ids), sizes.hidden_size)
    for block in sizes.table_blocks:
        here = (ids >= block.start) & (ids < block.stop)
        if here.any():
            embedded[here] = wide(reader.read(EMBEDDING, block)[ids[here] - block.start], EMBEDDING)
    rows = [row[None] for row in embedded.split([len(prompt.ids) for prompt in prompts])]
    for index in range(sizes.num_layers):
        prefix = f"model.layers.{index}."
        with torch.device("meta"):
            layer = Layer(sizes).requires_grad_(False)
        for name in sizes.layer_shapes:  # load tensors one by one, to free a tensor before the next one is read
            state = {_own_name(name): wide(reader.read(prefix + name), prefix + name)}
            layer.load_state_dict(state, strict=False, assign=True)
        changes, cached = effects(index)
        for name, change in changes.items():
            linear = layer.get_submodule(_own_name(name))
            linear.register_forward_pre_hook(lambda _, given, change=change: change(given[0]))
        if observe is not None:
            _observe(layer, prefix, observe)
        rows = [_run(layer, sizes, row, cached) for row in rows]
        layer_done()
    norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
    norm.weight = nn.Parameter(wide(reader.read(FINAL_NORM), FINAL_NORM), requires_grad=False)
    return [norm(row)[0] for row in rows]


def _run(layer: Layer, sizes: QwenSizes, row: Tensor, cached: Change | None) -> Tensor:
    positions = torch.arange(row.shape[1])[None]
    cos, sin = rotary_tables(positions, sizes.head_dim, sizes.rope_theta)
    mask = torch.arange(row.shape[1]) <= positions[:, None, :, None]
    kept: Change = cached or (lambda tensor: tensor)
    output: Tensor = layer(row, cos, sin, mask, lambda key, value: (kept(key), kept(value)))
    return output


def _observe(layer: Layer, prefix: str, observe: Callable[[str, Tensor], None]) -> None:
    for name in LINEARS:

        def see(_: nn.Module, given: tuple[Tensor], output: Tensor, name: str = prefix + name) -> None:
            observe(f"{name}.x", given[0])
            observe(f"{name}.y", output)

        layer.get_submodule(_own_name(name)).register_forward_hook(see)


def _own_name(name: str) -> str:
    return LM_NAMES.to_ours(f"llm.model.model.layers.0.{name}").removeprefix("layers.0.")


@dataclass(frozen=True, eq=False)
class Calibration:
    """Prompts to measure ranges on, or the ranges that `measure` recorded earlier."""

    prompts: tuple[Prompt, ...] = ()
    recorded: Mapping[str, Tensor] | None = None

    def digest(self) -> str:
        mark = hashlib.sha256(json.dumps([prompt.ids for prompt in self.prompts]).encode())
        for name, tensor in sorted((self.recorded or {}).items()):
            mark.update(name.encode())
            # Hash the raw bytes, because numpy has no bfloat16.
            mark.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return mark.hexdigest()

    def check_fits(self, sizes: QwenSizes) -> None:
        """Refuse a calibration that has neither prompts nor ranges, or has ranges of another model."""
        if self.recorded is not None:
            _check_ranges(self.recorded, sizes, "the recorded file")
        elif not self.prompts:
            raise InvalidRequest(
                "calibration: the model has no voice with a transcript and tokens; give --calibration FILE"
            )


def read_calibration(path: Path, source: Source) -> Calibration:
    """Read prompts (`read_prompts`) or, from a safetensors file, recorded ranges, with their prompts if the file has
    `calibration_ids` [prompts, time]. InvalidRequest, CheckpointError: the file does not fit this model."""
    if path.suffix != ".safetensors":
        return Calibration(read_prompts(path, source))
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
    ids = tensors.pop(_RECORDED_IDS, torch.zeros(0, 0, dtype=torch.int64))
    _check_ranges(tensors, source.sizes, path.name)
    if ids.dim() != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        dtype = str(ids.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"calibration: {_RECORDED_IDS} of {path.name} are {list(ids.shape)} {dtype}, not [prompts, time] of whole "
            "numbers; record the ranges again"
        )
    rows = [tuple(row) for row in ids.tolist() if row]
    for row in rows:
        _check_ids(f"{_RECORDED_IDS} of {path.name}", row, source.sizes.vocab_size)
    return Calibration(tuple(Prompt(row) for row in rows), tensors)


def measure(source: Source, prompts: tuple[Prompt, ...], layer_done: Callable[[], None]) -> dict[str, Tensor]:
    """Run the model with float16 weights on the prompts; `layer_done` is called after each layer.

    Returns the largest absolute value per channel, float32, of each matrix's inputs (`model.layers.N.NAME.x`) and
    outputs (`….y`). CheckpointError: float16 cannot hold a weight, or a result is not finite.
    """
    ranges: dict[str, Tensor] = {}

    def see(name: str, values: Tensor) -> None:
        seen = values.detach().float().abs().flatten(0, -2).amax(dim=0)
        ranges[name] = torch.maximum(ranges[name], seen) if name in ranges else seen

    hidden_states(source.sizes, source.reader, prompts, rounded_to=torch.float16, observe=see, layer_done=layer_done)
    _check_ranges(ranges, source.sizes, "the model itself")
    return ranges


def _check_ranges(ranges: Mapping[str, Tensor], sizes: QwenSizes, origin: str) -> None:
    wanted = {
        f"model.layers.{layer}.{name}.{side}": (sizes.layer_shapes[f"{name}.weight"][axis],)
        for layer in range(sizes.num_layers)
        for side, axis in (("x", 1), ("y", 0))
        for name in LINEARS
    }
    if missing := [name for name in wanted if name not in ranges]:
        raise InvalidRequest(f"calibration: {origin} has no {missing[0]}; record the ranges with this model")
    for name, shape in wanted.items():
        largest = ranges[name].float()
        if largest.shape != shape:
            raise CheckpointError(
                f"calibration: {origin} is of a model with other sizes: {name} is {list(largest.shape)} instead of "
                f"{list(shape)}; record the ranges with this one"
            )
        if not bool((largest.isfinite() & (largest >= 0)).all()):
            raise CheckpointError(
                f"calibration: {name} of {origin} has values that are not finite numbers from 0 on; record the ranges "
                "again"
            )
