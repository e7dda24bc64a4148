"""The commands of `python -m training`: what they read from the command line, and what they call."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from training.assemble import assemble as assemble_folder
from training.data import build as corpus_build
from training.data.flite import Flite
from training.data.render import source_recording
from training.data.speakers import test_speakers, train_speakers
from training.data.store import Corpus
from training.data.texts.mix import held_out, training_texts
from training.data.texts.wordnet import WordNet
from training.encode import encode as encode_corpus
from training.flow import FlowRecipe, SpeakerMajor, start_at_mean, train_flow
from training.lm import LMRecipe, build_rows, train_lm
from training.loop import Budget, Recipe
from training.prepare import find_recordings, prepare
from training.record import log
from training.speaker import run as speaker_run
from training.testset import Record, write_test_set
from training.tokenizer import run as tokenizer_run
from training.vocoder.run import train_vocoder
from training.weights import MINI, checkpoint_config, load_part, mini_config, save_part
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import VivavoceError
from vivavoce.models.flow.model import Flow
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.service.text.tokenizer import TextTokenizer

NUM_TEST_SPEAKERS = 8
"""Two of each voice, which differ clearly from one another."""
LENGTHS = (160, 288, 512)
"""Positions of the language model's training rows."""
PARTS = ("llm.pt", "flow.pt", "hift.pt")


def _present(name: str) -> str:
    """Refuse a device that is not there before any work is done."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError):
        raise typer.BadParameter(f"{name!r} is not there; `--device cpu` does for trying out") from None
    return name


FliteFolder = Annotated[
    Path | None,
    typer.Option("--flite", help="Folder with flite's libraries; else VIVAVOCE_FLITE, else the system's."),
]
WordNetFolder = Annotated[
    Path | None, typer.Option(help="Folder with WordNet's data files; else VIVAVOCE_WORDNET, else the system's.")
]
Device = Annotated[str, typer.Option(callback=_present, help="cuda, cuda:1 or cpu.")]
Seed = Annotated[int, typer.Option(help="Of weights, batches and noise.")]
Init = Annotated[Path | None, typer.Option(help="Checkpoint folder to start from; sizes and tokenizer are its own.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Worker processes; else one per core.")]


@dataclass(frozen=True)
class Training:
    """What the trainings of language model, flow and vocoder share."""

    corpus: Annotated[Path, typer.Argument(help="Folder of the corpus.")]
    out: Annotated[Path, typer.Argument(help="Folder for weights, logs, curves and the state to continue from.")]
    seconds: Annotated[float | None, typer.Option(help="Length of the whole training, pieces together.")] = None
    steps: Annotated[int | None, typer.Option(help="Length of the whole training in steps.")] = None
    piece_seconds: Annotated[float | None, typer.Option(help="End this piece earlier; the next call continues.")] = None
    device: Device = "cuda"
    seed: Seed = 0

    @property
    def budget(self) -> Budget:
        """When it ends."""
        return Budget(self.seconds, self.steps, self.piece_seconds)


def lm(
    training: Training,
    init: Init = None,
    rate: Rate = 1e-3,
    sequences: Annotated[int, typer.Option(help="Training sequences to draw from the corpus.")] = 300_000,
    positions: Annotated[int, typer.Option(help="Positions in one step.")] = 24_576,
    dropout: Annotated[float, typer.Option(help="Share of the layers' output that is dropped.")] = 0.1,
) -> None:
    """Train the language model on a corpus with speech tokens, from scratch or from a checkpoint (--init)."""
    started = time.monotonic()
    source, seed, out = Corpus.open(training.corpus), training.seed, training.out
    config = (checkpoint_config(init) if init else mini_config()).lm
    tokenizer = TextTokenizer.from_folder((init or MINI) / BACKBONE)
    rows = build_rows(source, tokenizer.encode, config, LENGTHS, sequences, seed)
    held = build_rows(source, tokenizer.encode, config, LENGTHS, max(64, sequences // 100), seed, validation=True)
    log.info("lm: %s sequences in %.0f s", [len(one) for one in rows], time.monotonic() - started)
    model = SpeechLM(config)
    if init:
        load_part(model, init, "llm")
    else:
        torch.manual_seed(seed)
        for table in (model.text_embedding, model.speech_embedding, model.control_embedding):
            torch.nn.init.normal_(table.weight, std=0.02)
    recipe = LMRecipe(Recipe(rate, warmup_steps=500, weight_decay=0.05), positions_per_step=positions, dropout=dropout)
    on = torch.device(training.device)
    state = train_lm(model, rows, held, training.budget, out, device=on, recipe=recipe, seed=seed)
    save_part(out / "llm.pt", state)


def flow(
    training: Training,
    init: Init = None,
    rate: Rate = 1e-3,
    batch: Annotated[float, typer.Option(help="Factor on the number of windows in a step.")] = 1.0,
) -> None:
    """Train the flow on a corpus with speech tokens and speaker embeddings, from scratch or from a checkpoint."""
    config = checkpoint_config(init) if init else mini_config()
    on, out = torch.device(training.device), training.out
    speech = SpeakerMajor.load(Corpus.open(training.corpus), config.mel, on)
    torch.manual_seed(training.seed)
    model = Flow(config.flow).to(on)
    if init:
        load_part(model, init, "flow")
    else:
        start_at_mean(model, speech)
    windows = tuple((size, max(1, round(count * batch))) for size, count in FlowRecipe().windows)
    recipe = FlowRecipe(Recipe(rate, warmup_steps=500), windows=windows)
    state = train_flow(model, speech, training.budget, out, device=on, recipe=recipe, seed=training.seed)
    save_part(out / "flow.pt", state)


def vocoder(
    training: Training,
    init: Annotated[
        Path | None,
        typer.Option(help="Start from a checkpoint folder, a hift.pt, or the vocoder.state.pt of a training."),
    ] = None,
    mels: Annotated[
        Path | None, typer.Option(help="The flow's mels of the corpus: .npy, float16 [tokens x 2, 80].")
    ] = None,
) -> None:
    """Train the vocoder on a corpus, or fine-tune one, and write hift.pt."""
    on = torch.device(training.device)
    if on.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
    config = checkpoint_config(init) if init is not None and init.is_dir() else mini_config()
    budget, seed = training.budget, training.seed
    try:
        train_vocoder(training.corpus, training.out, budget, on, config, seed=seed, init=init, flow_mels=mels)
    except (FileNotFoundError, ValueError, VivavoceError) as error:
        raise typer.BadParameter(str(error)) from None


def tokenizer(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder; tokens.npy is written into it.")],
    out: Annotated[Path, typer.Argument(help="Folder for state, log, curves and speech_tokenizer_v2.onnx.")],
    seconds: Annotated[float, typer.Option(help="Training time of the whole schedule.")] = 130.0,
    device: Device = "cuda",
    seed: Seed = 0,
    hours: Annotated[float, typer.Option(help="How much of the corpus to learn from.")] = 25.0,
    others: Annotated[
        Path | None, typer.Option(help="Corpus folder of other speakers to measure by; gets tokens.npy too.")
    ] = None,
) -> None:
    """Train the speech tokenizer on a corpus, or go on with it, export it, and write the corpus's speech tokens."""
    sizes, on = replace(tokenizer_run.Sizes(), hours=hours), torch.device(device)
    tokenizer_run.train_tokenizer(corpus, out, Budget(seconds=seconds), on, seed=seed, others=others, sizes=sizes)


def speaker(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder; embeddings.npy is written into it.")],
    out: Annotated[Path, typer.Argument(help="Folder for state, log, curves and campplus.onnx.")],
    seconds: Annotated[float, typer.Option(help="Training time of the whole schedule.")] = 75.0,
    device: Device = "cuda",
    seed: Seed = 0,
    hours: Annotated[float, typer.Option(help="How much of the corpus to learn from.")] = 15.0,
    others: Annotated[
        Path | None, typer.Option(help="Corpus folder of other speakers to measure by; gets embeddings.npy too.")
    ] = None,
) -> None:
    """Train the speaker encoder on a corpus, or go on with it, export it, and write the corpus's embeddings."""
    sizes, on = replace(speaker_run.Sizes(), hours=hours), torch.device(device)
    speaker_run.train_speaker(corpus, out, Budget(seconds=seconds), on, seed=seed, others=others, sizes=sizes)


def corpus(
    folder: Annotated[Path, typer.Argument(help="Where the corpus goes.")],
    hours: Annotated[float, typer.Option(min=0.001, help="Hours of audio.")] = 80.0,
    speakers: Annotated[int, typer.Option(min=1, help="Speakers, drawn evenly over flite's four voices.")] = 320,
    seed: Annotated[int, typer.Option(help="Decides texts, speakers and the draws in the sound.")] = 1,
    jobs: Jobs = None,
    flite: FliteFolder = None,
    wordnet: WordNetFolder = None,
    sentences_only: Annotated[
        int | None, typer.Option(min=1, help="Write this many texts to FOLDER/sentences.txt and nothing else.")
    ] = None,
) -> None:
    """Speak sentences with flite's voices, changed into many speakers, and write them down with their phones."""
    started = time.monotonic()
    texts = training_texts(WordNet.read(wordnet), seed)
    if sentences_only is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_lines(folder / "sentences.txt", islice(texts, sentences_only))
        return
    with Progress(
        TextColumn("{task.fields[said]}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        task = bar.add_task("corpus", total=hours, said="starting")
        built = corpus_build.build(
            folder,
            hours,
            train_speakers(speakers, seed),
            texts,
            seed,
            jobs,
            partial(Flite, flite),
            lambda done: bar.update(
                task,
                completed=done.hours,
                said=f"{done.hours:.2f} h, {done.utterances} utterances, {done.failed} failed",
            ),
        )
    seconds = time.monotonic() - started
    log.info(
        "corpus: %d utterances, %.2f hours, %d speakers, %.0f s (%.2f s per hour of audio)",
        len(built), built.hours, speakers, seconds, seconds / built.hours,
    )  # fmt: skip


def sentences(
    file: Annotated[Path, typer.Argument(help="Where the sentences go, one a line.")],
    count: Annotated[int, typer.Option(min=2, help="How many; half from WordNet, half from the grammar.")] = 200,
    seed: Annotated[int, typer.Option(help="Decides which.")] = 7,
    known_words: Annotated[
        Path | None, typer.Option(help="A dictionary, its word first on each line: no other words are used.")
    ] = None,
    wordnet: WordNetFolder = None,
) -> None:
    """Write sentences for tests; the corpus never has any of them."""
    known = None
    if known_words is not None:
        lines = known_words.read_text(encoding="utf-8").splitlines()
        known = {line.split()[0].lower() for line in lines if line.strip()}
    _write_lines(file, held_out(WordNet.read(wordnet), count, seed, known))


def encode(
    corpus: Annotated[Path, typer.Argument(help="Folder of the corpus.")],
    model: Annotated[Path, typer.Option(help="Checkpoint folder whose tokenizer and speaker encoder listen.")],
    jobs: Jobs = None,
) -> None:
    """Write a corpus's speech tokens and speaker embeddings as a finished checkpoint hears them."""
    encode_corpus(corpus, model, jobs)


def prepare_recordings(
    recordings: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="Folder of audio files, each with a transcript name.txt."),
    ],
    corpus: Annotated[Path, typer.Argument(help="Folder for the corpus.")],
    model: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Checkpoint folder that is to be tuned.")],
) -> None:
    """Turn your recordings into a corpus for fine-tuning; subfolders are speakers."""
    made, skipped = prepare(find_recordings(recordings), model, corpus)
    for one in skipped:
        log.warning("left out %s: %s", one.audio, one.reason)
    speakers = len(set(made.speaker.tolist()))
    log.info("%s: %d recordings, %.2f h, %d speakers", corpus, len(made), made.hours, speakers)


def pack(
    model: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Checkpoint folder that was tuned.")],
    parts: Annotated[Path, typer.Argument(help="Folder with the tuned llm.pt, flow.pt or hift.pt.")],
    out: Annotated[Path, typer.Argument(help="Folder for the tuned checkpoint; it must not exist.")],
) -> None:
    """Copy a checkpoint with its tuned parts in place of the old ones."""
    tuned = [name for name in PARTS if (parts / name).is_file()]
    if not tuned:
        raise typer.BadParameter(f"{parts} holds none of {', '.join(PARTS)}; train one first")
    if out.exists():
        raise typer.BadParameter(f"{out} exists already; name a new folder")
    # Other forms of a tuned part (safetensors, which would be taken first, variants, exports for other programs) are
    # of the old weights.
    shutil.copytree(model, out, ignore=shutil.ignore_patterns(*(f"{Path(name).stem}.*" for name in tuned)))
    for name in tuned:
        shutil.copyfile(parts / name, out / name)
    log.info("%s: %s with tuned %s", out, model.name, ", ".join(tuned))


def assemble(
    parts: Annotated[Path, typer.Argument(help="Folder with llm.pt, flow.pt, hift.pt and the two .onnx files.")],
    folder: Annotated[Path, typer.Argument(help="Where the checkpoint goes.")],
    flite: FliteFolder = None,
) -> None:
    """Make a checkpoint in the official layout of trained parts, with stored voices that flite speaks."""
    assemble_folder(parts, folder, _recorder(flite))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    log.info("%s: %.2f MB", folder, size / 1e6)


def record_test_set(
    folder: Annotated[Path, typer.Argument(help="Where lists and recordings go.")],
    sentences: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Held-out sentences, one a line.")
    ] = Path("benchmarks/sentences/held_out.txt"),
    count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 100,
    flite: FliteFolder = None,
) -> None:
    """Record held-out speakers for `vivavoce eval`: prompts for cloning, and the sentences themselves as a ceiling."""
    lines = sentences.read_text(encoding="utf-8").splitlines()[:count]
    speakers = test_speakers()[:NUM_TEST_SPEAKERS]
    write_test_set(folder, lines, speakers, _recorder(flite))
    log.info("%s: %d sentences of %d speakers", folder, len(lines), len(speakers))


def _recorder(libraries: Path | None) -> Record:
    """Speakers as flite and the corpus's rendering give them."""
    synthesise = Flite(libraries)
    return lambda speaker, text: source_recording(speaker, text, synthesise)


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
