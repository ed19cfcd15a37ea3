"""A program that records its own decisions, as facts, in the same trace as the model's messages.

When `record` returns, the fact is in the trace file, unless the disk is slow. `grue trace show runs/house`
prints it between the messages. The folder must not have a trace yet: remove it before a second run.
"""

import os
from pathlib import Path

from grue import LlmSettings, Recorder, Runner, TurnRequest
from grue.hosting import EpisodeEnded, EpisodeStarted, Fact, RunFolder, read_episode, register_facts


class HeatingSet(Fact, frozen=True, kw_only=True, tag="house.HeatingSet"):
    """The heating was switched."""

    degrees: int
    on: bool

    def summary(self) -> str:
        """Return the line of `grue trace show`."""
        return f"{self.degrees} °C: {'on' if self.on else 'off'}"


register_facts("house", HeatingSet)
llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
folder, recorder = Path("runs/house"), Recorder()
with RunFolder(folder, recorder, episode_id="house"), Runner(llm=llm, recorder=recorder) as runner:
    recorder.record(EpisodeStarted(episode_id="house", model=llm.model), sender="host")
    for turn, degrees in enumerate((12, 24), start=1):
        request = TurnRequest(system="Heat below 20 °C. On?", user=f"{degrees} °C", answer=bool, turn=turn)
        on = runner.run_turn(request).response
        recorder.record(HeatingSet(degrees=degrees, on=on), sender="host", turn=turn)
    recorder.record(EpisodeEnded(reason="done", detail="two readings", turns=2), sender="host")
for envelope in read_episode(folder).envelopes:
    if isinstance(envelope.body, HeatingSet):
        print(envelope.body.summary())
