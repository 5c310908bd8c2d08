"""Bulk work on a model without a scheduler: two callers that send full batches, one after the other.

Serve the variant `offline` or `static-32`, or any without `dynamic_batching`, then

locust -f loadtest/scenarios/offline.py --headless -u 1 --host localhost:8000 --model NAME --client-batch 64
"""

from tritonbatch.loadtest.user import OpenLoopUser


class Offline(OpenLoopUser):
    """A closed loop of two callers, so that one batch waits while the other runs."""

    defaults = {"pattern": "closed:users=2,seconds=30", "client_batch": 32}
