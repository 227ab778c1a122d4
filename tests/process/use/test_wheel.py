"""The wheel, as a user installs it from a file: all that the package reads is in it; it works without a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from places import ROOT

PACKAGE = ROOT / "kernelwright"
MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 2048)

    def forward(self, x):
        return torch.softmax(self.layer(x), -1)


def get_inputs():
    return [torch.randn(4096, 2048)]
"""


def run(*command: object, folder: Path, **environment: str) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel's file, built of a copy, so that the checkout gets no build folder; without a network."""
    try:
        found = version("setuptools")
    except PackageNotFoundError:
        found = "0"
    if int(found.split(".")[0]) < 77:
        pytest.skip(f"setuptools {found} cannot build it here (pyproject.toml asks for 77)")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(PACKAGE, source / "kernelwright", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-w", made,
        folder=source)
    (path,) = made.glob("*.whl")
    return path


def test_the_wheel_holds_the_package(wheel):
    """Every file of the package and nothing beside it, the tests' and the documents' least of all."""
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    files = {p.relative_to(ROOT).as_posix() for p in PACKAGE.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert names == files


def test_the_image_gets_what_the_package_is_made_of():
    """Nothing that is left out of an image's sources is needed to install it."""
    left_out = (ROOT / ".dockerignore").read_text().split()
    needed = ("kernelwright", "pyproject.toml", "README.md", "LICENSE", "constraints.txt")
    assert all((ROOT / name).exists() for name in needed) and not set(needed) & set(left_out)


@pytest.mark.slow
def test_installed_from_the_file(wheel, tmp_path):
    """In a folder of its own: the version, an explanation for each target (whose texts are files beside modules), and
    the page of a report."""
    home, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", home, wheel, folder=work)
    (work / "model.py").write_text(MODEL)
    inside = {"PYTHONPATH": str(home), "KERNELWRIGHT_CACHE": str(work / "cache")}
    where = "import kernelwright; print(kernelwright.__file__)"
    assert Path(run(sys.executable, "-c", where, folder=work, **inside).strip()).is_relative_to(home)
    script = ("import kernelwright\nfrom kernelwright.roofline.devices import GENERIC_CPU, H200\n"
              "for target, device in (('cpp', GENERIC_CPU), ('c', GENERIC_CPU), ('cuda', H200)):\n"
              "    result = kernelwright.explain('model.py', target=target, device=device, contractions='measured')\n"
              "    print(target, bool(result.modes[0].kernels), 'wgmma' in result.source)\n"
              "result.save_report('report.html')\n")
    assert run(sys.executable, "-c", script, folder=work, **inside).splitlines() == [
        "cpp True False", "c True False", "cuda True True"]
    assert "<html" in (work / "report.html").read_text()
    assert "kernelwright" in run(home / "bin" / "kernelwright", "--version", folder=work, **inside)
