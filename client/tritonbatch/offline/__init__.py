"""Offline jobs: every row of a file through a model, exactly once, whatever is killed on the way."""

from tritonbatch.offline.job import Engine, Estimate, Job, Server, Summary, Watch, plan, run

__all__ = ["Engine", "Estimate", "Job", "Server", "Summary", "Watch", "plan", "run"]
