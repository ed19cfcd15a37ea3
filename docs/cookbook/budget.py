"""The episode has a budget, and each turn has a budget of its own.

A turn that reaches a budget gives its final answer. When the episode's budget is spent, the next turn is
not started: `run_turn` raises `BudgetSpent`.
"""

import os

from grue import Budget, LlmSettings, Runner, TurnLimits, TurnRequest
from grue.errors import BudgetSpent

llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
a_turn = TurnLimits(budget=Budget(tokens=5_000))
with Runner(llm=llm, budget=Budget(requests=3, cost_usd=0.50), limits=a_turn) as runner:
    for number in range(1, 100):
        try:
            outcome = runner.run_turn(TurnRequest(system="Be brief.", user=f"Name prime number {number}."))
        except BudgetSpent as error:
            print(f"stopped before turn {number}: {error}")
            break
        print(f"{outcome.response} ({runner.spent.requests} requests, {runner.spent.tokens} tokens)")
