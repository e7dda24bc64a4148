"""`python -m tests.parity.excerpt FOLDER OUT`: cut a folder of goldens down to what the repository carries.

Keeps the front end and tiny checkpoints' goldens, a few cases of each kind, with the files that they need.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import numpy as np

MANIFEST, CAUSAL, FIRST = "v2-tiny", "v3-tiny", "v1-tiny"
RECORDING = "zero_shot_prompt.wav"
KEPT = {
    "frontend/audio": ["zero_shot"],
    f"{MANIFEST}/modes": ["zero_shot", "cross_lingual", "sft", "instruct2", "saved_speaker_entry"],
    f"{MANIFEST}/llm": [
        "teacher/no_prompt",
        "greedy/one_word",
        "greedy/zero_shot",
        "greedy/stop_at_once",
        "greedy/ratios",
        "stop",
        "bistream",
        "ras",
        "silence",
    ],
    f"{MANIFEST}/flow": ["prompt_31_target_40"],
    f"{MANIFEST}/hift": ["unvoiced", "noisy"],
    f"{MANIFEST}/e2e": ["cross_lingual", "speed_1.3", "sft", "vc_offline"],
    f"{FIRST}/modes": ["zero_shot", "sft", "instruct"],
    f"{FIRST}/llm": ["teacher/no_prompt", "greedy/one_word"],
    f"{FIRST}/flow": ["no_prompt_37"],
    f"{FIRST}/hift": ["noisy"],
    f"{FIRST}/e2e": ["sft"],
    f"{CAUSAL}/modes": ["zero_shot", "cross_lingual", "sft", "instruct2"],
    f"{CAUSAL}/llm": [
        "teacher/no_prompt",
        "greedy/one_word",
        "greedy/zero_shot",
        "greedy/stop_at_once",
        "stop",
        "bistream/no_prompt",
        "bistream/prompt",
        "silence",
    ],
    f"{CAUSAL}/flow": ["no_prompt_37"],
    f"{CAUSAL}/hift": ["unvoiced", "noisy"],
    f"{CAUSAL}/e2e": ["speed_1.3", "sft"],
}
SHARED = re.compile(r"rand_noise/|t_span|estimator/")
DROPPED = re.compile(
    r"mel_v3|mel_v1_true22k|logp_last|estimator/out_streaming0|"
    r"v1-tiny/flow/(estimator|rand_noise)|v1-tiny/.*/(flow|hift)_mel"
)


def keep(label: str, name: str, cases: list[str]) -> bool:
    wanted = bool(SHARED.match(name)) or any(name == case or name.startswith(f"{case}/") for case in cases)
    return wanted and not DROPPED.search(f"{label}/{name}")


def cut(source: Path, target: Path) -> None:
    for path in (
        "make_checkpoint.py",
        f"manifests/{MANIFEST}.json",
        f"manifests/{CAUSAL}.json",
        f"manifests/{FIRST}.json",
        f"wavs/{RECORDING}",
        "goldens/frontend/text.json",
    ):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)
    for manifest in (target / "manifests").glob("*.json"):
        manifest.write_text(json.dumps(json.loads(manifest.read_text("utf-8")), ensure_ascii=False), "utf-8")
    for label, cases in KEPT.items():
        meta = json.loads((source / "goldens" / f"{label}.json").read_text("utf-8"))
        meta["cases"] = {name: case for name, case in meta["cases"].items() if keep(label, name, cases)}
        meta.pop("arrays", None)
        arrays = np.load(source / "goldens" / f"{label}.npz")
        out = target / "goldens" / label
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").write_text(json.dumps(meta, ensure_ascii=False, indent=1), "utf-8")
        np.savez_compressed(
            out.with_suffix(".npz"), **{name: arrays[name] for name in arrays.files if keep(label, name, cases)}
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    cut(options.source, options.target)
