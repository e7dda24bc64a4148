"""The log of requests: bounded, each principal sees its own, and each end reaches the observers once."""

from __future__ import annotations

import re

import pytest

from vivavoce.errors import InvalidRequest, RequestNotFound
from vivavoce.frontend.speech import FinishReason, Verdict
from vivavoce.server.rate_limiter import ANONYMOUS, Principal
from vivavoce.server.request_log import RequestLog, RequestRecord, new_request_id

STOP = Verdict(FinishReason.STOP, 2.5, 3, 3)
ANNA, BERT = Principal("anna"), Principal("bert")


def finished(log: RequestLog, request_id: str, principal: Principal = ANONYMOUS) -> RequestRecord:
    record = log.begin(request_id, principal.name, "http", 0.0)
    log.end(record, STOP, 1.0)
    return record


def test_a_request_from_its_begin_to_its_end() -> None:
    ended: list[RequestRecord] = []
    log = RequestLog()
    log.observers.append(ended.append)
    record = log.begin("a", "anna", "websocket", 1_700_000_000.0)
    assert (log.get("a", ANNA).status, log.running, record.admission_s) == ("running", 1, None)
    for verdict in (Verdict(FinishReason.ERROR, 2.5, 2, 4, "engine: it broke", "engine_stopped"), STOP):
        log.end(record, verdict, 3.5)  # a second end changes nothing
    found = log.get("a", ANNA)
    assert (found.status, found.reason, found.protocol, found.started) == (
        "finished",
        FinishReason.ERROR,
        "websocket",
        1_700_000_000.0,
    )
    assert (found.error, found.error_code) == ("engine: it broke", "engine_stopped")
    assert (found.audio_s, found.segments_spoken, found.segments_given) == (2.5, 2, 4)
    assert (found.total_s, ended) == (3.5, [record])
    assert (log.running, len(log.finished)) == (0, 1)


def test_another_principals_request_looks_like_an_unknown_one() -> None:
    log = RequestLog()
    finished(log, "a", ANNA)
    with pytest.raises(RequestNotFound) as other:
        log.get("a", BERT)
    with pytest.raises(RequestNotFound) as unknown:
        log.get("c", BERT)
    assert str(other.value).replace("'a'", "ID") == str(unknown.value).replace("'c'", "ID")
    with pytest.raises(RequestNotFound):
        log.get("a", ANONYMOUS)
    with pytest.raises(RequestNotFound) as long:
        log.get("\n" * 100_000, ANONYMOUS)
    assert "\n" not in str(long.value)
    assert len(str(long.value)) < 500


def test_the_first_to_finish_is_forgotten_first_and_running_ones_stay() -> None:
    log = RequestLog(capacity=3)
    early, _ = log.begin("early", "", "http", 0.0), log.begin("long", "", "http", 0.0)
    finished(log, "second")
    log.end(early, STOP, 2.0)
    finished(log, "third")
    assert [record.request_id for record in log.finished] == ["early", "third"]
    assert log.get("long", ANONYMOUS).status == "running"
    for number in range(1000):
        finished(log, str(number))
    assert (log.running, [record.request_id for record in log.finished]) == (1, ["998", "999"])


def test_more_running_requests_than_it_holds_are_all_kept_until_they_end() -> None:
    log = RequestLog(capacity=2)
    records = [log.begin(request_id, "", "http", 0.0) for request_id in "abc"]
    assert log.running == 3
    for record in records:
        log.end(record, STOP, 1.0)
    assert [record.request_id for record in log.finished] == ["b", "c"]


def test_an_id_in_use_is_refused() -> None:
    log = RequestLog()
    record = log.begin("a", "anna", "http", 0.0)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="another request's"):
            log.begin("a", "anna", "http", 0.0)
        log.end(record, STOP, 1.0)
    assert log.get("a", ANNA) is record


def test_an_id_says_nothing_of_another_principals_requests_and_takes_none_of_its_own() -> None:
    log = RequestLog()
    record = log.begin("a", "anna", "http", 0.0)
    for _ in range(2):
        assert log.accept_request_id("a", BERT) == "a" == log.accept_request_id("a")
        assert log.accept_request_id("a", ANNA) != "a"
        log.end(record, STOP, 1.0)
    finished(log, "a", BERT)
    assert (log.get("a", ANNA), len(log.finished)) == (record, 2)
    assert log.get("a", BERT) is not record


@pytest.mark.parametrize("header", ["a", "Job-7.part_2", "x" * 128])
def test_a_clients_id_is_taken(header: str) -> None:
    assert RequestLog().accept_request_id(header) == header


@pytest.mark.parametrize("header", [None, "", "x" * 129, "a b", "a\n", "ä", "a/b", '"', "\x1b[31m"])
def test_a_clients_id_that_is_not_valid_is_replaced(header: str | None) -> None:
    assert re.fullmatch(r"req_[A-Za-z0-9_-]{22}", RequestLog().accept_request_id(header))


def test_a_clients_id_that_is_known_is_replaced_until_it_is_forgotten() -> None:
    log = RequestLog(capacity=1)
    record = log.begin("a", "", "http", 0.0)
    assert log.accept_request_id("a", ANONYMOUS) != "a"
    log.end(record, STOP, 1.0)
    assert log.accept_request_id("a", ANONYMOUS) != "a"
    finished(log, "b")
    assert log.accept_request_id("a", ANONYMOUS) == "a"
    assert len({new_request_id() for _ in range(1000)}) == 1000
