"""A Ray Serve application: `serve run vivavoce.entrypoints.ray:app model=CosyVoice2-0.5B gpus=1`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import InvalidRequest
from vivavoce.server.settings_sources import SETTINGS, resolve_settings
from vivavoce.server.toml_file import closest
from vivavoce_textnorm import read_lexicons

if TYPE_CHECKING:
    from ray.serve import Application

NUMBERS: Mapping[str, float] = {"replicas": 1, "max_replicas": 0, "gpus": 0.0, "cpus": 1.0, "cpu_replicas": 0}
"""The numeric arguments and their defaults. If `max_replicas` is 0, the number of engines is fixed. `gpus` and `cpus`
are for each engine. `cpu_replicas`: number of further engines on CPUs, for requests that other engines refuse."""
AT_ONCE = 10_000
"""Maximum number of concurrent calls of a replica: high, because the engine's admission limits the streams."""
BEYOND_DRAIN_S = 10.0
"""Seconds between the end of the server's drain and of a replica, in which it reports how its streams ended."""


def app(arguments: dict[str, Any]) -> Application:
    """Build the application. Raises InvalidRequest if an argument is unknown or wrong.

    arguments: the names in `NUMBERS`; `config`, a TOML file; `model`; any other setting of `vivavoce serve` by its name
    ("engine.slots"). This function reads the file and the variables VIVAVOCE_… on the machine where it runs."""
    from ray import serve

    from vivavoce_ray.engine import EngineReplica
    from vivavoce_ray.ingress import Ingress

    wanted = {"model.model" if name == "model" else name: value for name, value in arguments.items()}
    try:
        numbers = {name: type(usual)(wanted.pop(name, usual)) for name, usual in NUMBERS.items()}
    except ValueError as error:
        raise InvalidRequest(f"arguments: {error}; give numbers for {', '.join(NUMBERS)}") from None
    config = Path(wanted.pop("config")) if "config" in wanted else None
    for name in wanted.keys() - SETTINGS.keys():
        raise InvalidRequest(f"{name}: is not an argument; {closest(name, ('model', 'config', *NUMBERS, *SETTINGS))}")
    settings = resolve_settings(config, os.environ, wanted).settings
    if settings.models.more:
        raise InvalidRequest("models.more: replicas of Ray Serve have one model each; leave the further models out")
    drain_s, lexicons = settings.server.drain_s, read_lexicons(settings.model.lexicons)

    def engines(name: str, least: float, most: float, gpus: float) -> Application:
        model = settings.model if gpus else settings.model.model_copy(update={"device": "cpu"})
        policy = {"policy_function": "vivavoce_ray.routing:replicas_wanted"}
        scaling = {"min_replicas": least, "max_replicas": most, "policy": policy}
        return serve.deployment(
            EngineReplica,
            name=name,
            max_ongoing_requests=AT_ONCE,
            ray_actor_options={"num_cpus": numbers["cpus"], "num_gpus": gpus},
            request_router_config={
                "request_router_class": "vivavoce_ray.routing.HeadroomRouter",
                "request_routing_stats_period_s": 2.0,
            },
            graceful_shutdown_wait_loop_s=1.0,
            graceful_shutdown_timeout_s=drain_s + BEYOND_DRAIN_S,
            logging_config={"enable_access_log": False},
            **({"autoscaling_config": scaling} if most else {"num_replicas": least}),
        ).bind(
            EngineProcessSettings(
                model, settings.engine, settings.voices, settings.logging, settings.provenance, lexicons
            )
        )

    pools = [engines("Engine", numbers["replicas"], numbers["max_replicas"], numbers["gpus"])]
    if numbers["cpu_replicas"]:
        pools.append(engines("EngineOnCpu", numbers["cpu_replicas"], 0, 0.0))
    return serve.deployment(
        serve.ingress()(Ingress),
        max_ongoing_requests=settings.server.max_connections,
        graceful_shutdown_wait_loop_s=1.0,
        graceful_shutdown_timeout_s=drain_s,
        logging_config={"enable_access_log": False},
    ).bind(settings, *pools)
