"""The language model and the flow: sequences, steps, and learning from a corpus of a few utterances."""

from __future__ import annotations

import copy
import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.plain.lm import LMPrompt, prompt_rows
from tests.training.capturable import uncapturable
from tests.training.tones import write_corpus, write_tones
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import LMConfig, qwen2_of
from vivavoce.checkpoint.weights import read_tensors
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import CheckpointError, InvalidRequest, UnsupportedModel
from vivavoce.frontend.front_end import load_front_end
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.voices.voice import Voice
from vivavoce.models.build import Models
from vivavoce.models.flow.model import Flow
from vivavoce.models.generations import NETWORKS
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce_training import whole_rows
from vivavoce_training.commands import app, flow, lm, pack
from vivavoce_training.data.store import Corpus, Speaker, write_array
from vivavoce_training.flow import FlowRecipe, FlowStep, SpeakerMajor, flow_losses, start_at_mean
from vivavoce_training.lm import (
    CONTROL,
    IGNORED,
    PAD,
    SPEECH,
    TEXT,
    LMRecipe,
    LMStep,
    Mix,
    Rows,
    _logits,
    _padded,
    arriving_text,
    build_rows,
    draw_rows,
    validation_texts,
    whole_text,
    with_noise,
)
from vivavoce_training.lora import LoRA
from vivavoce_training.options import Training
from vivavoce_training.weights import MINI, load_part, new_config, sizes_of, text_ids

CPU = torch.device("cpu")

CONFIG = qwen2_of(new_config().lm)
EOS = CONFIG.vocabulary.eos
MINI3 = MINI.with_name("mini3")
CONFIG3 = qwen2_of(new_config(MINI3).lm)


@pytest.fixture(params=["babble", "babble_v3"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.fixture(params=["models", "models_v3"])
def each(request: pytest.FixtureRequest) -> Models:
    """Networks of each generation."""
    networks: Models = request.getfixturevalue(request.param)
    return networks


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """80 utterances of 4 speakers; a speech token tells its utterance."""
    lengths = [8 + number % 5 for number in range(80)]
    total = sum(lengths)
    made = write_corpus(
        tmp_path,
        np.zeros(total * 960, np.int16),
        None,
        lengths,
        [number % 4 for number in range(80)],
        [f"text {number}" for number in range(80)],
        [Speaker(f"s{number}", "recorded") for number in range(4)],
    )
    write_array(tmp_path / "tokens.npy", np.repeat(np.arange(80, dtype=np.int16), lengths))
    return made


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_whole_text() -> None:
    row = whole_text([7, 8], [1, 2, 3], CONFIG)
    assert row == [
        (CONTROL, 0, IGNORED),
        (TEXT, 7, IGNORED),
        (TEXT, 8, IGNORED),
        (CONTROL, 1, 1),
        (SPEECH, 1, 2),
        (SPEECH, 2, 3),
        (SPEECH, 3, EOS),
    ]


def test_a_system_prompt_stands_before_the_text() -> None:
    row = whole_text([7], [1, 2], CONFIG3, system=[5, 6])
    assert row == [
        (CONTROL, 6561, IGNORED),
        (TEXT, 5, IGNORED),
        (TEXT, 6, IGNORED),
        (TEXT, 7, IGNORED),
        (CONTROL, 6563, 1),
        (SPEECH, 1, 2),
        (SPEECH, 2, 6562),
    ]


@pytest.mark.parametrize(("config", "system"), [(CONFIG, ()), (CONFIG3, (1, 2, 3))])
def test_arriving_text_is_what_a_stream_feeds(config: LMConfig, system: tuple[int, ...]) -> None:
    """The interleaver of the engine walks through the sequence and finds its own rows in it."""
    text, speech = list(range(20, 32)), list(range(100, 140))
    row = arriving_text(text, speech, config, system)
    interleaver = TextInterleaver(config.vocabulary, (config.mix_text, config.mix_speech), system_text=system)
    interleaver.push(text)
    kinds = {RowKind.CONTROL: CONTROL, RowKind.TEXT: TEXT, RowKind.SPEECH: SPEECH}
    fed: list[Row] = []
    position = 0
    while not interleaver.done:
        rows = interleaver.next_rows()
        if rows is None:
            interleaver.close()
            continue
        for one in rows:
            if (kinds[one.kind], one.id) == row[position][:2]:
                position += 1
            else:
                # After a fill, the stream feeds the last token again in front of the text; a trained sequence does not.
                assert one == fed[-1]
            fed.append(one)
        target = row[position - 1][2]
        assert target != IGNORED
        interleaver.accept(target)
    assert position == len(row)
    assert len(fed) == len(row) + 1


def test_arriving_text_needs_speech() -> None:
    with pytest.raises(ValueError, match="14 speech tokens"):
        arriving_text([1, 2, 3, 4, 5], range(14), CONFIG)


def test_rows_hold_whole_utterances_of_one_speaker(corpus: Corpus) -> None:
    rows = build_rows(corpus, encode, CONFIG, (40, 120), 300, seed=1, mix=Mix(arriving=0.0, other_case=0.0))
    assert all(len(one) for one in rows)
    joined = 0
    for one in rows:
        for kinds, ids, targets in zip(one.kinds, one.ids, one.targets, strict=True):
            spoken = ids[kinds == SPEECH].tolist()
            utterances = list(dict.fromkeys(spoken))
            joined += len(utterances) > 1
            assert len({utterance % 4 for utterance in utterances}) == 1
            written = "".join(chr(one_id) for one_id in ids[kinds == TEXT])
            assert written.replace(" text", "text") == "".join(f"text {number}" for number in utterances) or (
                len(utterances) < written.count("text")  # the same utterance twice in a row
            )
            assert targets[kinds == SPEECH][-1] == EOS
            assert (targets[kinds == PAD] == IGNORED).all()
    assert joined > 100


def test_every_row_begins_with_the_system_prompt_and_holds_it_once(corpus: Corpus) -> None:
    for one in build_rows(corpus, encode, CONFIG3, (40, 120), 100, seed=1, system=(400, 401)):
        assert len(one)
        assert (one.ids[:, 1:3] == (400, 401)).all()
        assert ((one.ids >= 400) & (one.kinds == TEXT)).sum() == 2 * len(one)


def test_the_prompt_and_the_ids_are_those_that_speech_is_asked_for_with(checkpoint: Path) -> None:
    front_end = load_front_end(checkpoint)
    conditioning = front_end.conditioning(Voice(torch.zeros(192), ""))
    encode, system = text_ids(checkpoint, front_end.config)
    assert tuple(system) == conditioning.lm_system_text
    assert tuple(encode("Hello.")) == front_end.text.encode("Hello.")


@torch.no_grad()
def test_what_is_trained_is_what_a_decode_reads(each: Models) -> None:
    text, speech, system = (70, 71, 72), (5, 6, 7, 8), (80, 81)
    padded = _padded([whole_text(text, speech, each.lm.config, system)], 16)
    kinds, ids = torch.from_numpy(padded.kinds), torch.from_numpy(padded.ids).long()
    prompt = LMPrompt(text, prompt_text=system, prompt_speech=speech)
    expected = each.lm.log_probabilities(each.lm(prompt_rows(each.lm, prompt)[None]))[0]
    found = _logits(each.lm, kinds, ids)[0].log_softmax(-1)
    torch.testing.assert_close(found[: len(expected)], expected, rtol=0, atol=1e-4)


def test_validation_texts_are_kept_apart(corpus: Corpus) -> None:
    kept = validation_texts(corpus.texts)
    held = {number for number, text in enumerate(corpus.texts) if text in kept}
    assert len(held) == 8
    trained = _utterances(build_rows(corpus, encode, CONFIG, (120,), 400, seed=0))
    checked = _utterances(build_rows(corpus, encode, CONFIG, (120,), 50, seed=0, validation=True))
    assert not trained & held
    assert checked <= held


def test_validation_takes_one_text_in_200_and_more_of_few() -> None:
    texts = [f"Text {number}" for number in range(4000)]
    kept = validation_texts(texts)
    assert len(kept) == 20
    assert kept == validation_texts([*reversed(texts), *(text.upper() for text in texts)])
    assert [len(validation_texts(texts[:count])) for count in (9, 10, 50, 80, 1600)] == [0, 1, 5, 8, 8]


def test_a_corpus_too_small_to_measure_by_has_no_rows_for_it(tmp_path: Path) -> None:
    few = write_corpus(*(tmp_path, np.zeros(9600, np.int16), None), [10], [0], ["one text"], [Speaker("s", "recorded")])
    write_array(tmp_path / "tokens.npy", np.arange(10, dtype=np.int16))
    assert build_rows(few, encode, CONFIG, (120,), 5, seed=0, validation=True) == []
    assert len(build_rows(few, encode, CONFIG, (120,), 5, seed=0)[0]) == 5


def test_large_vocabularies_fit(corpus: Corpus) -> None:
    (rows,) = build_rows(corpus, lambda text: [151_642], CONFIG, (120,), 5, seed=0)
    assert (rows.ids[rows.kinds == TEXT] == 151_642).all()


def _utterances(rows: list[Rows]) -> set[int]:
    return {int(number) for one in rows for number in one.ids[one.kinds == SPEECH]}


def test_the_same_seed_gives_the_same_rows(corpus: Corpus) -> None:
    first, again, other = (build_rows(corpus, encode, CONFIG, (120,), 20, seed=seed)[0] for seed in (3, 3, 4))
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)


def test_rows_are_the_same_for_any_number_of_processes(corpus: Corpus) -> None:
    draw = partial(draw_rows, corpus.folder, MINI, new_config(), (400,), 5_020, 3)
    (alone,), (shared,) = draw(jobs=1), draw(jobs=2)
    assert len(alone) == 5_020  # one process draws 5,000 at a time
    assert np.array_equal(alone.ids, shared.ids)
    assert np.array_equal(alone.targets, shared.targets)
    assert np.array_equal(alone.kinds, shared.kinds)
    assert not np.array_equal(alone.ids[:20], alone.ids[5_000:])
    checked = _utterances(draw(jobs=1, validation=True))
    assert checked
    assert not checked & _utterances([alone])


RECIPE = LMRecipe(positions_per_step=48)


def rows(length: int, largest_text: int = 200) -> Rows:
    """Three rows: text, speech and padding."""
    kinds = np.full((3, length), SPEECH, np.uint8)
    kinds[:, 0], kinds[:, 1:5], kinds[:, 5], kinds[:, -2:] = CONTROL, TEXT, CONTROL, PAD
    ids = np.arange(3 * length, dtype=np.int32).reshape(3, length)
    ids[kinds == TEXT] = largest_text
    ids[kinds == CONTROL] = 1
    targets = np.where(kinds == SPEECH, ids % 100, IGNORED).astype(np.int16)
    return Rows(kinds, ids, targets)


def test_a_step_of_the_language_model_can_be_captured(each: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    step = LMStep(copy.deepcopy(each.lm), [rows(12), rows(24)], RECIPE, CPU)
    for variant in (0, 1):
        assert uncapturable(step, variant, monkeypatch) == []


def test_a_text_vocabulary_may_be_larger_than_the_speech_tokens(models: Models) -> None:
    large = replace(models.config.lm, text_vocab_size=20_000)
    torch.manual_seed(0)
    lm = SpeechLM(large)
    values = LMStep(lm, [rows(12, 19_999)], RECIPE, CPU)(0)
    assert values["loss"].isfinite()


def test_lengths_without_rows_are_no_variants(models: Models) -> None:
    none = Rows(*(np.zeros((0, 8), kind) for kind in (np.uint8, np.int32, np.int16)))
    assert LMStep(copy.deepcopy(models.lm), [none, rows(12)], RECIPE, CPU).positions == [36]
    with pytest.raises(InvalidRequest, match="no utterance fits into a training row"):
        LMStep(copy.deepcopy(models.lm), [none], RECIPE, CPU)


WINDOWS = ((20, 3), (40, 2))


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory, models: Models) -> SpeakerMajor:
    corpus = write_tones(tmp_path_factory.mktemp("corpus"))
    generator = np.random.default_rng(0)
    write_array(corpus.folder / "embeddings.npy", generator.standard_normal((len(corpus), 192)).astype(np.float16))
    return SpeakerMajor.load(corpus, models.config.mel, CPU)


@pytest.mark.parametrize("variant", [0, 1, 2, 3])
def test_a_step_of_the_flow_can_be_captured(
    variant: int, speech: SpeakerMajor, each: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FlowStep(copy.deepcopy(each.flow), speech, FlowRecipe(windows=WINDOWS))
    assert uncapturable(step, variant, monkeypatch) == []


def test_a_corpus_shorter_than_a_window(speech: SpeakerMajor, models: Models) -> None:
    longer = len(speech.tokens) + 1
    with pytest.raises(InvalidRequest, match=f"{longer} are needed; add recordings"):
        FlowStep(copy.deepcopy(models.flow), speech, FlowRecipe(windows=((20, 3), (longer, 2))))


@torch.no_grad()
def test_an_untrained_flow_starts_at_the_mean_mel(speech: SpeakerMajor, each: Models) -> None:
    flow, mean = Flow(each.config.flow), speech.mels.float().mean(0)
    start_at_mean(flow, speech)
    torch.testing.assert_close(flow.estimator.out.bias, mean, rtol=0, atol=0.05)
    assert not any(weight.any() for name, weight in flow.estimator.named_parameters() if "modulation" in name)
    tokens = torch.arange(200)[None]
    mu, _ = whole_rows.encode(flow, tokens, torch.tensor([200]), torch.tensor([True]), chunked=False)
    torch.testing.assert_close(mu[0].mean(0), mean, rtol=0, atol=0.5)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    r = np.random.default_rng(0)
    lengths = r.integers(30, 60, 24)
    total = int(lengths.sum())
    texts = [f"A sentence about number {number} and its garden." for number in range(24)]
    made = write_corpus(
        folder,
        r.integers(-3000, 3000, total * 960).astype(np.int16),
        None,
        lengths,
        [number % 3 for number in range(24)],
        texts,
        [Speaker(f"s{number}", "recorded") for number in range(3)],
    )
    write_array(folder / "tokens.npy", r.integers(0, 50, total).astype(np.int16))
    write_array(folder / "embeddings.npy", r.standard_normal((24, 192)).astype(np.float16))
    return made


def losses(folder: Path, part: str, name: str) -> list[float]:
    entries = [json.loads(line) for line in (folder / f"{part}.log.jsonl").read_text().splitlines()]
    return [entry[name] for entry in entries if name in entry]


def test_fine_tuning_lowers_both_losses(recordings: Corpus, checkpoint: Path, tmp_path: Path) -> None:
    for steps in (1, 16):  # the state of the first call is continued by the second
        training = Training(recordings.folder, tmp_path, steps=steps, device="cpu")
        lm(training, init=checkpoint, rate=3e-2, sequences=60, positions=400, dropout=0.1, lora=None)
        flow(training, init=checkpoint, rate=3e-2, batch=0.02)
    for part, loss in (("lm", "ce"), ("flow", "cfm")):
        first, *_, last = losses(tmp_path, part, loss)
        assert last < first
        official = read_tensors(checkpoint / {"lm": "llm.pt", "flow": "flow.pt"}[part])
        tuned = read_tensors(tmp_path / {"lm": "llm.pt", "flow": "flow.pt"}[part])
        assert {name: tensor.shape for name, tensor in tuned.items()} == {
            name: tensor.shape for name, tensor in official.items() if not name.endswith(("lm_head.weight", "inv_freq"))
        }
        assert all(tensor.dtype == torch.float16 for tensor in tuned.values())
    pack(str(checkpoint), tmp_path, tmp_path / "new")
    spoken, packed = (_spoken(folder) for folder in (checkpoint, tmp_path / "new"))
    assert len(packed) > 0
    assert np.isfinite(packed).all()
    assert not np.array_equal(packed[: len(spoken)], spoken[: len(packed)])


def test_an_adapter_learns_and_is_loaded_again(recordings: Corpus, checkpoint: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "brand", (checkpoint / "llm.pt").read_bytes()
    for steps in (1, 16):  # the state of the first call is continued by the second
        training = Training(recordings.folder, out, steps=steps, device="cpu")
        lm(training, init=checkpoint, rate=3e-1, sequences=60, positions=400, dropout=0.1, lora=4)
    first, *_, last = losses(out, "lm", "valid_ce")
    assert last < first
    assert not (out / "llm.pt").exists()
    assert (checkpoint / "llm.pt").read_bytes() == before
    state = torch.load(out / "lm.state.pt", weights_only=True)
    assert {name.rpartition("/")[2] for name in state["modules"]["lm"]} == {"lora_A", "lora_B"}
    tuned = _spoken(checkpoint, out)
    assert np.isfinite(tuned).all()
    assert not np.array_equal(_spoken(checkpoint)[: len(tuned)], tuned)


def test_an_adapter_without_a_model_is_refused(recordings: Corpus, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="lora: an adapter belongs to a model; name it with --init"):
        lm(Training(recordings.folder, tmp_path, steps=1, device="cpu"), init=None, lora=4)


def test_an_untrained_adapter_changes_nothing(each: Models) -> None:
    model, given = copy.deepcopy(each.lm), torch.randn(1, 7, each.lm.config.hidden_size)
    adapter = LoRA(model, 3)
    assert torch.equal(model(given), each.lm(given))
    torch.nn.init.ones_(adapter.get_parameter("layers/0/mlp/down_proj/lora_B"))
    assert not torch.equal(model(given), each.lm(given))
    adapter.eval()
    assert not model.training
    adapter.train()
    assert model.training


def _spoken(folder: Path, adapter: Path | None = None) -> np.ndarray:
    settings = EngineSettings(adapters={} if adapter is None else {"own": adapter})
    with closing(Vivavoce(*load_model(folder, (CPU,), settings=settings))) as synthesizer:
        name = None if adapter is None else "own"
        return synthesizer.speak("Hi.", Voice(torch.ones(192), ""), adapter=name).samples


def test_a_small_cosyvoice3_is_begun_from_its_settings(recordings: Corpus, tmp_path: Path) -> None:
    given = [str(recordings.folder), str(tmp_path), "--steps", "1", "--device", "cpu", "--settings", str(MINI3)]
    for line in (["lm", *given, "--sequences", "20", "--positions", "512"], ["flow", *given, "--batch", "0.01"]):
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, result.output
    config = new_config(MINI3)
    for name in ("lm", "flow"):
        part = NETWORKS[config.generation][name]
        load_part(part.build(config), tmp_path / f"{part.part}.pt", part)


def test_settings_that_cannot_be_followed(babble: Path, babble_v1: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is given beside --init, whose model has its own; leave one out"):
        sizes_of(babble, MINI3)
    with pytest.raises(UnsupportedModel, match=r"v1; .* is for v2 \(CosyVoice2\) and v3 \(CosyVoice3\)"):
        sizes_of(None, babble_v1)
    with pytest.raises(UnsupportedModel, match="generation v1"):
        lm(Training(tmp_path, tmp_path, steps=1, device="cpu"), init=str(babble_v1))
    config = new_config(MINI3)
    with pytest.raises(CheckpointError, match="vocab_size 700 is below the tokenizer's 793 ids; make it as large"):
        text_ids(MINI3, replace(config, lm=replace(qwen2_of(config.lm), text_vocab_size=700)))


def test_windows_stay_within_a_speaker(recordings: Corpus, models: Models) -> None:
    speech = SpeakerMajor.load(recordings, models.config.mel, CPU)
    torch.manual_seed(0)
    spoken = np.repeat(recordings.speaker, np.diff(recordings.start))
    blocks = [np.asarray(recordings.tokens)[spoken == speaker].tolist() for speaker in range(3)]
    embeddings = np.asarray(recordings.embeddings, np.float32)
    for _ in range(20):
        tokens, mel, embedding = speech.draw(8, 40)
        assert mel.shape == (8, 80, 80)
        for row, vector in zip(tokens.tolist(), embedding, strict=True):
            (home,) = [place for place, block in enumerate(blocks) if _holds(block, row)]
            (owner,) = np.flatnonzero((embeddings == vector.numpy()).all(axis=1))
            assert recordings.speaker[owner] == home


def _holds(block: list[int], row: list[int]) -> bool:
    return any(block[first : first + len(row)] == row for first in range(len(block) - len(row) + 1))


@pytest.mark.parametrize("chunked", [False, True])
def test_every_weight_of_the_flow_learns(recordings: Corpus, each: Models, chunked: bool) -> None:
    flow_model = copy.deepcopy(each.flow).requires_grad_(True)
    speech = SpeakerMajor.load(recordings, each.config.mel, CPU)
    torch.manual_seed(0)
    values = flow_losses(flow_model, *speech.draw(4, 40), FlowRecipe(), chunked=chunked)
    (values["cfm"] + values["mu"]).backward()
    for name, parameter in flow_model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if "attention.key.bias" not in name:  # a constant added to all scores of a query changes nothing
            assert parameter.grad.abs().max() > 0, name


def test_noise_touches_speech_only() -> None:
    torch.manual_seed(0)
    ids, kinds = torch.full((50, 40), 3), torch.randint(0, 4, (50, 40))
    noisy = with_noise(ids, kinds, 0.5, 1000)
    changed = noisy != ids
    assert changed.any()
    assert not (changed & (kinds != SPEECH)).any()
    assert changed.float().sum() / (kinds == SPEECH).sum() < 0.35
    assert torch.equal(with_noise(ids, kinds, 0.0, 1000), ids)
