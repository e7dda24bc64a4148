"""Reads a whole book while its process is killed at random times, and checks the result.

    python -m benchmarks.book --characters 300000 --out /tmp/book --json book.json
    python -m benchmarks.book --characters 20000 --over http --out /tmp/book --json http.json

The book is an EPUB of generated sentences with chapters, footnotes, tables, pictures and two languages. `read` runs
`vivavoce read` and kills it (SIGKILL) `--kills` times. `http` runs a job on a server and kills the server instead; all
the time, a client requests live speech. At the end it checks that no segment is missing in the ledger, that the file
has the book's chapters, that the pauses are silent, that segments spoken again have the same samples, and that a
recogniser hears at random times of the file the segments that belong there. It also tells the process's peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.serve_process import serve_process
from tests.books.make_book import Made, make_book
from vivavoce_bench.hardware import processor
from vivavoce_bench.measure import save_json
from vivavoce_books.ledger import open_ledger
from vivavoce_books.plan import Plan, plan_book

LATE_S = 5.0
"""Longest delay of a kill, in seconds, after its share of the work is done."""
QUIET = 10 ** (-45 / 20)
"""Highest amplitude in a pause of the file: codecs smear nearby speech into the pause."""
RATE = 24_000
ALONE_S, REST_S = 60.0, 10.0
"""Seconds in which the listener is served without the job, for comparison; seconds between two of its requests. On a
busy machine the job proceeds only between these requests."""
LIVE_TEXT = "A listener hears this sentence while a book is made. Another one follows, and then it is over."


def peak_bytes(process: int) -> int:
    """Peak resident memory so far of a process and its children; Linux only."""
    total = 0
    with suppress(OSError, ValueError, IndexError):  # the process has ended
        status = Path(f"/proc/{process}/status").read_text()
        total = 1024 * int(status.partition("VmHWM:")[2].split()[0])
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            total += peak_bytes(int(child))
    return total


class Kills:
    """Decides when to kill the process: up to `LATE_S` after random shares of the work are done."""

    def __init__(self, count: int, seed: int) -> None:
        self._chance, self.at = random.Random(seed), list[float]()
        self._left = sorted(self._chance.uniform(0.03, 0.95) for _ in range(count))
        self._due = float("inf")

    def is_due(self, share: float) -> bool:
        if self._left and share >= self._left[0]:
            self._left.pop(0)
            self._due = time.monotonic() + self._chance.uniform(0, LATE_S)
        return time.monotonic() >= self._due

    def done(self, share: float) -> None:
        self._due = float("inf")
        self.at.append(round(share, 3))
        print(f"killed at {share:.1%}", file=sys.stderr)


def read(book: Path, out: Path, kills: Kills) -> dict[str, Any]:
    """Run `vivavoce read`, kill it and run it again, until the book is complete."""
    command = [sys.executable, "-m", "vivavoce", "read", str(book), "-o", str(out), "--times", "--subtitles", "srt"]
    log, peak, began, share = out.with_suffix(".log"), 0, time.monotonic(), 0.0
    places: list[int] = []
    while True:
        with log.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
            while process.poll() is None and not kills.is_due(share):
                told = re.findall(r": (\d+)%", log.read_text(encoding="utf-8"))
                peak, share = max(peak, peak_bytes(process.pid)), int(told[-1]) / 100 if told else share
                time.sleep(0.2)
            if (ended := process.poll()) is None:
                process.send_signal(signal.SIGKILL)
        if ended is not None:
            if ended:
                raise SystemExit(f"vivavoce read ended with {ended}; see {log}")
            told_last = log.read_text(encoding="utf-8").strip().splitlines()[-3:]
            return {"seconds": round(time.monotonic() - began), "peak_memory_bytes": peak, "segments_at_kills": places,
                    "said": told_last}  # fmt: skip
        kills.done(share)
        with open_ledger(Path(f"{out}.ledger")) as ledger:
            places.append(len(ledger.places()))


def over_http(book: Path, out: Path, kills: Kills) -> dict[str, Any]:
    """Run a job on a server, kill the server and start it again, until the job is complete."""
    jobs, peak, identity, began, share = out.parent / "jobs", 0, "", time.monotonic(), 0.0
    listener, alone = Listener(), Listener()
    while True:
        flags = ("--jobs", str(jobs), "--voices", str(out.parent / "voices"))
        with serve_process(flags, out.with_suffix(".log")) as server, listener.at(server.url):
            client = httpx.Client(base_url=server.url, timeout=60)
            if not identity:
                listener.pause()
                with alone.at(server.url):
                    time.sleep(ALONE_S)
                listener.go_on()
                made = client.post("/v1/audio/jobs", files={"file": (book.name, book.read_bytes())})
                identity = made.raise_for_status().json()["id"]
            while (job := client.get(f"/v1/audio/jobs/{identity}").json())["status"] not in ("done", "failed"):
                peak = max(peak, peak_bytes(server.process_id))
                share = job["characters_spoken"] / job["characters"]
                if kills.is_due(share):
                    break
                time.sleep(0.5)
            else:
                if job["status"] == "failed":
                    raise SystemExit(f"the job failed: {job['error']}")
                out.write_bytes(client.get(f"/v1/audio/jobs/{identity}/audio").content)
                times = client.get(f"/v1/audio/jobs/{identity}", params={"times": "true"}).json()
                out.with_suffix(".json").write_text(json.dumps(times), encoding="utf-8")
                shutil.copy(jobs / identity / "ledger", f"{out}.ledger")
                return {
                    "seconds": round(time.monotonic() - began),
                    "peak_memory_bytes": peak,
                    "listener_alone": alone.figures(),
                    "listener_beside_the_job": listener.figures(),
                }
            client.close()
            listener.pause()
            os.kill(server.process_id, signal.SIGKILL)
        kills.done(share)


class Listener:
    """Requests speech repeatedly, and notes how late pieces are for a client that plays them at once."""

    def __init__(self) -> None:
        self._late_s, self._first_s, self._go_on = list[float](), list[float](), threading.Event()
        self._is_over = False

    @contextmanager
    def at(self, url: str) -> Iterator[None]:
        self._go_on.set()
        self._is_over = False
        thread = threading.Thread(target=self._listen, args=(url,))
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            thread.join()

    def go_on(self) -> None:
        self._go_on.set()

    def pause(self) -> None:
        self._go_on.clear()

    def figures(self) -> dict[str, Any]:
        gaps = sum(late > 0 for late in self._late_s)
        first = np.percentile(self._first_s, [50, 99]).round(2).tolist()
        return {"requests": len(self._late_s), "requests_with_a_gap": gaps, "longest_gap_s": max(self._late_s),
                "first_audio_s_p50_p99": first}  # fmt: skip

    def _listen(self, url: str) -> None:
        fields = {"input": LIVE_TEXT, "response_format": "pcm", "sample_rate": RATE}
        while not self._is_over:
            if not self._go_on.wait(0.2):
                continue
            asked, until, late, first = time.monotonic(), 0.0, 0.0, 0.0
            with (
                suppress(httpx.HTTPError),
                httpx.stream("POST", f"{url}/v1/audio/speech", json=fields, timeout=60) as one,
            ):
                for piece in one.iter_raw():
                    now = time.monotonic()
                    late, first = (max(late, now - until), first) if until else (0.0, now - asked)
                    until = max(until, now) + len(piece) / 2 / RATE
                if self._go_on.is_set() and not self._is_over and one.status_code == 200:
                    self._late_s.append(round(late, 3))
                    self._first_s.append(first)
            time.sleep(REST_S)


def check(out: Path, plan: Plan, made: Made, again: Sequence[int], shares: Sequence[float]) -> dict[str, Any]:
    """Check the file and its ledger.

    again: indices of segments that are spoken again, for comparison; shares: of the file's length, where to listen.
    """
    from vivavoce_books.writing import timeline

    with open_ledger(Path(f"{out}.ledger")) as ledger:
        lacking = [one.index for one in plan.segments if one.index not in ledger.places()]
        heard = timeline(plan, ledger, range(len(plan.texts)), RATE)
        samples = decode(out)
        pauses = [one for one in heard if one.pause > 0.2 * RATE]
        loud = [
            one.segment.index
            for one in pauses
            if np.abs(samples[one.at + one.piece.frames + 2_400 : one.after - 2_400]).max(initial=0.0) > QUIET
        ]
        same = [spoken_again(plan, place, ledger.samples(place)) for place in again]
    found = [next(one.segment for one in heard if one.after >= share * heard[-1].after) for share in shares]
    there = {one.index for one in found if one.language != "de"}  # the recogniser knows English
    pieces = {index: [one for one in heard if one.segment.index == index] for index in there}
    written = {at: samples[own[0].at : own[-1].at + own[-1].piece.frames] for at, own in pieces.items()}
    chapters = chapters_of(out)
    starts = [min(one.at for one in heard if one.segment.chapter == at) / RATE for at in range(len(plan.texts))]
    return {
        "segments": len(plan.segments),
        "segments_lacking": lacking,
        "audio_s": round(heard[-1].after / RATE, 1),
        "file_longer_by_s": round(len(samples) / RATE - heard[-1].after / RATE, 3),
        "pauses": len(pauses),
        "pauses_with_sound": loud,
        "segments_spoken_again": list(again),
        "of_them_equal_to_the_bit": sum(same),
        **recognised(plan, written),
        "chapters": len(chapters),
        "titles_right": [title for title, _ in chapters] == list(made.titles),
        "starts_off_by_s": round(max((abs(a - b) for a, (_, b) in zip(starts, chapters, strict=False)), default=-1), 4),
    }


def recognised(plan: Plan, written: dict[int, np.ndarray]) -> dict[str, Any]:
    """How well pocketsphinx understands these segments of English, and whether the book's nearest text is theirs.

    written: samples of a segment, as the file has them, by the segment's index.
    """
    if not written:
        return {}
    from vivavoce_bench.evaluate.error_rate import align, word_errors, words
    from vivavoce_bench.evaluate.recogniser import PocketSphinx, as_floats, prepare

    recogniser, texts = PocketSphinx(), {one.index: words(one.text) for one in plan.segments}
    transcripts = {at: recogniser.transcribe(as_floats(prepare(samples, RATE))) for at, samples in written.items()}
    nearest = {
        at: min(texts, key=lambda one: align(texts[one], words(text)).errors) for at, text in transcripts.items()
    }
    errors = word_errors((plan.segments[at].text, text) for at, text in transcripts.items())
    return {
        "segments_heard": sorted(transcripts),
        "of_them_nearest_to_their_own_text": sum(texts[at] == texts[found] for at, found in nearest.items()),
        "words_heard_wrongly": round(errors.rate, 4),
    }


_MODEL: list[Any] = []


def spoken_again(plan: Plan, place: int, kept: np.ndarray) -> bool:
    """Whether this process, which was never killed, speaks the segment with the same samples."""
    import vivavoce
    from vivavoce_books.speaking import cut_silence, known_language, seed_of

    if not _MODEL:
        _MODEL.append(vivavoce.load())
    segment = plan.segments[place]
    manner: dict[str, Any] = {"seed": seed_of(0, place), "speed": 1.0, "reasoning": "read"}
    language = known_language(_MODEL[0], segment.language)
    speech = _MODEL[0].speak(segment.text, _MODEL[0].voice(None), language=language, **manner)
    return bool(np.array_equal(cut_silence(speech, segment).samples, kept))


def decode(path: Path) -> np.ndarray:
    """The file's samples [n], float32, at the model's sample rate."""
    import av

    with closing(av.open(str(path))) as opened:
        return np.concatenate([frame.to_ndarray().ravel() for frame in opened.decode(audio=0)])


def chapters_of(path: Path) -> list[tuple[str, float]]:
    """Titles of the chapters and their starts in seconds, as FFmpeg reads them."""
    import av

    with closing(av.open(str(path))) as opened:
        return [(one["metadata"]["title"], float(one["start"] * (one["time_base"] or 1))) for one in opened.chapters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=300_000)
    parser.add_argument("--chapters", type=int, default=12)
    parser.add_argument("--over", choices=("read", "http"), default="read")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--again", type=int, default=20, help="number of segments to speak again (with --over read)")
    parser.add_argument("--places", type=int, default=20, help="number of random times of the file to listen at")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="output folder; files of an earlier run are removed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.places:
        import pocketsphinx  # noqa: F401  # of the extra eval: missing at the end, it would lose an hour's work
    folder = given.out / given.over
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = make_book(book := folder / "book.epub", given.characters, given.chapters)
    from vivavoce_books.book import open_book
    from vivavoce_books.cast import NARRATOR, Part

    opened = open_book(book)
    plan = plan_book(replace(opened, title=opened.title or "book"), {NARRATOR: Part()})
    characters, out = sum(len(one.text) for one in plan.segments), folder / "book.m4b"
    kills = Kills(given.kills, given.seed)
    ran = read(book, out, kills) if given.over == "read" else over_http(book, out, kills)
    count = min(given.again, len(plan.segments)) if given.over == "read" else 0
    again = sorted(random.Random(given.seed).sample(range(len(plan.segments)), count))
    chance = random.Random(f"{given.seed} places")
    shares = [chance.random() for _ in range(given.places)]
    command = f"python -m benchmarks.book {' '.join(sys.argv[1:])}"
    figures = {"command": command, "hardware": processor(), "cores": len(os.sched_getaffinity(0)),
               "niceness": os.nice(0), "characters": characters, "killed_at_shares": kills.at,
               **ran, **check(out, plan, made, again, shares)}  # fmt: skip
    if given.json is not None:
        save_json(figures, given.json)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
