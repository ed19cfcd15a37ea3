from grue.testing.traces import assert_prefix_stable as assert_prefix_stable
from grue.testing.traces import replay as replay
