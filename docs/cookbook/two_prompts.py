"""Two prompts answer the same cases, several at once, and the better one is named with its count.

Few cases prove little: for intervals and hundreds of cases use a fleet and `grue fleet compare`.
"""

import os

from grue import LlmSettings, Runner, TurnRequest

CASES = [("My order never came!", True), ("Thank you so much.", False), ("I want my money back.", True)]
PROMPTS = {
    "plain": "Is this mail a complaint?",
    "careful": "A complaint says that something is wrong or wants money back. Is this mail a complaint?",
}

llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm, trace="prompts.jsonl") as runner:
    right = {}
    for name, prompt in PROMPTS.items():
        requests = [TurnRequest(system=prompt, user=mail, answer=bool) for mail, _ in CASES]
        answered = runner.map(requests, concurrency=3)
        right[name] = sum(
            item.outcome is not None and item.outcome.response is wanted
            for item, (_, wanted) in zip(answered, CASES, strict=True)
        )
        print(f"{name}: {right[name]} of {len(CASES)}")
print(f"better: {max(right, key=lambda name: right[name])}")
