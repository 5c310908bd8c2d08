"""Interactive single requests and bulk batches of 8 together, on a model with two instances.

Serve the variant `two-instances`, then

locust -f loadtest/scenarios/mixed_two_instances.py --headless -u 1 --host localhost:8000 --model NAME
"""

from tritonbatch.loadtest.user import OpenLoopUser


class MixedTwoInstances(OpenLoopUser):
    """Seven of ten requests are single rows, the others bring eight."""

    defaults = {"pattern": "poisson:rate=100,seconds=30", "classes": "interactive=1:0.7,bulk=2x8:0.3"}
