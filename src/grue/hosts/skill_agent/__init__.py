"""A host that gives a model a task, and carries out the actions in the model's replies, step by step.

The prompt lists the actions and the tools. The MCP servers stay connected for the whole run. `Orchestrator`
runs a task, `load_config` reads `agent.yaml`, and `McpManager` can be used alone.
"""

from grue.runtime.lazy_names import lazy_names

# Names are imported on first use, so that a program that only reads traces does not load the whole host.
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
