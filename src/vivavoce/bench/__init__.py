"""How fast speech comes under load, in figures that can be compared. See docs/benchmark.md."""

from vivavoce.bench.load import ClosedLoop as ClosedLoop
from vivavoce.bench.load import Ending as Ending
from vivavoce.bench.load import Load as Load
from vivavoce.bench.load import OpenLoop as OpenLoop
from vivavoce.bench.load import Outcome as Outcome
from vivavoce.bench.load import Piece as Piece
from vivavoce.bench.load import Refused as Refused
from vivavoce.bench.load import Target as Target
from vivavoce.bench.load import Utterance as Utterance
from vivavoce.bench.load import Workload as Workload
from vivavoce.bench.load import run_load as run_load
from vivavoce.bench.report import Report as Report
from vivavoce.bench.report import figures as figures
from vivavoce.bench.texts import SENTENCES as SENTENCES
from vivavoce.measure import Arrival as Arrival
