"""The turns of a batch in the viewer: each is told by its question and its answer."""

from io import BytesIO
from pathlib import Path

from grue import LlmSettings, Runner, TurnRequest
from grue.testing.llm_server import ScriptedLlmServer, text_reply
from grue.tracing.page_feed import PageFeed
from grue.tracing.page_file import ImageTable
from grue.tracing.reading import open_episode


def test_a_turn_without_a_host_has_its_question_and_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    questions = ["Is a newt\nan insect?", "Is a gnat an insect?"]
    with ScriptedLlmServer([text_reply("No."), text_reply("Yes.")]) as model:
        llm = LlmSettings(base_url=model.base_url, model="m")
        with Runner(llm=llm, trace=path) as runner:
            for question in questions:
                runner.run_turn(TurnRequest(question))
    feed = PageFeed(ImageTable(BytesIO()))
    for envelope in open_episode(path):
        feed.see(envelope)
    said = [(turn.question, turn.answer) for turn in feed.turns() if turn.turn]
    assert said == [("Is a newt\\nan insect?", "No."), ("Is a gnat an insect?", "Yes.")]
