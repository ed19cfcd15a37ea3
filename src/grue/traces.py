"""Write and read traces: the run folder, observers, readers, and the protection of secrets.

```python
with RunFolder("runs/1", runner.recorder, episode_id="1"):
    runner.run_turn(...)
for envelope in open_episode("runs/1"):
    print(envelope.seq, envelope.body)
```
"""

from grue.observers.fact_events import FactEvents
from grue.observers.langfuse import LangfuseObserver
from grue.observers.otel import OtelObserver
from grue.observers.otel_attributes import AgentDescription
from grue.observers.python_log import LoggerObserver
from grue.observers.run_folder import RESULT_FILE, RunFolder
from grue.protocol.safe_text import beginning, printable
from grue.protocol.secret_names import secrets_in
from grue.runtime.redaction import Redaction
from grue.runtime.safe_open import read_regular
from grue.runtime.trace import Envelope, Observer, Recorder
from grue.runtime.trace_file import TraceOptions, TraceWriter
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader, open_episode, read_episode

__all__ = [
    "RESULT_FILE",
    "AgentDescription",
    "Envelope",
    "EpisodeEnvelope",
    "EpisodeReader",
    "FactEvents",
    "LangfuseObserver",
    "LoggerObserver",
    "Observer",
    "OtelObserver",
    "Recorder",
    "Redaction",
    "RunFolder",
    "TraceOptions",
    "TraceWriter",
    "beginning",
    "open_episode",
    "printable",
    "read_episode",
    "read_regular",
    "secrets_in",
]
