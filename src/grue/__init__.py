"""Drive an LLM agent that uses MCP tools from ordinary, synchronous Python: one call a turn.

```python
from grue import Runner, TurnRequest

with Runner.from_toml("pyproject.toml") as runner:
    outcome = runner.run_turn(TurnRequest(system="Answer briefly.", user="What is the plan?"))
    print(outcome.response, outcome.kind, outcome.tool_calls)
```

The public names are listed in `__init__.pyi`. Each is imported on first use, which keeps `import grue` fast.

To learn the system, read in this order: `messages.py` (a turn's messages), `protocol/tool_loop.py` (the turn
as a pure state machine), `actors/agent.py` (the actor that runs it), `runtime/actor.py` (how crashes are
handled), `engine/runner.py` (how the parts are wired together).
"""

from grue.runtime.lazy_names import lazy_names
from grue.runtime.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
