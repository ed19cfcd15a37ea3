"""The providers' request formats, and what each provider refuses: pure functions on decoded JSON.

`dialects.py` has a `Dialect` for each format. Only `batches.py` has state: the batches that an endpoint has
received.

Nothing here may import the client's own encoders in `grue.protocol.chat_wire`. The encoders and these modules
both follow the providers' documents, but not each other, so that tests find a mistake that only one side has.
"""
