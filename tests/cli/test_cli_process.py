"""What only a process of its own can show: real pipes, a reader that leaves, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.cli.cli_harness import read_wav, spawn, start

pytestmark = pytest.mark.process

LONG = "Hello there, how are you today? " * 40
# A runner in the background may have SIGINT ignored, which its children would inherit.
INTERRUPTIBLE = (
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from vivavoce.cli.main import main; sys.exit(main())",
)


@pytest.mark.usefixtures("planted")
def test_text_in_wav_out_through_pipes() -> None:
    result = spawn("speak", "-o", "-", stdin=b"Hi there.")
    assert result.code == 0
    samples = read_wav(result.out)
    assert len(samples)
    assert result.out.endswith(samples.tobytes())  # nothing follows the audio
    report, note = result.err.splitlines()
    assert report.startswith(f"stdout: {len(samples) / 24_000:.2f} s of audio")
    assert note.startswith("note: model babble ")


@pytest.mark.usefixtures("planted")
def test_with_stderr_closed_stdout_has_the_audio_alone() -> None:
    closing = "import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, '-m', 'vivavoce', *sys.argv[1:]])"
    result = spawn("speak", "-o", "-", stdin=b"Hi there.", program=("-c", closing))
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(read_wav(result.out).tobytes())


def test_a_stream_is_heard_while_it_is_made_and_ctrl_c_ends_it() -> None:
    with start("speak", LONG, "--stream", "-o", "-", program=INTERRUPTIBLE) as process:
        assert process.stdout is not None
        header, first = process.stdout.read(44), process.stdout.read(9600)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert header[:4] + header[8:16] == b"RIFFWAVEfmt "
    assert np.frombuffer(first, "<i2").any()
    assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("text", ["Hello there.", LONG])
def test_ctrl_c_before_any_audio_is_one_line(tmp_path: Path, text: str) -> None:
    # The engine goes on with its step while the interpreter ends, as on a slow machine.
    interrupted_in_a_step = (
        "-c",
        "import os; os.environ['OMP_NUM_THREADS'] = '2'\n"
        "import concurrent.futures.thread as pool, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from vivavoce.engine.device import HostThreads\n"
        "from vivavoce.cli.main import main\n"
        "compute = HostThreads.__call__\n"
        "def interrupt(*work):\n"
        "    HostThreads.__call__ = compute\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    while not pool._shutdown:\n"
        "        time.sleep(0.001)\n"
        "    return compute(*work)\n"
        "HostThreads.__call__ = interrupt\n"
        "sys.exit(main())",
    )
    file = tmp_path / "x.wav"
    result = spawn("speak", text, "-o", file, program=interrupted_in_a_step)
    assert (result.code, result.err) == (
        130,
        f"interrupted: {file} was not written; with --stream, audio is written while it is made\n",
    )
    assert not file.exists()


def test_a_reader_that_leaves_ends_the_stream_quietly() -> None:
    with start("speak", LONG, "--stream", "-o", "-") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(44)
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(timeout=120)
    assert (code, err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_one_line() -> None:
    result = spawn(
        program=(
            "-c",
            "import subprocess, sys; "
            "sys.exit(subprocess.call([sys.executable, '-m', 'vivavoce', '--help'], stdout=open('/dev/full', 'w')))",
        )
    )
    assert result.error == "error: stdout: No space left on device; check the place and its space\n"
