"""What cannot be is refused in one line that names it, before a model loads where that is possible; nothing is left."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.cli_harness import Run

DRAWING = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra eval")
EVAL = "eval --model babble"
EARLY = [
    (("speak", "  \n"), "text: is empty"),
    ("speak --file text.wav --file mute.wav", "file: 'mute.wav' is not text; give a UTF-8 text, and a recording"),
    ("speak Hi. --speed 3", "speed: 3.0 is outside of 0.5 … 2.0"),
    ("speak Hi. --seed -1", "seed: -1"),
    ("speak Hi. --top-p 1.5", "top_p: 1.5"),
    ("speak Hi. --top-k 0", "top_k: 0"),
    ("speak Hi. --mode opera", "mode: 'opera' is unknown; choose one of zero_shot, cross_lingual"),
    ("speak Hi. --file text.txt", "given twice"),
    ("speak --file absent.txt", "'absent.txt' cannot be read"),
    ("speak Hi. -o .", "'.' is a folder"),
    ("speak Hi. -o absent/out.wav", "absent' does not exist"),
    (f"speak Hi. -o {'x' * 300}", "cannot be written"),
    ("speak", "text: none is given"),
    (
        "speak Hi. --subtitles out.txt",
        "subtitles: 'out.txt' does not end with .srt, .vtt or .json; choose one of these",
    ),
    ("speak Hi. --subtitles -", "subtitles: '-' does not end with"),
    ("speak Hi. --subtitles absent/out.srt", "absent' does not exist"),
    (f"speak Hi. --subtitles {'x' * 300}.srt", "cannot be written"),
    ("convert absent.wav", "source audio: 'absent.wav' does not exist"),
    ("convert text.wav", "source audio: 'text.wav' is not an audio file"),
    ("convert text.wav --speed 3", "speed: 3.0"),
    ("convert text.wav -o absent/out.wav", "does not exist"),
    ("export hf --out o --dtype int8", "dtype: 'int8' is unknown; use auto or one of float32"),
    ("export hf --out o --model nope", "'nope' is neither a folder nor a known model"),
    ("export hf --out o --variant rl", "variant: 'rl' is not in"),
    ("export hf --out file", "out: file is not a folder"),
    ("export trtllm --out made --tp-size 3", "tp-size: 3 does not divide the 4 attention heads; use 1 or 2 or 4"),
    ("export trtllm --out made --cp-size 2", "cp-size: 2 is not supported"),
    ("export trtllm --out made --weight-only-precision int8", "weight-only-precision: belongs to --use-weight-only"),
    (
        "export trtllm --out made --smoothquant 0.5",
        "the model has no voice with a transcript and tokens; give --calibration",
    ),
    ("export trtllm --out made --calibration no.json --int8-kv-cache", "no.json is not readable JSON"),
    ("export trtllm --out made --model nowhere", "nowhere"),
    (
        "export trtllm --out made --calibration no.json",
        "calibration: nothing uses it; add --smoothquant, --int8-kv-cache or",
    ),
    ("export trtllm --out made --check -q", "check: --quiet hides its result"),
    ("export trtllm --out made --write-back made", "write-back: made and --out made overlap"),
    ("export trtllm --out made --write-back .", "write-back: . and --out made overlap"),
    ("export trtllm --out made --write-back made/back", "write-back: made/back and --out made overlap"),
    ("export trtllm --out made --write-back file", "write-back: file is not a folder"),
    ("download", "--list"),
    ("download nope", "'nope' is neither"),
    ("download CosyVoice2-0.5B --from attic", "'attic' is not a known hub; choose hf or modelscope"),
    (f"{EVAL} --sentences absent.txt", "sentences: 'absent.txt' cannot be read"),
    (f"{EVAL} --list bad.lst", "list: line 1 of 'bad.lst' has 1 fields"),
    (f"{EVAL} --audio absent", "audio: 'absent' cannot be read"),
    (f"{EVAL} --audio folder", "audio: 'folder' holds 0 recordings for 20 sentences"),
    (f"{EVAL} --sentences bad.lst --list bad.lst", "sentences: --sentences, --list"),
    (f"{EVAL} --list bad.lst --voice babble-a", "voice: each line of a list names its voice"),
    (f"{EVAL} --audio absent --stream", "audio: recordings are scored as they are; leave --stream out"),
    (f"{EVAL} --audio absent --mode sft", "leave --mode out"),
    (f"{EVAL} --audio absent -v a -v b", "voice: several are given"),
    (f"{EVAL} --control noisy", "control: 'noisy' is unknown; choose one of shuffled, wrong-text, reversed"),
    (f"{EVAL} --mode opera", "mode: 'opera' is unknown"),
    (f"{EVAL} --top-p 2", "top_p: 2.0"),
    (f"{EVAL} --recogniser nobody", "recogniser: 'nobody' is not of the form module:callable"),
    (f"{EVAL} --recogniser no_such_thing:x", "recogniser: 'no_such_thing' cannot be imported"),
    (f"{EVAL} --recogniser none --control wrong-text --limit 1", "two different sentences"),
    pytest.param(f"{EVAL} --out bad.lst", "out: folder 'bad.lst' cannot be made", marks=DRAWING),
    ("bench --rate 2 --concurrency 2", "rate: "),
    ("bench --rate 0", "rate: 0.0 is outside of 0"),
    ("bench --concurrency 0", "concurrency: 0 is outside of 1"),
    ("bench --words 9-5", "words: '9-5' is not a range"),
    ("bench --words 90-99", "words: no text has 90 to 99 words"),
    ("bench --text-file nothing.txt", "text_file: 'nothing.txt' cannot be read"),
    ("bench --tokens 0", "exact_tokens: 0 is outside of 1"),
    ("bench --offline --policy official", "offline: "),
    ("bench --quality --tokens 5", "quality: "),
    ("bench --admission maybe", "admission: 'maybe' is unknown"),
    ("bench --memory 0", "memory: 0 GB cannot be"),
    ("bench --no-kernels --deterministic", "deterministic: needs kernels"),
    ("bench --flow-backend caffe", "flow_backend: 'caffe' is unknown; use one of torch, tensorrt, onnx"),
    ("bench --tp 2", "tp: 2 is for lm_backend vllm or trtllm"),
    ("bench --gpus 0,1 --engines 2", "gpus: 0,1 gives each GPU one engine"),
    ("bench --gpus one", "gpus: 'one' is neither all nor numbers"),
    ("bench --policy none", "chunk policy: 'none' is unknown"),
    ("bench --json missing/bench.json", "json: folder"),
    pytest.param("bench --plot missing/bench.png", "plot: folder", marks=DRAWING),
    ("bench --seed -1", "seed: -1"),
    ("bench -c 4 offline", "bench: --concurrency stands before offline; write it after offline"),
    ("bench offline --backend onnx", "backend: 'onnx' is unknown; use one of torch, vllm, trtllm"),
    ("bench offline --batch-size 4,many", "batch_size: 'many' is not a number in 1 … 256"),
    ("bench offline --batch-size 0", "batch_size: '0' is not a number in 1 … 256"),
    ("bench offline --batch-size 4 -n 2", "batch_size: 4 is more than the 2 texts"),
    ("bench offline --engine-dir nowhere", "engine_dir: only the backend trtllm runs engines"),
    ("bench offline --tokens 0", "exact_tokens: 0 is outside of 1"),
    ("bench offline --llm-model-name-or-path folder", "llm_model_name_or_path: torch does not read"),
    ("bench offline --seed -1", "seed: -1"),
    ("bench offline --manifest a --text-file b", "texts: --text-file and --manifest exclude each other"),
    ("bench offline --manifest missing.lst", "list: 'missing.lst' cannot be read"),
    ("bench offline --manifest bad.lst", "list: line 1 of 'bad.lst' has 1 fields"),
    ("bench offline --manifest path.lst", "name: 'a/b' cannot be a file's name"),
    ("bench offline --manifest twice.lst", "name: 'a' occurs more than once"),
    ("bench offline --split-name test", "split_name: belongs to a data set"),
    ("bench offline --manifest a.lst --voice anna", "voice: each text of 'a.lst' has its own"),
    ("bench offline --prompt-text Hello.", "transcript: belongs to a recording"),
    ("bench offline --json missing/a.json", "json: folder"),
    pytest.param("bench offline --plot missing/a.png", "plot: folder", marks=DRAWING),
    ("bench offline --model missing", "model: 'missing' is neither a folder nor a known model"),
    ("bench streaming --strategy none", "strategy: 'none' is unknown; use one of equal, exponential"),
    ("bench streaming --chunk-size 3", "chunk_size: 3 is outside of 5 … 1000"),
    ("bench streaming --recording missing.wav", "recording: 'missing.wav' is not a file"),
    ("bench streaming --recording missing.wav -n 1", "recording: its tokens replace"),
    ("bench streaming --recording missing.wav --tokens 5", "recording: its tokens replace"),
    ("triton --stage 7", "stage: 7–7 is not a range"),
    ("triton --stage 0 --llm gpt", "llm: 'gpt' is unknown; choose one of auto, engine, llmapi, vivavoce"),
    ("triton --stage 0 --mode fast", "mode: 'fast' is unknown; choose one of streaming, offline"),
    ("triton --stage 0 --batch-size 4,x", "batch_size: '4,x' must be numbers from 1 on"),
    ("triton --stage 0 --set colour=red", "colour is not a variable; known are"),
    ("triton test-llm --top-k 5", "top_k: is only for engines; leave it out"),
    ("triton fill-template -i template device:cpu", "no value for model_dir"),
    ("triton fill-template -i template a:b -o o", "excludes --in-place"),
    ("triton fill-template none model_dir:/m", "is not a file"),
    ("voice add a/b absent.wav", "voice name: 'a/b'"),
    ("voice add you absent.wav", "'absent.wav' does not exist"),
    ("voice add you text.wav", "'text.wav' is not an audio file"),
    ("voice show nobody", "'nobody' is not registered"),
    ("voice remove nobody", "voice: 'nobody' is not stored; `vivavoce voice list` shows"),
    ("voice export nobody", "'nobody' is not registered"),
    ("keys list --file none.toml", "does not exist"),
    (("keys", "add", "a b", "--file", "keys.toml"), "name: 'a b' cannot be"),
    ("keys add a --file keys.toml --concurrent 0", "concurrent: 0 cannot be"),
    ("download CosyVoice2-0.5B --json", "json: belongs to --list"),
    ("info folder", "error: model folder: folder holds none of cosyvoice.yaml"),
    ("train pack mini folder new", "parts: folder holds none of llm.pt, flow.pt, hift.pt; train one first"),
    ("train prepare folder corpus --model nope", "model: 'nope' is neither a folder nor a known model"),
    ("train prepare folder corpus --model mini", "recordings: 'folder' holds no audio file"),
    (
        "train lm folder out --device cpu --steps 1",
        "corpus: speakers.json is not in 'folder'; `vivavoce train prepare`",
    ),
    ("train flow folder out --device cuda:99 --steps 1", "device: 'cuda:99' is not present"),
]
SPOKEN = [
    ("Hi. --voice nobody", "voice: 'nobody' is not registered (known: babble-a, babble-b)"),
    ("Hi. --voice absent.wav", "'absent.wav' does not exist"),
    ("Hi. --voice text.wav", "'text.wav' is not an audio file"),
    ("Hi. --prompt-text words", "transcript: belongs to a recording"),
    ("Hi. --mode zero_shot", "mode: zero_shot needs reference speech"),
    ("Hi. --mode instruct", "mode: instruct needs an instruction"),
    ("Hi. --model nope", "'nope' is neither a folder nor a known model"),
    ("Hi. --model CosyVoice2-0.5B", "`vivavoce download CosyVoice2-0.5B`"),
    ("Hi. --model .", "cosyvoice2.yaml"),
    ("Hi. --device tpu", "device: 'tpu' is unknown"),
    ("Hi. --dtype int8", "dtype: 'int8' is unknown"),
]
LATE = [
    *((f"speak {line} --subtitles out.srt{stream}", said) for line, said in SPOKEN for stream in ("", " --stream")),
    (f"{EVAL} --recogniser none --voice nobody", "voice: 'nobody' is not registered (known: babble-a, babble-b)"),
    (
        f"{EVAL} --recogniser none --voice babble-a --prompt-text x",
        "transcript: 1 given for 0 recordings among the voices",
    ),
    (f"{EVAL} --recogniser none --voice text.wav", "'text.wav' is not an audio file"),
]
FILES = {
    "text.wav": "This is no sound.",
    "mute.wav": "RIFF\0\0\0\0WAVE",
    "out.wav": "before",
    "out.srt": "before",
    "file": "",
    "bad.lst": "only this",
    "path.lst": "a/b|||One",
    "twice.lst": "a|||One\na|||Two",
    "template": 'm: "${model_dir}"\n',
}


def refused(run: Run, line: str | tuple[str, ...]) -> str:
    Path("folder").mkdir()
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")
    error = (run(line) if isinstance(line, str) else run(line[0], *line[1:])).error
    assert {path.name for path in Path().iterdir()} == {"folder", *FILES}
    assert {name: Path(name).read_text(encoding="utf-8") for name in FILES} == FILES
    return error


@pytest.mark.parametrize(("line", "message"), EARLY)
def test_before_any_model_loads(run: Run, no_loading: None, line: str | tuple[str, ...], message: str) -> None:
    assert message in refused(run, line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export hf --out o --model", "exports, Triton's cosyvoice2 and tensorrt_llm, and other runtimes in"),
        ("export trtllm --out o --model", "are for CosyVoice 2 and 3 only; let vivavoce's own engine speak (in"),
        ("train lm folder out --device cpu --init", "`vivavoce train` is for v2 (CosyVoice2) and v3 (CosyVoice3)"),
        ("train prepare folder corpus --model", "model: is of generation v1; `vivavoce train` is for v2 (CosyVoice2)"),
    ],
)
def test_what_is_not_for_cosyvoice_1(run: Run, no_loading: None, babble_v1: Path, line: str, message: str) -> None:
    assert message in refused(run, f"{line} {babble_v1}")


@pytest.mark.parametrize(("line", "message"), LATE)
def test_by_the_model(run: Run, line: str, message: str) -> None:
    assert message in refused(run, line)
