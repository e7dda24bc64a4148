"""`vivavoce plan`: plan the memory of an engine, or the number of GPUs, without a GPU or weights."""

from __future__ import annotations

import json
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.cli.console import print_table, size_text
from vivavoce.cli.flags import DtypeOption, JsonOption, MemoryOption, flag
from vivavoce.errors import InvalidRequest
from vivavoce_bench.commands.plan_fleet import COLUMNS, Listeners, fleet

if TYPE_CHECKING:
    from vivavoce.checkpoint.config import ModelConfig
    from vivavoce_bench.planning import Card, EnginePlan

EXAMPLES = (
    "vivavoce plan",
    "vivavoce plan --memory 8 --model CosyVoice2-0.5B",
    "vivavoce plan --streams 2000 --gpu h200 --ttfb-p99 300ms --price 2.50",
)
_COLUMNS = ("card", "memory, GB", "audio s per s, offline", "listeners at once")


def plan(
    model: str = flag("A known model, downloaded or not, or a folder.", "NAME", "-m", default="CosyVoice2-0.5B"),
    memory: MemoryOption = None,
    gpu: str | None = flag("One of the listed GPUs; --memory limits its memory.", "NAME"),
    dtype: DtypeOption = "auto",
    listeners: Listeners = Listeners(),
    as_json: JsonOption = False,
) -> None:
    """Plan an engine: the division of a GPU's memory and the number of listeners; with --streams, the number of GPUs.

    Memory is divided as the engine divides it. Speeds were measured on one H200 and are computed for other GPUs from
    their data sheets. --streams simulates the engine with these speeds.
    """
    from vivavoce_bench.planning import CARDS, ENTRY_LISTENERS

    cards = [card for card in CARDS if gpu is None or card.name.casefold() == gpu.casefold()]
    if not cards:
        raise InvalidRequest(f"gpu: {gpu!r} is not known; use one of {', '.join(card.name for card in CARDS)}")
    if memory is None and gpu is not None:
        memory = cards[0].gb
    config = _config(model)
    division = None if memory is None else _division(planned_engine(config, dtype, memory))
    rows = card_rows(config, dtype, [card for card in cards if memory is None or card.gb >= memory], memory)
    if listeners.streams is not None:
        if gpu is None or not rows or rows[0]["listeners"] is None:
            raise InvalidRequest(
                "streams: the plan needs a known GPU and a released model; give --gpu h200 --model NAME"
            )
        found = fleet(listeners, planned_engine(config, dtype, rows[0]["memory_gb"]), cards[0])
        if as_json:
            print(json.dumps(found, ensure_ascii=False, indent=2))
            return
        _print_rows(found["expected"], COLUMNS)
        kind = "costs were measured on this card" if found["measured"] else "computed from data sheets, never measured"
        asked = f"{listeners.streams} listeners and a p99 of {listeners.ttfb_p99 * 1e3:g} ms"
        print(f"{found['gpus']} × {cards[0].name} for {asked}, {found['gpus'] + 1} if one may fail. Simulated; {kind}.")
        if (entry := found["server_listeners"]) > ENTRY_LISTENERS or found["servers"] > 1:
            print(
                f"Servers: {found['servers']}, with some of the GPUs each. The entry process of each has {entry} "
                f"listeners; 70 % of a slow core carry {ENTRY_LISTENERS}, as docs/operating.md says."
            )
        return
    if as_json:
        print(json.dumps({"model": model, "plan": division, "cards": rows}, ensure_ascii=False, indent=2))
        return
    if division is not None:
        print_table([(key, _text(key, value)) for key, value in division.items() if value is not None])
        over = division["planned_bytes"] - division["memory_bytes"]
        print(f"Large batches want {size_text(over)} more.\n" if over > 0 else "")
    _print_rows(rows, _COLUMNS)


def _print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    texts = [
        ["–" if one is None else f"{one:g}" if isinstance(one, float) else str(one) for one in row.values()]
        for row in rows
    ]
    print_table(texts, columns)


def card_rows(config: ModelConfig, dtype: str, cards: list[Card], memory: float | None = None) -> list[dict[str, Any]]:
    """One row per card. Speeds are rounded to two digits, and None for models of a size that was not measured.

    memory: GB that are used; None: all memory of the card.
    """
    from vivavoce_bench.random_checkpoint import release_config

    measured = planned_engine(release_config(config.generation), dtype, 1_000).weights
    rows: list[dict[str, Any]] = []
    for card in cards:
        planned = planned_engine(config, dtype, memory or card.gb)
        used, offline, listeners = memory or card.gb, None, None
        if planned.weights == measured:
            offline, listeners = _rounded(planned.offline(card)), _rounded(planned.listeners(card))
        rows.append({"card": card.name, "memory_gb": used, "offline_audio_s_per_s": offline, "listeners": listeners})
    return rows


def _rounded(value: float) -> int:
    step = 10 if value >= 100 else 5 if value >= 20 else 1
    return int(value / step) * step


def planned_engine(config: ModelConfig, dtype: str, memory_gb: float) -> EnginePlan:
    import torch

    from vivavoce.cli.model import EngineChoice
    from vivavoce.frontend.model_choice import choose_dtype
    from vivavoce_bench.planning import plan_engine

    settings = EngineChoice(memory=memory_gb).settings()
    assert settings.memory_bytes is not None
    return plan_engine(config, choose_dtype(dtype, torch.device("cuda")), settings.memory_bytes, settings)


def _division(planned: EnginePlan) -> dict[str, Any]:
    from vivavoce.engine.settings import CUDA_BYTES

    memory = planned.memory
    return {
        "memory_bytes": planned.memory_bytes,
        "cuda_bytes": CUDA_BYTES,
        **{f"{part}_weights_bytes": size for part, size in planned.weights.items()},
        "slots": memory.slots,
        "slots_bytes": memory.slots_bytes,
        "state_s": None if isinf(planned.state_s) else planned.state_s,
        "state_bytes": memory.state_bytes,
        "batch_frames": memory.batch_frames,
        "batches_bytes": memory.batches_bytes,
        "planned_bytes": planned.num_bytes,
    }


def _text(key: str, value: Any) -> str:
    return size_text(value) if key.endswith("_bytes") else f"{value:,}"


def _config(model: str) -> ModelConfig:
    from vivavoce.checkpoint.known_models import known_model
    from vivavoce.checkpoint.settings import read_config
    from vivavoce.checkpoint.weights import find_part, read_tensors
    from vivavoce.frontend.model_choice import model_folder
    from vivavoce_bench.random_checkpoint import release_config

    if not Path(model).is_dir() and model not in ("mini", "babble"):
        return release_config(known_model(model).generation)
    folder = model_folder(model)
    return read_config(folder, read_tensors(find_part(folder, "flow")))
