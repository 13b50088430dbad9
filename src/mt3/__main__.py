"""`python -m mt3` is the command `mt3`."""

import os
import sys

from mt3.cli.main import main

code = main()
if "TORCHELASTIC_RUN_ID" in os.environ:
    from mt3.support.ranks import leave  # imports torch

    leave(code)
sys.exit(code)
