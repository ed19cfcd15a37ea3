"""What authors of hosts import besides `grue`: connections, models, settings, tool policies, traces.

To connect an agent to your own kind of tool server, implement `ToolConnection`, and pass a function that
makes such connections (`Connect`) to `Runner(servers=...)`. If a call fails, return a result with `is_error`
and `error_message`, which the model reads. Raise `ServerFailed` if the connection cannot be used or was lost,
and `ToolTimedOutError` if a call took too long. Any other exception ends the turn as a crash.

To ask a model in your own way, write an LLM actor, and pass a factory for it (`LlmFactory`) to
`Runner(llm=...)`.

To apply a `ToolPolicy` to calls that your host makes itself with a `ToolClient`, use `judge_calls`, and
`ask_about`, which asks a person.

`Runner.from_toml` reads a project's TOML file, its file of MCP servers and its tool lock. `read_servers`,
`read_tool_lock` and `read_yaml` each read one file. `Past` reads from a trace how far an episode got.

```python
with RunFolder("runs/1", runner.recorder, episode_id="1"):
    runner.run_turn(...)
for envelope in open_episode("runs/1"):
    print(envelope.seq, envelope.body)
```
"""

from grue.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
