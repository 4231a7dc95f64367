"""`python -m convgen` is the command line."""

import sys

from convgen.cli import main

sys.exit(main())
