"""The providers' formats for requests and batches, and what providers refuse.

Nothing here may import the client's own encoders in `grue.protocol.chat_wire`. Both follow the providers'
documents, but not each other, so that tests find a mistake that only one side has.
"""
