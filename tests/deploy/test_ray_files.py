"""The files of deploy/ray against the schemas that Ray itself checks them with, where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "ray"


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def applications() -> list[dict[str, Any]]:
    """Of the file for `serve`, and of the one for KubeRay, which holds such a file."""
    return [*read("serve.yaml")["applications"], *kuberay()["applications"]]


def kuberay() -> Any:
    return yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])


def test_the_file_for_kuberay_says_what_that_for_serve_says() -> None:
    beside = read("serve.yaml")["applications"][0]["args"]
    assert kuberay()["applications"][0]["args"] == beside
    assert {one["import_path"] for one in applications()} == {"vivavoce.entrypoints.ray:app"}
    (group,) = read("rayservice.yaml")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert group["maxReplicas"] == beside["max_replicas"]


def test_serve_takes_the_configuration() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed: pip install 'vivavoce[ray]'")
    for config in (read("serve.yaml"), kuberay()):
        taken = schema.ServeDeploySchema.model_validate(config)
        assert taken.http_options.port == 8000


def test_the_launcher_takes_the_cluster() -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'vivavoce[ray]'")
    import jsonschema
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(read("cluster.yaml"), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**read("cluster.yaml"), "providers": {}}, schema)


def test_arguments_become_deployments() -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'vivavoce[ray]'")
    from vivavoce.errors import InvalidRequest
    from vivavoce_ray import app

    for one in applications():
        built = app(one["args"])
        assert built._bound_deployment.name == "Ingress"
        engine, *more = built._bound_deployment.init_args[1:]
        assert more == []
        assert engine._bound_deployment.ray_actor_options == {"num_cpus": 4, "num_gpus": 1}
        scaling = engine._bound_deployment._deployment_config.autoscaling_config
        assert (scaling.min_replicas, scaling.max_replicas) == (1, 8)
        assert engine._bound_deployment.init_args[0].voices.place == "redis://redis:6379/0"
    mixed = app({"replicas": "2", "gpus": "1", "cpu_replicas": "3", "engine.slots": "7"})
    pools = [one._bound_deployment for one in mixed._bound_deployment.init_args[1:]]
    assert [(one.name, one.num_replicas) for one in pools] == [("Engine", 2), ("EngineOnCpu", 3)]
    assert [one.init_args[0].model.device for one in pools] == ["auto", "cpu"]
    assert {one.init_args[0].engine.slots for one in pools} == {7}
    for wrong, told in (
        ({"replica": 3}, "replica: is not an argument; "),
        ({"replicas": "many"}, "arguments: "),
        ({"engine.slots": 0}, "engine.slots"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            app(wrong)
