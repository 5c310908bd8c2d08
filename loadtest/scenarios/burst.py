"""Bursts: a second of many requests, two of few, again and again; what a queue delay and a queue limit are for.

locust -f loadtest/scenarios/burst.py --headless -u 1 --host localhost:8000 --model NAME
"""

from tritonbatch.loadtest.user import OpenLoopUser


class Burst(OpenLoopUser):
    """Poisson arrivals whose rate switches; --pattern takes their place, as onoff:rate=800,on=1,off=4,seconds=60."""

    defaults = {"pattern": "onoff:rate=400,on=1,off=2,idle=20,seconds=30"}
