"""The testing kit for users.

Servers and models: `mock_server`, `faulty_server`, `fake_tools`, `llm_server`, and pytest fixtures for them
(`plugin`). One actor alone: `actor_harness`, `fake_channel`, `virtual_time`. Traces: `trace_watch`, `replay`.
"""

from grue.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
