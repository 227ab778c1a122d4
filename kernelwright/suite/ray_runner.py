"""``--runner ray``: the problems of a suite on all devices of a Ray cluster (``ray_cluster.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.progress import Progress
from kernelwright.suite.jobs import Job
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.ray_cluster import Cluster, connect
from kernelwright.suite.scheduler import Finished, Part, nobody_asks


def run_on_ray(jobs: Sequence[Job], options: SuiteOptions, finished: Finished, progress: Progress,
               part: Part = nobody_asks) -> None:
    """Run ``jobs`` on a Ray cluster; ``finished`` gets each record, once per job, and ``part`` what jobs say before.

    Raises RunnerMissing (KW608) without Ray, a reachable cluster or a device in it, and where every actor is lost;
    InvalidOption (KW403) for numbers of GPUs, which are Ray's to give.
    """
    ray, own = connect(options)
    try:
        cluster = Cluster(ray, options, finished, progress, part)
        progress.say(f"{len(jobs)} problems on {len(cluster.devices)} devices of a Ray cluster: "
                     f"{', '.join(cluster.addresses)}")
        cluster.run(jobs)
    finally:
        if own:
            ray.shutdown()
