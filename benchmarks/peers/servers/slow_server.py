"""The plain server behind a boot of 0.6 s, as an MCP server in Python that imports an SDK has it.

The difference is slept, not computed: it is the same for every side, and leaves the processor to the others.
Start it with `python -I -S`.
"""

import runpy
import time
from pathlib import Path

# The plain server itself takes the other 30 ms.
time.sleep(0.57)
runpy.run_path(str(Path(__file__).resolve().parents[2] / "servers" / "plain_server.py"), run_name="__main__")
