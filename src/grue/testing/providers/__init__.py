"""The providers' request formats, and what each provider refuses: pure functions on decoded JSON.

Nothing here may import the client's own encoders in `grue.protocol.chat_wire`. Both follow the providers'
documents, but not each other, so that tests find a mistake that only one side has.
"""
