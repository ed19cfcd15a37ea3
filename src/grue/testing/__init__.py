"""The testing kit, for tests of programs that use grue.

- Servers and models without a network: `mock_server`, `faulty_server`, `task_server`, `fake_tools`,
  `llm_server`, `offline`; pytest fixtures for most of them are in `plugin`.
- One actor alone, with fakes in place of the other actors, and a virtual clock: `actor_harness`.
- Assertions on traces (`replay`, `assert_prefix_stable`), turns (`decisions`) and leftovers (`leftovers`).
"""

from grue.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
