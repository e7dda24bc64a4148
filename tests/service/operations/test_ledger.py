"""The book of requests: bounded, and each caller sees its own."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from vivavoce.errors import InvalidRequest, RequestNotFound
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.callers import ANYBODY, Caller
from vivavoce.service.operations.ledger import Entry, Ledger, RequestStatus, new_request_id

STOP = Verdict(FinishReason.STOP, 2.5, 3, 3)
ANNA, BERT = Caller("anna"), Caller("bert")


def finished(ledger: Ledger, request_id: str, caller: Caller = ANYBODY) -> None:
    ledger.begin(request_id, caller.name, "http", 0.0)
    ledger.end(request_id, STOP, first_audio_s=0.25, total_s=1.0)


def test_a_running_request_tells_how_far_it_is() -> None:
    ledger = Ledger()
    ledger.begin("a", "anna", "websocket", 1_700_000_000.0)
    assert ledger.get("a", ANNA).admission_s is None
    ledger.admitted("a", 0.05)
    ledger.progress("a", 1.5, 1, 4)
    entry = ledger.get("a", ANNA)
    assert (entry.status, entry.door, entry.started) == (RequestStatus.RUNNING, "websocket", 1_700_000_000.0)
    assert (entry.audio_s, entry.segments_spoken, entry.segments_given) == (1.5, 1, 4)
    assert (entry.admission_s, entry.first_audio_s, entry.total_s, entry.reason) == (0.05, None, None, None)


def test_a_finished_request_tells_its_verdict() -> None:
    ledger = Ledger()
    ledger.begin("a", "", "http", 5.0)
    ledger.end(
        "a",
        Verdict(FinishReason.ERROR, 2.5, 2, 4, "engine: it broke", "engine_stopped"),
        first_audio_s=0.25,
        total_s=3.5,
    )
    entry = ledger.get("a", ANYBODY)
    assert (entry.status, entry.reason) == (RequestStatus.FINISHED, FinishReason.ERROR)
    assert (entry.error, entry.error_code) == ("engine: it broke", "engine_stopped")
    assert (entry.audio_s, entry.segments_spoken, entry.segments_given) == (2.5, 2, 4)
    assert (entry.first_audio_s, entry.total_s) == (0.25, 3.5)
    assert ledger.running == 0


def test_what_comes_after_the_end_changes_nothing() -> None:
    ledger = Ledger()
    finished(ledger, "a")
    before = ledger.get("a", ANYBODY)
    ledger.progress("a", 9.0, 9, 9)
    ledger.admitted("a", 9.0)
    ledger.end("a", Verdict(FinishReason.CANCELLED, 9.0, 9, 9), first_audio_s=0.25, total_s=9.0)
    assert ledger.get("a", ANYBODY) == before
    assert len(ledger) == 1


def test_another_callers_request_is_told_like_one_that_is_not() -> None:
    ledger = Ledger()
    finished(ledger, "a", ANNA)
    with pytest.raises(RequestNotFound) as other:
        ledger.get("a", BERT)
    finished(ledger, "b", BERT)
    with pytest.raises(RequestNotFound) as unknown:
        ledger.get("c", BERT)
    assert str(other.value).replace("'a'", "ID") == str(unknown.value).replace("'c'", "ID")
    with pytest.raises(RequestNotFound):
        ledger.get("a", ANYBODY)


def test_a_message_about_an_unknown_id_is_one_short_line() -> None:
    with pytest.raises(RequestNotFound) as error:
        Ledger().get("\n" * 100_000, ANYBODY)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_the_first_to_finish_is_forgotten_first_and_running_ones_stay() -> None:
    ledger = Ledger(capacity=3)
    ledger.begin("early", "", "http", 0.0)
    ledger.begin("long", "", "http", 0.0)
    finished(ledger, "second")
    ledger.end("early", STOP, first_audio_s=0.25, total_s=2.0)
    finished(ledger, "third")
    assert len(ledger) == 3
    assert ledger.get("long", ANYBODY).status is RequestStatus.RUNNING
    assert ledger.get("early", ANYBODY).total_s == 2.0
    with pytest.raises(RequestNotFound):
        ledger.get("second", ANYBODY)


def test_more_running_requests_than_it_holds_are_all_kept_until_they_end() -> None:
    ledger = Ledger(capacity=2)
    for request_id in "abc":
        ledger.begin(request_id, "", "http", 0.0)
    assert ledger.running == 3
    for request_id in "abc":
        ledger.end(request_id, STOP, first_audio_s=0.25, total_s=1.0)
    assert len(ledger) == 2
    with pytest.raises(RequestNotFound):
        ledger.get("a", ANYBODY)


def test_memory_is_bounded() -> None:
    ledger = Ledger(capacity=10)
    for number in range(1000):
        finished(ledger, str(number))
    assert len(ledger) == 10
    assert ledger.get("999", ANYBODY).status is RequestStatus.FINISHED


def test_nobody_takes_over_an_id() -> None:
    ledger = Ledger()
    ledger.begin("a", "anna", "http", 0.0)
    with pytest.raises(InvalidRequest, match="another request's"):
        ledger.begin("a", "bert", "http", 0.0)
    ledger.end("a", STOP, first_audio_s=0.25, total_s=1.0)
    with pytest.raises(InvalidRequest, match="another request's"):
        ledger.begin("a", "bert", "http", 0.0)
    assert ledger.get("a", ANNA).caller_name == "anna"


def test_watchers_are_told_of_each_beginning_and_its_one_end() -> None:
    begun: list[Entry] = []
    ended: list[tuple[Entry, Entry]] = []

    def watch(first: Entry) -> Callable[[Entry], None]:
        begun.append(first)
        return lambda last: ended.append((first, last))

    ledger = Ledger(watchers=[watch])
    ledger.begin("a", "", "http", 0.0)
    ledger.begin("b", "", "http", 0.0)
    assert [entry.request_id for entry in begun] == ["a", "b"]
    assert ended == []
    for _ in range(2):
        ledger.end("b", STOP, first_audio_s=0.25, total_s=1.0)
    assert [(first.request_id, last.request_id, last.reason) for first, last in ended] == [
        ("b", "b", FinishReason.STOP)
    ]


def test_a_capacity_of_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="capacity: 0"):
        Ledger(capacity=0)


@pytest.mark.parametrize("header", ["a", "Job-7.part_2", "x" * 128])
def test_a_clients_id_is_taken(header: str) -> None:
    assert Ledger().accept_request_id(header) == header


@pytest.mark.parametrize("header", [None, "", "x" * 129, "a b", "a\n", "ä", "a/b", '"', "\x1b[31m"])
def test_a_clients_id_that_cannot_be_one_is_replaced(header: str | None) -> None:
    assert re.fullmatch(r"req_[A-Za-z0-9_-]{22}", Ledger().accept_request_id(header))


def test_a_clients_id_that_is_known_is_replaced_until_it_is_forgotten() -> None:
    ledger = Ledger(capacity=1)
    ledger.begin("a", "", "http", 0.0)
    assert ledger.accept_request_id("a") != "a"
    ledger.end("a", STOP, first_audio_s=0.25, total_s=1.0)
    assert ledger.accept_request_id("a") != "a"
    finished(ledger, "b")
    assert ledger.accept_request_id("a") == "a"


def test_new_ids_differ_and_are_url_safe() -> None:
    ids = {new_request_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"req_[A-Za-z0-9_-]{22}", request_id) for request_id in ids)
