"""How fast speech comes under load, in figures that can be compared. See docs/benchmark.md."""

from vivavoce.bench.figures import figures as figures
from vivavoce.bench.load import ClosedLoop as ClosedLoop
from vivavoce.bench.load import Load as Load
from vivavoce.bench.load import OpenLoop as OpenLoop
from vivavoce.bench.load import run_load as run_load
from vivavoce.bench.outcome import Arrival as Arrival
from vivavoce.bench.outcome import Ending as Ending
from vivavoce.bench.outcome import Outcome as Outcome
from vivavoce.bench.playback import Playback as Playback
from vivavoce.bench.playback import play as play
from vivavoce.bench.report import Report as Report
from vivavoce.bench.target import Piece as Piece
from vivavoce.bench.target import Refused as Refused
from vivavoce.bench.target import Target as Target
from vivavoce.bench.target import Utterance as Utterance
from vivavoce.bench.texts import SENTENCES as SENTENCES
from vivavoce.bench.workload import Workload as Workload
