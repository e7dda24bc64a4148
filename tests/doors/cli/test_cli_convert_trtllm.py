"""`convert trtllm`, as scripts of the documents call it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_harness import Run


def rows(text: str) -> dict[str, str]:
    pairs = (re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def test_the_documents_spelling(run: Run, babble: Path) -> None:
    result = run(
        *("convert", "trtllm", "--model_dir", babble, "--output_dir", "made", "--dtype", "bfloat16", "--tp_size", "2"),
        *("--pp_size", "3", "--cp_size", "1", "--use_parallel_embedding", "--workers", "2"),
    )
    assert result.code == 0
    table = rows(result.text)
    assert table["checkpoint"] == "made"
    assert table["options"] == "bfloat16, tp 2, pp 3, parallel embedding"
    assert table["ranks"] == "6"
    assert "kB" in table["size"] or "MB" in table["size"]
    assert result.text.splitlines()[-1] == (
        "next: trtllm-build --checkpoint_dir made --output_dir made-engine --max_batch_size 16 "
        "--max_num_tokens 32768 --gemm_plugin bfloat16"
    )
    assert result.err.splitlines() == [
        "converting: 6 layers and blocks",
        "note: the speech head's bias is in embedding_bias.npy: requests hand it over as embedding_bias",
    ]
    assert json.loads(Path("made/config.json").read_text())["mapping"]["world_size"] == 6
    assert len(list(Path("made").glob("rank*.safetensors"))) == 6


def test_a_second_call_finds_it_done_and_may_compare_it(run: Run) -> None:
    first = run("convert", "trtllm", "--out", "made", "--use_weight_only", "--weight_only_precision", "int4", "-q")
    assert (first.code, first.out, first.err) == (0, b"", "")
    second = run(
        "convert", "trtllm", "--out", "made", "--use-weight-only", "--weight-only-precision", "int4", "--check"
    )
    table = rows(second.text)
    assert table["options"] == "float16, int4 weights quantised by trtllm-build"
    assert table["time"] == "was there already"
    assert 0.01 < float(table["logits' relative error"]) < 0.5
    assert table["same best id"].endswith(" of 260 positions")
    assert "note: the model brings no voice with a recording's text and tokens" in second.err


def test_the_demo_model_is_calibrated_with_its_own_voices(run: Run) -> None:
    result = run(
        *("convert", "trtllm", "-m", "mini", "-o", "made", "--smoothquant", "0.5", "--per_token", "--per_channel"),
        *("--int8_kv_cache", "--check"),
    )
    assert result.code == 0
    table = rows(result.text)
    assert table["options"] == "float16, smoothquant 0.5 (per token, per channel), int8 cache"
    assert float(table["logits' relative error"]) < 0.06
    assert float(table["same best id"].split("%")[0]) > 90
    assert [line.split(":")[0] for line in result.err.splitlines()] == [
        "calibrating",
        "converting",
        "comparing",
        "note",
    ]


def test_a_merged_folder_is_a_model_as_well(run: Run) -> None:
    assert run("convert", "hf", "--out", "merged", "-q").code == 0
    assert run("convert", "trtllm", "--model", "merged", "--out", "a", "-q").code == 0
    assert run("convert", "trtllm", "--out", "b", "-q").code == 0
    assert Path("a/rank0.safetensors").read_bytes() == Path("b/rank0.safetensors").read_bytes()
    assert Path("a/embedding_bias.npy").read_bytes() == Path("b/embedding_bias.npy").read_bytes()


def test_a_checkpoints_weights_can_be_heard(run: Run) -> None:
    result = run("convert", "trtllm", "--out", "made", "--use-weight-only", "--write-back", "heard")
    assert result.code == 0
    assert "heard speaks with the checkpoint's weights; its activations are not rounded" in result.err
    assert run("speak", "Hello.", "--model", "heard", "-o", "a.wav").code == 0
    assert run("convert", "hf", "--out", "merged", "-q").code == 0
    refused = run("convert", "trtllm", "-m", "merged", "--out", "other", "--write-back", "b").error
    assert (
        "variant: merged is a merged model"
        in run("convert", "trtllm", "-m", "merged", "--out", "other", "--variant", "rl").error
    )
    assert "write-back: merged holds a language model alone, which cannot speak" in refused


def test_a_bar_is_shown_to_who_watches(run: Run) -> None:
    result = run("convert", "trtllm", "--out", "made", terminal=True)
    assert result.code == 0
    assert "converting" in result.err
    assert "6/6" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tp-size", "3"), "tp-size: 3 does not divide the 4 attention heads; use 1 or 2 or 4"),
        (("--cp-size", "2"), "cp-size: 2 cannot be"),
        (("--weight-only-precision", "int8"), "weight-only-precision: belongs to --use-weight-only"),
        (("--smoothquant", "0.5"), "the model brings no voice with a recording's text and tokens; give --calibration"),
        (("--calibration", "nowhere.json", "--int8-kv-cache"), "nowhere.json is no JSON that can be read"),
        (("--model", "nowhere"), "nowhere"),
        (("--calibration", "nowhere.json"), "calibration: nothing uses it; add --smoothquant, --int8-kv-cache or"),
        (("--check", "-q"), "check: --quiet hides what it finds"),
        (("--write-back", "made"), "write-back: made and --out made lie within each other"),
        (("--write-back", "."), "write-back: . and --out made lie within each other"),
        (("--write-back", "made/back"), "write-back: made/back and --out made lie within each other"),
        (("--write-back", "file"), "write-back: file is no folder"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    Path("file").write_text("")
    assert message in run("convert", "trtllm", "--out", "made", *arguments).error
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_the_current_folder_is_no_place_but_may_be_done_already(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("convert", "trtllm", "--out", "made", "-q").code == 0
    monkeypatch.chdir("made")
    done = run("convert", "trtllm", "--out", ".")
    assert (done.code, rows(done.text)["time"]) == (0, "was there already")
    assert "--checkpoint_dir . --output_dir" in done.text
    assert "made-engine --max_batch_size" in done.text
    assert "out: the current folder lies in ." in run("convert", "trtllm", "--out", ".", "--force").error


def test_recorded_ranges_are_checked_on_the_models_own_voices(run: Run) -> None:
    command = ("convert", "trtllm", "-m", "mini", "--int8-kv-cache")
    assert run(*command, "--out", "a", "-q").code == 0
    result = run(*command, "--out", "b", "--calibration", "a/calibration.safetensors", "--check")
    assert rows(result.text)["same best id"].endswith(" of 378 positions")
    assert "random ids" not in result.err


def test_a_model_without_a_bias_is_told_of(run: Run) -> None:
    assert run("convert", "hf", "--out", "merged", "-q").code == 0
    Path("merged/embedding_bias.npy").unlink()
    result = run("convert", "trtllm", "-m", "merged", "--out", "made")
    assert "note: the model has no bias of its head: nothing forbids text ids" in result.err
