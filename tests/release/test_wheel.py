"""The wheel and the sdist hold what they should, and the wheel speaks where the sources are not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from vivavoce.version import __version__

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
NAMED = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "import setuptools.build_meta as b, sys; out = sys.argv[1]; b.build_wheel(out); b.build_sdist(out)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, made of a copy of the sources."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "sources"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in NAMED:
        shutil.copy(ROOT / name, copy)
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=copy, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (file,) = built.glob("*.whl")
    return file


def sources() -> set[str]:
    """What Git would give out below src/, but what is only read there."""
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    names = {path.relative_to(ROOT / "src").as_posix() for path in files}
    return {name for name in names if "__pycache__" not in name and ".egg-info/" not in name}


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"vivavoce-{__version__}.dist-info/"
    inside = {name for name in names if not name.startswith(about)}
    assert inside <= sources()
    assert sources() - inside == {"vivavoce_textnorm/README.md", "vivavoce_training/data/README.md"}
    assert {"vivavoce/py.typed", "vivavoce/data/mini/llm.pt", "vivavoce/server/http/web/speak.html"} <= inside
    licences = {name.removeprefix(f"{about}licenses/") for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "src/vivavoce/data/mini/NOTICE.md", "src/vivavoce/data/whisper/NOTICE.md"}


def test_its_description_is_one_that_an_index_takes(wheel: Path) -> None:
    content = zipfile.ZipFile(wheel).read(f"vivavoce-{__version__}.dist-info/METADATA")
    about = Metadata.from_email(content, validate=True)
    assert (about.name, str(about.version), about.license_expression) == ("vivavoce", __version__, "Apache-2.0")
    assert about.description_content_type == "text/markdown"
    assert about.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"server", "docs", "release"} <= set(about.provides_extra or ())


def test_the_sdist_holds_all_that_the_wheel_is_made_of(built: Path) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    missing = {f"src/{name}" for name in sources()} - names
    assert missing == {"src/vivavoce_textnorm/README.md", "src/vivavoce_training/data/README.md"}
    assert {*NAMED, "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def clean() -> dict[str, str]:
    """The environment without what leads to the sources."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIVAVOCE"))}


def test_the_wheel_speaks(wheel: Path, tmp_path: Path) -> None:
    """With the packages of this environment, but without the sources; `make dist` tries it where nothing else is."""
    venv.EnvBuilder(symlinks=True).create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
    ]
    subprocess.run([*install, "--quiet", str(wheel)], check=True, capture_output=True)
    (installed,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # What .pth files name is not searched for further ones: the editable installation of the sources is not among it.
    beside = [path for path in sys.path if path.endswith("site-packages")]
    (installed / "packages.pth").write_text("\n".join(beside), encoding="utf-8")
    environment = {**clean(), "VIVAVOCE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        command = [str(python.with_name("vivavoce")), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert str(installed / "vivavoce" / "data" / "mini") in run("doctor")
    run("speak", "Hello.", "--out", "hello.wav")
    assert (tmp_path / "hello.wav").stat().st_size > 10_000


@pytest.mark.long
def test_make_dist(tmp_path: Path) -> None:
    for name in ("build", "twine", "cyclonedx_py"):
        pytest.importorskip(name, reason="needs the extra release")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if name.startswith("src/") or name in (*NAMED, "Makefile", "constraints.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    command = ["make", "-C", str(tmp_path), "-o", ".venv/.setup-release", "dist", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, env=clean(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "build" / "empty" / "hello.wav").stat().st_size > 10_000
    assert '"torch"' in (tmp_path / "dist" / "sbom.cdx.json").read_text(encoding="utf-8")
