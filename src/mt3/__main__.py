"""`python -m mt3` is the command `mt3`."""

import sys

from mt3.cli.main import main

sys.exit(main())
