"""`convert`, and `export hf` and `export trtllm`, as scripts of the documents call them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.cli_harness import Run, read_wav
from vivavoce_export.hf_folder import read_merged


def test_convert_means_another_voice_and_export_another_runtime(run: Run) -> None:
    assert run("convert -h").text.startswith("Usage: vivavoce convert [OPTIONS] RECORDING\n")
    assert "TensorRT" not in run("convert -h").text
    text = run("export -h").text
    for line in ("  hf  ", "  trtllm  ", "vivavoce export hf --model", "vivavoce export trtllm --model"):
        assert line in text
    assert run("export hf --help").text.startswith("Usage: vivavoce export hf [OPTIONS]\n")


def test_the_old_form_still_works_and_names_the_new_one(run: Run) -> None:
    result = run("convert hf --out merged --dtype bfloat16")
    note, made, _ = result.err.splitlines()
    assert (result.code, note) == (0, "note: `vivavoce convert hf` is called `vivavoce export hf` now")
    assert made.startswith("merged: ")
    assert read_merged(Path("merged"))[0].text_vocab_size == 276


def test_a_recording_of_any_name_is_converted(run: Run, recording: Path) -> None:
    for source in ("recording", "./hf"):
        Path(source).write_bytes(recording.read_bytes())
        result = run("convert", source, "--voice", "babble-b", "-o", "b.wav")
        assert result.err.startswith("b.wav: 1.20 s of audio in ")
        assert len(read_wav(Path("b.wav"))) == 1.2 * 24_000
    assert run("convert --voice babble-b -o - -q ./hf").out == Path("b.wav").read_bytes()


def test_usage_errors_name_the_command_that_was_meant(run: Run) -> None:
    assert run("convert").err == "error: Missing argument 'RECORDING'; try `vivavoce convert --help`\n"
    assert run("convert --nope").err.endswith("try `vivavoce convert --help`\n")
    assert run("export hf").err == "error: Missing option '--out' / '-o'; try `vivavoce export hf --help`\n"
    assert run("speak --voice").err.endswith("try `vivavoce speak --help`\n")
    assert run("voice add me --transcript").err.endswith("try `vivavoce voice add --help`\n")


def test_a_model_is_written_and_reported(run: Run) -> None:
    result = run("export hf --out merged --dtype bfloat16")
    assert (result.code, result.out) == (0, b"")
    first, second = result.err.splitlines()
    assert first.startswith("merged: 6,912 ids (276 of text), bfloat16, ")
    assert second.startswith("note: the speech head's bias is in embedding_bias.npy")
    assert read_merged(Path("merged"))[0].text_vocab_size == 276


def test_an_earlier_export_is_replaced_by_force_alone(run: Run) -> None:
    assert run("export hf --out merged -q").err == ""
    assert "merged is not empty; add --force" in run("export hf --out merged").error
    assert run("export hf --out merged --force --dtype float16").code == 0
    config, state = read_merged(Path("merged"))
    assert str(state["norm.weight"].dtype) == "torch.float16"
    assert config.num_layers == 3


def rows(text: str) -> dict[str, str]:
    pairs = (re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def test_the_documents_spelling(run: Run, babble: Path) -> None:
    options = "--dtype bfloat16 --tp_size 2 --pp_size 2 --cp_size 1 --use_parallel_embedding --workers 2"
    result = run(f"export trtllm --model_dir {babble} --output_dir made {options}")
    assert result.code == 0
    table = rows(result.text)
    assert table["checkpoint"] == "made"
    assert table["options"] == "bfloat16, tp 2, pp 2, parallel embedding"
    assert table["ranks"] == "4"
    assert "kB" in table["size"] or "MB" in table["size"]
    assert result.text.splitlines()[-1] == (
        "next: trtllm-build --checkpoint_dir made --output_dir made-engine --max_batch_size 16 "
        "--max_num_tokens 32768 --gemm_plugin bfloat16"
    )
    assert result.err.splitlines() == [
        "converting: 5 layers and blocks",
        "note: the speech head's bias is in embedding_bias.npy: send it with each request as embedding_bias",
    ]
    assert json.loads(Path("made/config.json").read_text())["mapping"]["world_size"] == 4
    assert len(list(Path("made").glob("rank*.safetensors"))) == 4


@pytest.mark.parametrize("model", ["babble", "babble_v3"])
def test_a_second_call_finds_it_done_and_may_compare_it(run: Run, request: pytest.FixtureRequest, model: str) -> None:
    line = f"export trtllm -m {request.getfixturevalue(model)} --out made"
    first = run(f"{line} --use_weight_only --weight_only_precision int4 -q")
    assert (first.code, first.out, first.err) == (0, b"", "")
    second = run(f"{line} --use-weight-only --weight-only-precision int4 --check")
    table = rows(second.text)
    assert table["options"] == "float16, int4 weights quantised by trtllm-build"
    assert table["time"] == "was there already"
    assert 0.01 < float(table["logits' relative error"]) < 0.5
    assert table["same best id"].endswith(" of 260 positions")
    assert "note: the model has no voice with a transcript and tokens" in second.err


def test_the_demo_model_is_calibrated_with_its_own_voices(run: Run) -> None:
    result = run("export trtllm -m mini -o made --smoothquant 0.5 --per_token --per_channel --int8_kv_cache --check")
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
    assert run("export hf --out merged -q").code == 0
    assert run("export trtllm --model merged --out a -q").code == 0
    assert run("export trtllm --out b -q").code == 0
    assert Path("a/rank0.safetensors").read_bytes() == Path("b/rank0.safetensors").read_bytes()
    assert Path("a/embedding_bias.npy").read_bytes() == Path("b/embedding_bias.npy").read_bytes()
    Path("merged/embedding_bias.npy").unlink()
    assert "head has no bias" in run("export trtllm -m merged --out c").err


def test_a_checkpoints_weights_can_be_heard(run: Run) -> None:
    result = run("export trtllm --out made --use-weight-only --write-back heard")
    assert result.code == 0
    assert "heard speaks with the checkpoint's weights; its activations are not rounded" in result.err
    assert run("speak Hello. --model heard -o a.wav").code == 0
    assert run("export hf --out merged -q").code == 0
    refused = run("export trtllm -m merged --out other --write-back b").error
    assert "variant: merged is a merged model" in run("export trtllm -m merged --out other --variant rl").error
    assert "write-back: merged holds a language model alone, which cannot speak" in refused


def test_the_current_folder_is_no_place_but_may_be_done_already(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("export trtllm --out made -q").code == 0
    monkeypatch.chdir("made")
    done = run("export trtllm --out .")
    assert (done.code, rows(done.text)["time"]) == (0, "was there already")
    assert "--checkpoint_dir . --output_dir" in done.text
    assert "made-engine --max_batch_size" in done.text
    assert "out: the current folder lies in ." in run("export trtllm --out . --force").error
