"""`vivavoce plan` needs neither a GPU nor weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_harness import SOURCES, Run
from vivavoce.errors import InvalidRequest
from vivavoce_bench import planning
from vivavoce_bench.commands import plan as command
from vivavoce_bench.commands.plan import Expected, fewest

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command where no model was downloaded, and reads its JSON."""
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    return lambda *given: json.loads(run("plan", *given, "--json").text)


def test_a_plan_adds_up_and_more_memory_gives_more(plan: Any) -> None:
    found = [plan("--memory", memory, "--model", "CosyVoice2-0.5B") for memory in ("8GB", "16")]
    for one, gigabytes in zip(found, (8, 16), strict=True):
        division = one["plan"]
        parts = ("lm_weights", "flow_weights", "vocoder_weights", "slots", "state", "batches", "cuda")
        assert (
            sum(division[f"{part}_bytes"] for part in parts)
            == division["planned_bytes"]
            == division["memory_bytes"]
            == gigabytes * 10**9
        )
    small, large = (one["plan"] for one in found)
    assert all(small[key] < large[key] for key in ("slots", "state_s", "batch_frames"))
    # 494 million parameters of the published language model without its text head, in 16 bit.
    assert small["lm_weights_bytes"] == large["lm_weights_bytes"] == pytest.approx(1.01e9, rel=0.01)
    fewer, more = ({card["card"]: card["listeners"] for card in one["cards"]} for one in found)
    assert fewer.keys() - more.keys() == {"RTX 3060"}
    assert all(fewer[card] < more[card] for card in more)


def test_faster_cards_have_more_listeners_and_float32_fewer(plan: Any) -> None:
    cards = {card["card"]: card for card in plan()["cards"]}
    assert cards["H200"]["listeners"] > cards["A100 80 GB"]["listeners"] > cards["RTX 3060"]["listeners"] > 0
    (plain,) = plan("--gpu", "h200", "--dtype", "float32")["cards"]
    assert plain["listeners"] < cards["H200"]["listeners"]


def test_a_first_generation_keeps_no_state(plan: Any) -> None:
    found = plan("--memory", "16", "--model", "CosyVoice-300M")["plan"]
    assert (found["state_bytes"], found["state_s"], found["batch_frames"]) == (0, None, None)


def test_people_read_it_as_a_table(run: Run) -> None:
    text = run("plan", "--memory", "8", "--gpu", "rtx 3060").text
    for part in ("lm_weights_bytes", "1.01 GB", "8 GB", "RTX 3060"):
        assert part in text
    assert "Large batches want 1.08 GB more" in run("plan", "--memory", "4").text


def test_a_size_that_was_not_measured_has_a_division_and_no_speed(plan: Any, babble: Path) -> None:
    found = plan("--memory", "8", "--model", babble)
    assert found["plan"]["slots"] == 256
    assert {card["listeners"] for card in found["cards"]} == {None}


def test_gpus_for_listeners_are_found_by_simulation(plan: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "FEWEST", 60)
    found = plan("--streams", "40", "--gpu", "l4", "--ttfb-p99", "0.4s", "--price", "2")
    less, needed, more = found["expected"]
    assert (found["servers"], found["server_listeners"]) == (1, 40)
    assert (found["card"], found["measured"], found["ttfb_p99_ms"]) == ("L4", False, 400)
    assert [one["gpus"] for one in found["expected"]] == [found["gpus"] - 1, found["gpus"], found["gpus"] + 1]
    assert less["gpus"] == 0 or less["ttfb_p99_ms"] > 400 or less["gaps_percent"] > 0.1 or less["refused_percent"] > 0
    for one in (needed, more):
        assert one["ttfb_p50_ms"] < one["ttfb_p99_ms"] <= 400
        assert (one["gaps_percent"], one["refused_percent"]) == (0, 0)
        assert one["price_per_audio_hour"] == 2 * one["gpus"] / 40
    text = run("plan", "--streams", "2", "--gpu", "rtx 3060").text
    assert "1 × RTX 3060 for 2 listeners and a p99 of 1000 ms, 2 if one may fail" in text
    assert "never measured" in text
    assert "Servers" not in text
    assert "'soon' is not a time" in run("plan", "--streams", "2", "--ttfb-p99", "soon").err


def test_the_servers_are_counted_whose_entry_processes_carry_the_listeners(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FEWEST", 20)
    for carried, gpus, servers, each in ((3, 1, 1, 4), (2, 2, 2, 2), (2, 4, 2, 2)):
        monkeypatch.setattr(planning, "ENTRY_LISTENERS", carried)
        monkeypatch.setattr(command, "fewest", lambda *_, needed=gpus: needed)
        text = run("plan", "--streams", "4", "--gpu", "l4").text
        assert f"Servers: {servers}, with some of the GPUs each. The entry process of each has {each} listeners" in text
        assert f"it was measured with up to {carried}, as docs" in text


def test_fewest_gpus_are_looked_for_without_trying_all() -> None:
    tried = []

    def expected(gpus: int) -> Expected:
        tried.append(gpus)
        return Expected(0.1, 0.2 if gpus >= 700 else 0.4, 0.0, 0.0)

    for guess, most in ((10, 5_000), (3_000, 5_000), (700, 700)):
        assert fewest(expected, 0.3, guess, most) == 700
    assert len(tried) < 45
    with pytest.raises(InvalidRequest, match="below 200 ms, the p99 of a single listener"):
        fewest(expected, 0.1, 1, 1_000)


@pytest.mark.parametrize(
    ("figures", "fits"),
    [((0.1, 0.3, 0.001, 0.0), True), ((0.1, 0.31, 0.0, 0.0), False), ((0.1, 0.2, 0.002, 0.0), False),
     ((0.1, 0.2, 0.0, 0.001), False), ((), False)],
)  # fmt: skip
def test_nobody_may_wait_be_cut_off_or_refused(figures: tuple[float, ...], fits: bool) -> None:
    assert Expected(*figures).within(0.3) is fits


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--streams", "10"), "streams: the plan needs a known GPU and a released model"),
        (("--streams", "1", "--gpu", "h200", "--ttfb-p99", "9ms"), "ttfb-p99: 9 ms is below"),
        (("--streams", "1", "--gpu", "h200", "--model", "CosyVoice-300M"), "model: only CosyVoice2 and 3 in 16 bit"),
        (("--memory", "2"), "memory_bytes: 2000000000 is too little"),
        (("--memory", "0"), "memory: 0 GB cannot be"),
        (("--gpu", "abacus"), "gpu: 'abacus' is not known; use one of H200"),
        (("--model", "nothing"), "model: 'nothing' is neither"),
    ],
)
def test_what_cannot_be_planned_is_refused(run: Run, given: tuple[str, ...], message: str) -> None:
    assert message in run("plan", *given).error


def test_no_compiler_is_imported() -> None:
    """Outlines of networks once brought all of torch's compiler, 140 MB."""
    code = (
        "import sys, torch; from vivavoce.checkpoint.config import Generation; from vivavoce_bench.planning import *;"
        "from vivavoce_bench.random_checkpoint import release_config;"
        "plan_engine(release_config(Generation.V2), torch.float16, 8 * 10**9, EngineSettings());"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SOURCES)}, check=True)


PAGE = (Path(__file__).parents[3] / "docs/scaling.md").read_text(encoding="utf-8")
SIZES = re.findall(r"^\| ([A-Z]\w+[^|]*) \| ([\d,]+) \| (\d+) \| ([^|]+) \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize(
    ("card", "streams", "gpus", "times"),
    [pytest.param(*row, marks=[] if row[:2] == ("H200", "100") else [pytest.mark.long]) for row in SIZES],
)
def test_sizes_of_the_page_are_those_that_are_planned(
    plan: Any, card: str, streams: str, gpus: str, times: str
) -> None:
    found = plan("--streams", streams.replace(",", ""), "--gpu", card, "--ttfb-p99", "500ms")
    needed = found["expected"][1]
    assert found["gpus"] == int(gpus)
    assert f"{needed['ttfb_p50_ms']} / {needed['ttfb_p99_ms']}" == times
