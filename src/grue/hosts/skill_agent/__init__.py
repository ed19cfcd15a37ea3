"""A host that gives a model a task, and carries out the actions that the model answers with, step by step.

The model reads in its prompt which tools there are. Its MCP servers stay connected for the whole run. Come
here for `Orchestrator`, which runs a task, for `load_config`, which reads `agent.yaml`, and for `McpManager`,
which can be used alone.
"""

from grue.runtime.lazy_names import lazy_names

# Names are imported on first use, so that reading the facts of a trace does not load the whole host.
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
