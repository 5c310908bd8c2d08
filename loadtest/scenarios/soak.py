"""Twenty minutes of the same load: what leaks, drifts or decays shows in the records over time.

locust -f loadtest/scenarios/soak.py --headless -u 1 --host localhost:8000 --model NAME
"""

from tritonbatch.loadtest.user import OpenLoopUser


class Soak(OpenLoopUser):
    """Poisson arrivals; --pattern takes their place."""

    defaults = {"pattern": "poisson:rate=50,seconds=1200"}
