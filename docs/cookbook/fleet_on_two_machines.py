"""A fleet plays its cases on the machines of a Ray cluster.

Both machines have to see the fleet's folder, and reach the model at LLM_URL. Start Ray on both (`ray start
--head`, and `ray start --address HEAD:6379`), and set the environment variable RAY to the head's address.
Without RAY the fleet runs on this machine only. If the program was stopped, start it again: finished cases
are not played again.
"""

import os
from typing import Any

from grue import LlmSettings, Runner, TurnRequest
from grue.fleet import Episode, Fleet, FleetOptions


def sort_mail(case: dict[str, Any], episode: Episode) -> float:
    """Return 1 if the model recognises whether a mail is a complaint, otherwise 0."""
    llm = LlmSettings(base_url=case["url"], model=case["model"])
    with Runner(llm=llm, trace=episode.trace) as runner:
        turn = TurnRequest(system="Is this mail a complaint?", user=case["mail"], answer=bool)
        return float(runner.run_turn(turn).response is case["complaint"])


if __name__ == "__main__":
    cases = [
        {"url": os.environ["LLM_URL"], "model": os.environ["LLM_MODEL"], "mail": mail, "complaint": complaint}
        for mail, complaint in [("It came broken.", True), ("Thank you!", False)]
    ]
    head = os.environ.get("RAY")
    fleet = Fleet("runs/mails", engine="ray" if head else "local", options=FleetOptions(ray=head), workers=2)
    finished = fleet.map(sort_mail, cases)
    print(finished.tally.scores)
