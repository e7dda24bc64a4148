"""What `vivavoce bench` was asked for, and what of it can be refused before a model loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.doors.cli.model import EngineChoice, ModelChoice
from vivavoce.doors.cli.output import STDOUT, check_writable
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.bench.load import Load
    from vivavoce.bench.workload import Workload
    from vivavoce.engine.chunk_policy import ChunkPolicy
    from vivavoce.engine.request import SamplingParams
    from vivavoce.engine.settings import EngineSettings

_DEFAULT_WARMUP = 4
DEFAULT_POLICY = "low_latency"


@dataclass(frozen=True)
class BenchRequest:
    """The options as they were typed."""

    choice: ModelChoice
    engine: EngineChoice
    concurrency: int | None
    rate: float | None
    requests: int
    warmup: int | None
    text_file: Path | None
    words: str | None
    tokens: int | None
    voices: Sequence[str]
    prompt_texts: Sequence[str]
    offline: bool
    policy: str | None
    first_hop: int | None
    lookahead: int | None
    seed: int
    quality: bool
    json_file: str | None
    plot: Path | None
    command: str
    """As a shell would read it."""


@dataclass(frozen=True, eq=False)
class CheckedRequest:
    """The same, understood."""

    asked: BenchRequest
    load: Load
    workload: Workload
    """Its voices are names of `asked.voices`."""
    warmup: int
    policy: ChunkPolicy | None
    sampling: SamplingParams
    settings: EngineSettings


def check(asked: BenchRequest) -> CheckedRequest:
    """Understand the options.

    Raises:
        InvalidRequest: options that exclude one another, or are out of their limits.
        MissingDependency: there is nothing to draw with.
    """
    from vivavoce.bench.load import ClosedLoop, OpenLoop
    from vivavoce.engine.request import SamplingParams
    from vivavoce.service.limits import check_seed

    check_seed(asked.seed)
    _check_combination(asked)
    settings = asked.engine.settings()
    load: Load
    if asked.rate is None:
        load = ClosedLoop(1 if asked.concurrency is None else asked.concurrency)
        warmup = min(load.concurrency, asked.requests)
    else:
        load, warmup = OpenLoop(asked.rate, asked.seed), _DEFAULT_WARMUP
    checked = CheckedRequest(
        asked,
        load,
        _workload(asked),
        warmup if asked.warmup is None else asked.warmup,
        _policy(asked),
        SamplingParams(exact_tokens=asked.tokens),
        settings,
    )
    _check_places(asked)
    return checked


def _check_combination(asked: BenchRequest) -> None:
    if asked.rate is not None and asked.concurrency is not None:
        raise InvalidRequest("rate: users come at a rate or ask again when answered; leave --rate or --concurrency out")
    if asked.offline:
        given = {"--policy": asked.policy, "--first-hop": asked.first_hop, "--lookahead": asked.lookahead}
        for option, value in given.items():
            if value is not None:
                raise InvalidRequest(f"offline: whole utterances are not cut into chunks; leave {option} out")
    if asked.quality and asked.tokens is not None:
        raise InvalidRequest("quality: speech of a forced length says nothing whole; leave --tokens or --quality out")


def _workload(asked: BenchRequest) -> Workload:
    from vivavoce.bench.texts import SENTENCES
    from vivavoce.bench.workload import Workload, read_texts, with_words

    texts = SENTENCES if asked.text_file is None else read_texts(asked.text_file)
    if asked.words is not None:
        texts = with_words(texts, *_range(asked.words))
    return Workload(texts, asked.voices or [None], asked.seed)


def _range(words: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", words)
    if found is None or int(found[1]) > int(found[2]):
        raise InvalidRequest(f"words: {words!r} is no range; write the fewest and the most, such as 5-15")
    return int(found[1]), int(found[2])


def _policy(asked: BenchRequest) -> ChunkPolicy | None:
    """How streams are cut; None for whole utterances."""
    from vivavoce.engine.chunk_policy import ChunkPolicy, Schedule

    if asked.offline:
        return None
    policy = ChunkPolicy.parse(asked.policy or DEFAULT_POLICY)
    if asked.first_hop is not None:
        equal = policy.schedule is Schedule.EQUAL
        policy = replace(policy, first_hop=asked.first_hop, max_hop=asked.first_hop if equal else policy.max_hop)
    return policy if asked.lookahead is None else replace(policy, lookahead=asked.lookahead)


def _check_places(asked: BenchRequest) -> None:
    if asked.json_file not in (None, STDOUT):
        check_writable(Path(str(asked.json_file)), field="json")
    if asked.plot is not None:
        from vivavoce.bench.picture import check_drawing

        check_drawing()
        check_writable(asked.plot, field="plot")
