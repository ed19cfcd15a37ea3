"""Observers that read the trace while it is written: logs, the run folder, Langfuse and OpenTelemetry."""
