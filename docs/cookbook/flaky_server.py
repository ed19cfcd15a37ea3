"""The turn gets its answer although one tool server hangs and another does not start.

A call to the server that hangs ends after one second. The model reads what has failed, and answers without
it. The outcome says how each call ended.
"""

import os

from grue import FailurePolicy, LlmSettings, Runner, ServerOptions, StdioServer, TurnRequest
from grue.testing import faulty_server

hangs, *flags = faulty_server.argv("--silent-at", "call")
servers = {
    "clock": StdioServer(command=hangs, args=tuple(flags), options=ServerOptions(call_timeout_s=1)),
    "gone": StdioServer(command="no-such-program", options=ServerOptions(required=False)),
}
llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm, servers=servers, policy=FailurePolicy(first_connect="disable")) as runner:
    outcome = runner.run_turn(TurnRequest(system="Use the tools.", user="Echo the word hello."))
print(outcome.response)
for call in outcome.tool_calls:
    print(f"{call.name}: {call.settlement}")
print(f"left out: {', '.join(runner.disabled)}")
