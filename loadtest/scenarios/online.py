"""Interactive traffic on a model that batches dynamically: single requests, each with a user waiting.

Serve the variant `online` (at most 8 rows, 50 ms queue delay: tritonbatch export --variant online), then

locust -f loadtest/scenarios/online.py --headless -u 1 --host localhost:8000 --model NAME
"""

from tritonbatch.loadtest.user import OpenLoopUser


class Online(OpenLoopUser):
    """Poisson arrivals, open loop; --pattern takes their place."""

    defaults = {"pattern": "poisson:rate=100,seconds=30"}
