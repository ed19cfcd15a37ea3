"""The providers' request formats, and what each provider refuses: pure functions on decoded JSON.

Two parts of grue stand in for a provider and have to be as strict as one: the offline model
(`grue.testing.offline`) and the scripted endpoint of the testing kit (`grue.testing.llm_server`). Both take
the formats and the rules from here. When a provider changes a format or refuses something new, change these
modules.

- `dialects.py`: a `Dialect` for each format; `Dialect.read` checks and translates a request;
- `chat_rules.py`: what strict providers refuse in a chat completions request;
- `responses_dialect.py`, `messages_dialect.py`: the other two formats: their translations to chat
  completions and back, their streams, and what they refuse in addition;

Nothing here may import the client's own encoders in `grue.protocol.chat_wire`. The encoders and these modules
both follow the providers' documents, but not each other, so that tests find a mistake that only one side has.
"""
