"""Interactive and bulk requests together on one queue with priority levels: does bulk starve, do users wait?

Serve the variant `priority` (tritonbatch export --variant priority), then

locust -f loadtest/scenarios/mixed_priority.py --headless -u 1 --host localhost:8000 --model NAME
"""

from tritonbatch.loadtest.user import OpenLoopUser


class MixedPriority(OpenLoopUser):
    """Seven of ten requests are urgent; the records tell the classes apart by priority."""

    defaults = {"pattern": "poisson:rate=100,seconds=30", "classes": "interactive=1:0.7,bulk=2:0.3"}
