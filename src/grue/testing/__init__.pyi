from grue.testing.traces import replay as replay
