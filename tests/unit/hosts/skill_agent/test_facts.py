"""The events of a host's facts, passed to a function."""

from grue import Recorder
from grue.hosts.skill_agent.facts import FactEvents
from grue.messages import JsonObject
from grue.tracing.facts import EpisodeEnded, EpisodeStarted


def test_each_event_of_the_wanted_facts_is_passed_on_with_its_fields() -> None:
    events: list[tuple[str, JsonObject]] = []
    recorder = Recorder()
    recorder.add(FactEvents(lambda name, fields: events.append((name, fields)), (EpisodeEnded,)))
    recorder.record(EpisodeStarted(episode_id="1"), sender="host")
    recorder.record(EpisodeEnded(reason="done", detail="all done", turns=2), sender="host")
    assert events == [("episode_ended", {"reason": "done", "detail": "all done", "turns": 2})]
