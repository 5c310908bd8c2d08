"""One model under a seeded open-loop schedule.

locust -f loadtest/scenarios/open_loop.py --headless -u 1 --host localhost:8000 --model NAME --rate 100 --requests 1000
"""

from tritonbatch.loadtest.user import OpenLoopUser


class Requests(OpenLoopUser):
    """The schedule is the load; see ``--help``, group tritonbatch."""
