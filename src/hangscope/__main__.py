"""`python -m hangscope`: the same as the command `hangscope`."""

import os
import sys

if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # `-m` puts the working directory in front of all modules, and somebody else may write there

from hangscope.cli.main import main  # after that

sys.exit(main())
