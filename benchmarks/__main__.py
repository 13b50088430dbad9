"""`python -m benchmarks`."""

import sys

from benchmarks.commands import make_parser
from mt3.cli.main import run_command

sys.exit(run_command(make_parser, None))
