"""The command `vivavoce info`, which shows the contents of a model folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vivavoce.checkpoint.config import DiTConfig, FlowConfig, TokenEncoderConfig, UNetConfig, WholeFlowConfig
from vivavoce.cli.console import Reporter, print_json, print_table, size_text
from vivavoce.cli.flags import MODEL_VARIABLE, JsonOption, argument
from vivavoce.errors import CheckpointError

if TYPE_CHECKING:
    from vivavoce.checkpoint.config import ModelConfig
    from vivavoce_inspect.model import ModelReport

EXAMPLES = ("vivavoce info CosyVoice2-0.5B", "vivavoce info ./pretrained_models/CosyVoice2-0.5B --json")
_UNKNOWN = "unknown"


def info(
    model: str | None = argument("A downloaded model or a folder.  [default: mini]", "MODEL", envvar=MODEL_VARIABLE),
    as_json: JsonOption = False,
) -> None:
    """Show the contents of a model and its problems.

    All missing or wrong files are listed at once, and no network is loaded.
    """
    with Reporter().working("reading …"):
        from vivavoce.frontend.model_choice import model_folder
        from vivavoce_inspect.model import inspect_model

        report = inspect_model(model_folder(model))
    if as_json:
        print_json(report_json(report))
    elif report.generation or report.parts:  # otherwise only the problems are shown
        print_table(describe(report))
    if report.problems:
        raise CheckpointError(report.problem_line)


def report_json(report: ModelReport) -> dict[str, Any]:
    plain = asdict(report)
    scripts = report.card.scripts
    plain["folder"] = str(report.folder)
    plain["card"]["scripts"] = None if scripts is None else sorted(scripts)
    return plain


def describe(report: ModelReport) -> list[tuple[str, str]]:
    card, config = report.card, report.config
    return [
        ("model", f"{card.name} ({card.description})" if card.description else card.name),
        ("trained", "yes" if card.trained else "no"),
        ("scripts", "any" if card.scripts is None else ", ".join(sorted(card.scripts))),
        ("folder", str(report.folder)),
        ("source", report.source or "not recorded"),
        ("generation", report.generation or _UNKNOWN),
        *(_sizes(config) if config is not None else []),
        *((part.name, f"{_count(part.num_parameters)} parameters, {', '.join(part.dtypes)}") for part in report.parts),
        ("text tokens", _UNKNOWN if report.tokenizer_size is None else f"{report.tokenizer_size:,}"),
        ("voices", ", ".join(report.voices) or "none built in"),
        ("fingerprint", report.fingerprint or _UNKNOWN),
        *((file.path, size_text(file.num_bytes)) for file in report.files),
    ]


def _sizes(config: ModelConfig) -> list[tuple[str, str]]:
    rates, lm, flow, vocoder = config.rates, config.lm, config.flow, config.vocoder
    texts = {
        "rates": f"{rates.sample_rate} Hz, {rates.frames_per_second:g} mel frames and "
        f"{rates.tokens_per_second} speech tokens per second",
        "language model": f"{lm.num_layers} layers of {lm.hidden_size}, {lm.num_heads} heads ({lm.num_kv_heads} for "
        f"keys), {lm.vocabulary.num_speech_tokens} speech tokens, {lm.max_positions} positions",
        "flow": f"{_flow_sizes(flow)}, {flow.num_steps} steps",
        "vocoder": f"{vocoder.num_mel_bins} mel bins, {vocoder.samples_per_frame} samples per frame",
    }
    return list(texts.items())


def _flow_sizes(flow: FlowConfig) -> str:
    encoder, estimator = flow.encoder, flow.estimator
    if isinstance(encoder, TokenEncoderConfig) and isinstance(estimator, UNetConfig):
        return (
            f"{encoder.num_blocks} + {encoder.num_up_blocks} encoder blocks of {encoder.hidden_size}, "
            f"{estimator.num_mid_blocks} U-Net blocks of {estimator.channels}"
        )
    if isinstance(flow, WholeFlowConfig):
        return (
            f"{flow.encoder.num_blocks} encoder blocks of {flow.encoder.hidden_size}, "
            f"{flow.estimator.num_mid_blocks} U-Net blocks of {flow.estimator.channels}"
        )
    assert isinstance(estimator, DiTConfig)
    return f"{estimator.num_blocks} DiT blocks of {estimator.size}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number:,}"
