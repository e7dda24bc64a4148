import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.chunk_policy import (
    LOOKAHEAD,
    ChunkPolicy,
    CrossfadeMode,
    Schedule,
    policy_for,
    with_short_chunks,
)
from vivavoce.errors import InvalidRequest


def hops(policy, count, prompt=0):
    """The first hops of a stream whose tokens come just in time."""
    made = []
    for index in range(count):
        made.append(policy.next_hop(index, sum(made), 0, prompt, float(index + 1)))
    return made


@pytest.mark.parametrize(
    ("policy", "prompt", "expected"),
    [
        (ChunkPolicy.official(), 87, [38, 50, 100, 100, 100]),
        (ChunkPolicy.official(), 75, [25, 50, 100, 100, 100]),
        (ChunkPolicy.official(), 0, [25, 50, 100, 100, 100]),
        (ChunkPolicy.official(first_hop=10, max_hop=30), 344, [16, 20, 30, 30]),
        (ChunkPolicy.overlapping(), 87, [100, 100, 100]),
        (ChunkPolicy.low_latency(), 87, [15, 15, 25, 50, 50]),
        (ChunkPolicy.low_latency(first_hop=8, max_hop=100), 87, [8, 8, 25, 50, 100, 100]),
        (ChunkPolicy.low_latency(first_hop=40), 0, [40, 40, 40, 50, 50]),
        (ChunkPolicy.low_latency(max_hop=20), 0, [15, 15, 20, 20]),
        (ChunkPolicy.low_latency(growth=1), 0, [15, 15, 25, 25]),
        (ChunkPolicy.equal(), 87, [25, 25, 25, 25]),
        (ChunkPolicy.equal(hop=12), 0, [12, 12, 12]),
        (ChunkPolicy.exponential(), 87, [15, 25, 50, 100, 200, 400, 800, 1000, 1000]),
        (ChunkPolicy.exponential(max_hop=120), 0, [15, 25, 50, 100, 120, 120]),
        (ChunkPolicy.exponential(growth=3), 0, [15, 25, 75, 225]),
        (ChunkPolicy.time_based(), 87, [15, 15, 15, 15]),
    ],
)
def test_hops(policy, prompt, expected):
    assert hops(policy, len(expected), prompt) == expected


@pytest.mark.parametrize(
    ("index", "spoken", "pending", "elapsed", "hop"),
    [
        (0, 0, 90, 0.1, 15),
        (1, 250, 90, 0.1, 15),  # the first chunk's cost says little: the second hop is the first's
        (2, 30, 70, 1.2, 15),  # nothing ahead
        (2, 100, 70, 2.0, 15),  # 2 s ahead at 1 s a chunk: exactly 2
        (2, 101, 70, 2.0, 60),
        (2, 101, 14, 2.0, 15),  # never below 15
        (2, 150, 70, 2.0, 60),  # exactly 4
        (2, 151, 70, 2.0, 75),
        (2, 151, 0, 2.0, 15),
        (3, 250, 44, 0.0, 45),  # a clock that has not moved
        (3, 250, 5000, 0.5, 1000),
    ],
)
def test_time_based_hops(index, spoken, pending, elapsed, hop):
    assert ChunkPolicy.time_based().next_hop(index, spoken, pending, 87, elapsed) == hop


def test_time_based_hops_know_the_token_rate():
    assert [ChunkPolicy.time_based().next_hop(2, 151, 70, 0, 2.0, rate) for rate in (25, 50)] == [75, 15]


def test_a_late_chunk_is_found_at_once():
    assert ChunkPolicy.exponential(growth=1000).next_hop(10**6, 0, 0, 0, 1.0) == 1000


@pytest.mark.parametrize("name", ["official", "low_latency", "equal", "exponential", "time_based"])
def test_names(name):
    policy = getattr(ChunkPolicy, name)()
    assert ChunkPolicy.parse(name) == policy
    assert ChunkPolicy.parse(f" {name.upper().replace('_', '-')} ") == policy
    assert policy.schedule is Schedule(name)
    assert policy.joins is (CrossfadeMode.OFFICIAL if name == "official" else CrossfadeMode.SEAMLESS)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"'fast' .* official, low-latency, equal, exponential, time-based"):
        ChunkPolicy.parse("fast")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChunkPolicy.low_latency(first_hop=3), "first_hop 3 .* 4 … 1000"),
        (lambda: ChunkPolicy.low_latency(first_hop=8.5), "first_hop 8.5"),
        (lambda: ChunkPolicy.low_latency(first_hop=True), "first_hop True"),
        (lambda: ChunkPolicy.low_latency(first_hop=51), "max_hop 50 .* 51 … 1000"),
        (lambda: ChunkPolicy.exponential(max_hop=1001), "max_hop 1001 .* 15 … 1000"),
        (lambda: ChunkPolicy.low_latency(growth=0), "growth 0 .* 1 … 1000"),
        (lambda: ChunkPolicy.equal(lookahead=4), "lookahead 4 .* 0 … 3"),
        (lambda: ChunkPolicy.equal(lookahead=-1), "lookahead -1"),
        (
            lambda: ChunkPolicy(Schedule.OFFICIAL, 25, 2, 100, lookahead=2),
            "lookahead cannot be 2; the schedule official",
        ),
        (lambda: ChunkPolicy(Schedule.EQUAL, 25, 1, 50), "max_hop cannot be 50; the schedule equal"),
        (lambda: ChunkPolicy(Schedule.EQUAL, 25, 2, 25), "growth cannot be 2; the schedule equal"),
        (lambda: ChunkPolicy(Schedule.TIME_BASED, 15, 2, 50), "growth cannot be 2; the schedule time-based"),
        (lambda: ChunkPolicy("often", 15, 1, 50), "schedule 'often'"),
    ],
)
def test_impossible_policies_are_refused(make, message):
    with pytest.raises(InvalidRequest, match=f"chunk policy: .*{message}"):
        make()


policies = st.one_of(
    st.builds(ChunkPolicy.official, first_hop=st.integers(4, 50), growth=st.integers(1, 9), max_hop=st.just(50)),
    st.builds(ChunkPolicy.low_latency, first_hop=st.integers(4, 50), growth=st.integers(1, 9)),
    st.builds(ChunkPolicy.equal, hop=st.integers(4, 1000), lookahead=st.integers(0, 3)),
    st.builds(ChunkPolicy.exponential, first_hop=st.integers(4, 15), max_hop=st.integers(15, 1000)),
    st.builds(ChunkPolicy.time_based, first_hop=st.integers(4, 15), max_hop=st.integers(15, 1000)),
)
progresses = st.builds(
    dict,
    chunks=st.integers(0, 10_000),
    spoken=st.integers(0, 10_000),
    pending=st.integers(0, 10_000),
    prompt_tokens=st.integers(0, 750),
    elapsed_s=st.floats(0, 1e4),
)


@given(policies, progresses)
def test_hops_are_bounded_and_pure(policy, progress):
    hop = policy.next_hop(**progress)
    aligned = policy.schedule is Schedule.OFFICIAL and progress["chunks"] == 0
    assert 1 <= hop <= policy.max_hop + (policy.first_hop - 1 if aligned else 0)
    assert policy.next_hop(**progress) == hop
    later = progress | {"elapsed_s": progress["elapsed_s"] + 1, "pending": progress["pending"] + 40}
    if policy.schedule is not Schedule.TIME_BASED:
        assert policy.next_hop(**later) == hop
    if aligned:
        assert (progress["prompt_tokens"] + hop - policy.first_hop) % policy.first_hop == 0


def test_cosyvoice_1_streams_as_officially_and_nothing_else_does():
    asked = (None, ChunkPolicy.parse("official"), ChunkPolicy.overlapping())
    assert {policy_for(Generation.V1, one) for one in asked} == {ChunkPolicy.overlapping()}
    for policy in (ChunkPolicy.low_latency(), ChunkPolicy.official(first_hop=50)):
        with pytest.raises(InvalidRequest, match=r"^chunk policy: CosyVoice 1 has no (low-latency|official); use off"):
            policy_for(Generation.V1, policy)
    for generation in (Generation.V2, Generation.V3):
        assert policy_for(generation, None) == ChunkPolicy.low_latency()
        assert policy_for(generation, ChunkPolicy.official()) == ChunkPolicy.official()
        with pytest.raises(InvalidRequest, match=r"^chunk policy: CosyVoice . has no overlapping"):
            policy_for(generation, ChunkPolicy.overlapping())


def test_first_chunks_of_the_default_policy_fit_the_flows_short_ones():
    default, official = ChunkPolicy.low_latency(), ChunkPolicy.official()
    shorter = with_short_chunks(default, 32, 2)
    assert hops(shorter, 4, 87) == [13, 13, 25, 50]
    assert 2 * (shorter.first_hop + LOOKAHEAD) <= 32
    assert with_short_chunks(default, 100, 2) == with_short_chunks(default, 0, 2) == default
    assert with_short_chunks(official, 32, 2) == official
    assert with_short_chunks(ChunkPolicy.low_latency(first_hop=20), 32, 2).first_hop == 20
