"""Sort notes into folders: a host with facts of its own, which can be killed and resumed at any time.

.venv/bin/python docs/examples/note_sorter.py runs/notes             a scripted model; no network, no key
.venv/bin/python docs/examples/note_sorter.py runs/notes BASE_URL MODEL
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec

from grue import LlmSettings, Recorder, Runner, TurnRequest
from grue.hosting import (
    Envelope,
    EpisodeEnded,
    EpisodeResumed,
    EpisodeStarted,
    Fact,
    Past,
    RunFolder,
    register_facts,
)
from grue.messages import TurnCompleted
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply

NOTES = ("pay the rent", "water the tomatoes", "renew the passport", "call the dentist")
SYSTEM = "Sort each note into a folder: home, garden, office or health. Answer with the folder's name."


class Sorted(Fact, frozen=True, kw_only=True, tag="notesorter.Sorted"):
    """A note was put into a folder."""

    turn: int
    note: str
    folder: str

    def summary(self) -> str:
        """Return the line of `grue trace show`."""
        return f"{self.note} -> {self.folder}"


register_facts("notesorter", Sorted)


class SorterPast(Past[EpisodeStarted], kw_only=True):
    """The notes that an interrupted run has sorted."""

    done: list[Sorted] = msgspec.field(default_factory=list)

    def take_fact(self, envelope: Envelope[object]) -> None:
        """Keep the sorted notes; each uses the result of its turn."""
        if isinstance(envelope.body, Sorted):
            self.done.append(envelope.body)
            self.end = None


def sort_notes(llm: LlmSettings, path: Path) -> list[str]:
    """Sort all notes, or those that an earlier run in this folder has not sorted."""
    past = SorterPast.read(path, needed=(Sorted,)) if (path / "trace.jsonl").exists() else None
    folders = [fact.folder for fact in past.done] if past else []
    recorder = Recorder()
    with (
        RunFolder(path, recorder, episode_id="notes", resume=past is not None),
        Runner(llm=llm, recorder=recorder) as runner,
    ):
        if past is None:
            recorder.record(EpisodeStarted(episode_id="notes", model=llm.model), sender="host")
        else:
            recorder.record(EpisodeResumed(episode_id="notes", turns=len(folders)), sender="host")
            runner.spent = past.spent
        for turn, note in enumerate(NOTES[len(folders) :], start=len(folders) + 1):
            if past and isinstance(past.end, TurnCompleted) and past.end.turn == turn:
                folder = str(past.end.answer)  # answered before the interruption, but not yet recorded
            else:
                folder = runner.run_turn(TurnRequest(system=SYSTEM, user=note, turn=turn)).response
            recorder.record(Sorted(turn=turn, note=note, folder=folder), sender="host", turn=turn)
            folders.append(folder)
        end = EpisodeEnded(reason="done", detail="all notes are sorted", turns=len(folders))
        recorder.record(end, sender="host")
    return folders


def scripted(request: LlmRequest) -> LlmReply:
    """Answer as a model would."""
    folders = dict(zip(NOTES, ("home", "garden", "office", "health"), strict=True))
    return text_reply(folders[request.messages[-1]["content"]])


def main(path: str, *endpoint: str) -> None:
    """Sort the notes with the named endpoint, or with a scripted one."""
    with nullcontext() if endpoint else ScriptedLlmServer(scripted) as server:
        base_url, model = endpoint or (server.base_url, "script")
        for note, folder in zip(
            NOTES, sort_notes(LlmSettings(base_url=base_url, model=model), Path(path)), strict=True
        ):
            print(f"{folder:<8} {note}")


if __name__ == "__main__":
    main(*sys.argv[1:])
