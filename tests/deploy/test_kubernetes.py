"""The manifests: valid for Kubernetes' own schemas, and in agreement with the server that they run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_containers import own_variables, settings_of
from vivavoce.checkpoint.known_models import KNOWN_MODELS

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSION = "1.34"
"""Of the schemas: what clusters of the year before have."""
PLAIN = [path for path in KUBERNETES.rglob("*.yaml") if path.name not in ("kustomization.yaml", "envoy.yaml")]
OVERLAYS = ("base", "gpu", "tritons")
BUILD = next(
    (words for words in (["kustomize", "build"], ["kubectl", "kustomize"]) if shutil.which(words[0])), ["kustomize"]
)


def built(overlay: str) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    if shutil.which(BUILD[0]) is None:
        pytest.skip("neither kustomize nor kubectl is installed: overlays were not put together")
    found = subprocess.run([*BUILD, str(KUBERNETES / overlay)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return list(yaml.safe_load_all(found.stdout))


def validate(resource: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    schemas.validate(resource, VERSION, strict=True)


def one(resources: list[dict[str, Any]], kind: str, name: str = "vivavoce") -> dict[str, Any]:
    (found,) = [one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def base() -> list[dict[str, Any]]:
    """The base's resources as they are written, without kustomize."""
    files = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    texts = [(KUBERNETES / "base" / name).read_text(encoding="utf-8") for name in files]
    return [resource for text in texts for resource in yaml.safe_load_all(text)]


def pod(resources: list[dict[str, Any]], kind: str = "Deployment", name: str = "vivavoce") -> dict[str, Any]:
    spec: dict[str, Any] = one(resources, kind, name)["spec"]["template"]["spec"]
    return spec


def variables_of(resources: list[dict[str, Any]]) -> dict[str, str]:
    """What the servers get: they read all settings from one place."""
    (server,) = pod(resources)["containers"]
    assert server["envFrom"][0] == {"configMapRef": {"name": "vivavoce-settings"}}
    assert not server.get("env"), "these would win over the settings"
    data: dict[str, str] = one(resources, "ConfigMap", "vivavoce-settings")["data"]
    return {name: value for name, value in data.items() if name.startswith("VIVAVOCE_")}


def test_what_is_written_is_valid() -> None:
    for resource in base():
        validate(resource)
    for resource in yaml.safe_load_all((KUBERNETES / "tritons" / "triton.yaml").read_text(encoding="utf-8")):
        validate(resource)
    broken = {**one(base(), "Deployment"), "spec": {"replicas": "two"}}
    with pytest.raises(pytest.importorskip("kubernetes_validate").ValidationError):
        validate(broken)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_put_together_is_valid(overlay: str) -> None:
    resources = built(overlay)
    for resource in resources:
        validate(resource)
        assert resource["kind"] == "Namespace" or resource["metadata"]["namespace"] == "vivavoce"
    # What each asks for is there: services, and selectors with pods behind them.
    pods = [one["spec"]["template"] for one in resources if one["kind"] in ("Deployment", "StatefulSet")]
    labels = [template["metadata"]["labels"] for template in pods]
    for resource in resources:
        spec = resource.get("spec", {})
        if resource["kind"] == "Service":
            assert spec["selector"] in labels
            (template,) = [one for one in pods if one["metadata"]["labels"] == spec["selector"]]
            named = {port["name"] for part in template["spec"]["containers"] for port in part["ports"]}
            assert {port["targetPort"] for port in spec["ports"]} <= named
        if resource["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            assert spec.get("podSelector", spec.get("selector"))["matchLabels"] in labels
    for template in pods:
        for part in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]:
            limits = part["securityContext"]
            assert (limits["readOnlyRootFilesystem"], limits["capabilities"]) == (True, {"drop": ["ALL"]})
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_server_starts_with_this_and_no_stream_is_cut_by_a_new_version() -> None:
    spec = pod(base())
    (server,) = spec["containers"]
    given = variables_of(base())
    settings = settings_of(server["args"], own_variables("cpu") | given).server
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {
        "http": settings.port,
        "cosyvoice": settings.legacy_port,
        "grpc": settings.grpc_port,
        "health": settings.health_port,
    }
    assert settings.legacy
    pause = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    # A pod that leaves is asked for nothing new before it is told to stop, and then has time for what it speaks.
    assert pause > server["readinessProbe"]["periodSeconds"]
    assert spec["terminationGracePeriodSeconds"] > pause + settings.drain_s
    rolling = one(base(), "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    probes = {name: server[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert probes["livenessProbe"]["path"] == "/health/live"
    mounted = {volume["mountPath"] for volume in server["volumeMounts"]}
    assert mounted == {"/models", "/keys", "/tmp"}
    assert Path(given["VIVAVOCE_AUTH_KEYS_FILE"]).parent == Path("/keys")


def test_the_autoscaler_asks_for_what_the_adapter_makes_of_our_figures() -> None:
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]
    (metric,) = one(base(), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    documented = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    asked = re.findall(r"vivavoce_engine_\w+", rule["seriesQuery"] + rule["metricsQuery"])
    assert asked
    assert all(f"| `{name}` |" in documented for name in asked)


def test_gpus_and_bridges() -> None:
    gpu = pod(built("gpu"))
    (server,), (model,) = gpu["containers"], gpu["initContainers"]
    assert {server["image"], model["image"]} == {"vivavoce:cuda"}
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert (model["args"], model["envFrom"]) == (["download", "$(VIVAVOCE_MODEL)"], server["envFrom"])
    assert variables_of(built("gpu"))["VIVAVOCE_MODEL"] in KNOWN_MODELS
    assert variables_of(built("gpu")).items() >= variables_of(base()).items()
    tritons = built("tritons")
    (bridge,) = pod(tritons)["containers"]
    given = variables_of(tritons)
    assert "VIVAVOCE_VOICES" not in given
    settings = settings_of(bridge["args"], own_variables("cpu") | given).server
    assert settings.upstream == "triton://envoy:8001"
    one(tritons, "Service", "envoy")
    assert "HorizontalPodAutoscaler" not in {resource["kind"] for resource in tritons}
    (triton,) = pod(tritons, name="triton")["containers"]
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_models_may_be_in_one_volume_of_all_pods(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "gpu" / "kustomization.yaml"
    text = overlay.read_text(encoding="utf-8")
    overlay.write_text(text.replace("# components: [../shared-models]", "components: [../shared-models]"), "utf-8")
    assert overlay.read_text(encoding="utf-8") != text
    resources = built(str(tmp_path / "kubernetes" / "gpu"))
    for resource in resources:
        validate(resource)
    claim = one(resources, "PersistentVolumeClaim", "vivavoce-models")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (models,) = [volume for volume in pod(resources)["volumes"] if volume["name"] == "models"]
    assert models == {"name": "models", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
