"""The providers' formats for requests and batches, and what providers refuse.

No module in this package may import the client's own encoders in `grue.protocol.chat_wire`. The package and
those encoders both follow the providers' documents, but not each other: so tests find a mistake in either.
"""
