"""The manifests of `deploy/kubernetes`. tests/real/test_image.py runs the pod's command as it stands there."""

import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway.metrics import exposition
from mcp_nursery.supervisor.testing import ScriptedServer

from .lab.specs import spec

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
SECRET = {"replica.key": "k", "tokens.toml": "t", "state.env": "MCP_NURSERY_STATE=postgresql://database/state\n"}


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def pod():
    return read("deployment.yaml")["spec"]["template"]["spec"]


def validate(document):
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid(name):
    validate(read(name))


def test_a_fault_is_found():
    document = read("deployment.yaml")
    document["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["period"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="period"):
        validate(document)


def test_the_kustomization_has_all_files_and_no_secret():
    kustomization = read("kustomization.yaml")
    assert sorted(kustomization["resources"]) == MANIFESTS
    generated = [
        file for each in kustomization["secretGenerator"] for file in each.get("files", []) + each.get("envs", [])
    ]
    assert sorted(generated) == sorted(SECRET)
    assert set(generated) <= set((FOLDER / ".gitignore").read_text().split())
    assert not any((FOLDER / name).exists() for name in generated)


def test_kustomize_makes_valid_manifests_of_it(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, folder)
    for name, text in SECRET.items():
        (folder / name).write_text(text)
    made = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    documents = list(yaml.safe_load_all(made.stdout))
    for document in documents:
        validate(document)
    named = {(each["kind"], each["metadata"]["name"]) for each in documents}
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    inside = deployment["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in inside["volumes"]}
    assert ("ConfigMap", volumes["servers"]["configMap"]["name"]) in named
    assert ("Secret", volumes["keys"]["secret"]["secretName"]) in named
    assert ("Secret", inside["containers"][0]["envFrom"][0]["secretRef"]["name"]) in named


def test_nobody_kills_a_pod_that_still_drains():
    options = dict(each.removeprefix("--").split("=", 1) for each in pod()["containers"][0]["args"] if "=" in each)
    assert float(options["lame-duck"]) + float(options["drain"]) < pod()["terminationGracePeriodSeconds"]


async def test_the_autoscaler_goes_by_a_metric_that_there_is(autojump_clock):
    metrics = [each["pods"]["metric"]["name"] for each in read("autoscaler.yaml")["spec"]["metrics"] if "pods" in each]
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        text = exposition(supervisor.status(), supervisor.statistics()).decode()
    assert [name for name in metrics if f"# TYPE {name} gauge" in text] == metrics == ["mcp_nursery_server_requests"]
