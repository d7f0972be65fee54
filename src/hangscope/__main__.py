"""`python -m hangscope`: the same as the command `hangscope`."""

import sys

from hangscope.cli.main import main

sys.exit(main())
