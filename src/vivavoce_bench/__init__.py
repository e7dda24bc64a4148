"""How fast speech comes under load, in figures that can be compared. See docs/measuring.md."""

from vivavoce_bench.load import ClosedLoop as ClosedLoop
from vivavoce_bench.load import Ending as Ending
from vivavoce_bench.load import Load as Load
from vivavoce_bench.load import OpenLoop as OpenLoop
from vivavoce_bench.load import Outcome as Outcome
from vivavoce_bench.load import Piece as Piece
from vivavoce_bench.load import Refused as Refused
from vivavoce_bench.load import Target as Target
from vivavoce_bench.load import Utterance as Utterance
from vivavoce_bench.load import Workload as Workload
from vivavoce_bench.load import run_load as run_load
from vivavoce_bench.measure import Arrival as Arrival
from vivavoce_bench.report import Report as Report
from vivavoce_bench.report import figures as figures
from vivavoce_bench.texts import SENTENCES as SENTENCES
