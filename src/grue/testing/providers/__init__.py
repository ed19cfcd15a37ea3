"""The providers' request formats, and what each provider refuses: pure functions on decoded JSON.

Two parts of grue stand in for a provider and have to be as strict as one: the offline model
(`grue.testing.offline`) and the scripted endpoint of the testing kit (`grue.testing.llm_server`). Both take
the formats and the rules from here. When a provider changes a format or
refuses something new, it is these modules that change.

- `dialects.py`: a row for each format; `Dialect.read` checks a request;
- `chat_rules.py`: what strict providers refuse in a chat completions request;
- `responses_dialect.py`, `messages_dialect.py`: the other two formats: their translations to chat
  completions and back, their streams, and what they refuse in addition;

Nothing here may import the client's own encoders in `grue.protocol.chat_wire`: the formats are written twice,
from the providers' documents, so that a mistake in one is found by the other.
"""
