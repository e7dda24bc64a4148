"""Chooses the engine for a call of Ray Serve, and the number of engines; Ray ships this module's code."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from vivavoce_fleet.routing import EngineLoad, order

FULL = 0.7
"""Another engine is started if more than this share of the capacity is in use. The rest of the capacity serves requests
that come while the new engine loads, and the requests of engines that end."""


class HeadroomRouter(RequestRouter):
    """Sorts replicas by `order`. The first two arguments of `EngineReplica.speak` are for this router: the voice's key,
    and the names of replicas to avoid."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas, the best first, one replica per rank. If `order` leaves none, one rank has all of them."""
        key, avoid = None, frozenset[str]()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if pending_request.metadata.call_method == "speak":
                key, avoid = pending_request.args[:2]
        replicas = {one.replica_id.unique_id: one for one in candidate_replicas}
        loads = [self._load(one) for name, one in replicas.items() if name not in avoid]
        return [[replicas[load.name]] for load in order(loads, key)] or [candidate_replicas]

    def _load(self, replica: RunningReplica) -> EngineLoad:
        report, calls = replica.routing_stats, self.replica_queue_len_cache.get(replica.replica_id)
        streams = report.get("streams", 0) if calls is None else calls
        return EngineLoad(replica.replica_id.unique_id, report.get("ready", True), streams, report.get("capacity", 1))


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of engines for the streams of the last half minute, with some room, and Ray's policy state."""
    metrics = context.aggregated_metrics or {}
    if not metrics.get("capacity"):
        return context.target_num_replicas, {}
    streams = fmean(metrics["streams"].values()) * context.current_num_replicas
    return math.ceil(streams / (FULL * fmean(metrics["capacity"].values()))), {}
