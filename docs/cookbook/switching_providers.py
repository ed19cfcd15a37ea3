"""A second model answers if the first one cannot be asked, also in the middle of a conversation.

Nobody serves the first endpoint here. The trace says which model could not be asked, and why.
"""

import os

from grue import LlmSettings, RetryPolicy, Runner
from grue.hosting import read_episode
from grue.messages import ModelPassedOver

away = LlmSettings(
    base_url="http://127.0.0.1:9/v1", model="large", api_key="", retry=RetryPolicy(max_retries=0)
)
local = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=[away, local], trace="runs") as runner:
    talk = runner.conversation("You are brief.")
    print(talk.ask("Name a colour.").response)
    print(talk.ask("And another one?").response)

for envelope in read_episode(str(runner.trace)).envelopes:
    if isinstance(envelope.body, ModelPassedOver):
        print(f"turn {envelope.turn}: {envelope.body.model} could not be asked")
