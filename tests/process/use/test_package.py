"""`kernelwright package`: wheels of emitted files, as pip installs them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from emitted_tools import write_problem
from forks import ran
from schemas import assert_fits

import kernelwright
from kernelwright import cli
from kernelwright.build.embedding import compiled_for
from kernelwright.build.module import kernels_of
from kernelwright.codegen.generate import TARGETS
from kernelwright.deploy.wheel import make_wheel
from kernelwright.emit.embedded import libraries_text
from kernelwright.roofline.devices import GENERIC_CPU


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    """Two emitted files; and the first one's library text."""
    folder = tmp_path_factory.mktemp("emitted")
    files = []
    for name in ("nested", "lists"):
        problem = write_problem(folder, name)
        source = kernelwright.explain(problem, target="cpp", device=GENERIC_CPU).source
        files.append(problem.with_name(f"{name}_new.py"))
        files[-1].write_text(source)
    return files


def package(*arguments: object) -> int:
    return cli.run(["package", *map(str, arguments), "--quiet"])


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_wheel_of_two_files_is_what_the_format_asks_for(emitted, tmp_path, capsys):
    assert package(*emitted, "--name", "My.fast-Models", "--version", "1.2rc1", "-o", tmp_path / "dist", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert_fits(said, "package")
    path = tmp_path / "dist" / "my_fast_models-1.2rc1-py3-none-any.whl"
    assert said["path"] == str(path) and said["package"] == "my_fast_models" and said["tag"] == "py3-none-any"
    assert said["modules"] == ["nested_new", "lists_new"] and said["requires"] == ["torch>=2.11", "ninja"]
    files = contents(path)
    information = "my_fast_models-1.2rc1.dist-info"
    assert list(files)[-1] == f"{information}/RECORD"
    for file in emitted:
        assert files[f"my_fast_models/{file.name}"] == file.read_text()
    lines = files[f"{information}/METADATA"].splitlines()
    assert {"Metadata-Version: 2.1", "Name: My.fast-Models", "Version: 1.2rc1", "Requires-Dist: torch>=2.11",
            "Requires-Python: >=3.11"} <= set(lines)
    assert "Root-Is-Purelib: true\nTag: py3-none-any\n" in files[f"{information}/WHEEL"]
    rows = {name: (digest, size) for name, digest, size in csv.reader(files[f"{information}/RECORD"].splitlines())}
    assert rows.keys() == files.keys() and rows.pop(f"{information}/RECORD") == ("", "")
    for name, (digest, size) in rows.items():
        wanted = base64.urlsafe_b64encode(hashlib.sha256(files[name].encode()).digest()).decode().rstrip("=")
        assert digest == f"sha256={wanted}" and int(size) == len(files[name].encode())


def test_pip_installs_it_and_it_runs(emitted, tmp_path):
    """A package of one file gives its class by itself. The second run has the same bytes."""
    first, again = (make_wheel(emitted[:1], name="one", version="0.1.0", output=tmp_path / name)
                    for name in ("a", "b"))
    assert first.path.read_bytes() == again.path.read_bytes()
    several = make_wheel(emitted, name="several", version="2", output=tmp_path)
    site = tmp_path / "site"
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet",
                           "--disable-pip-version-check", "--target", str(site), str(first.path), str(several.path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program = ("import torch\nfrom one import ModelNew\nfrom one.nested_new import ModelNew as same\n"
               "assert same is ModelNew\nfrom several import lists_new\nassert not hasattr(lists_new, 'x')\n"
               "model = lists_new.ModelNew()\nassert model([torch.ones(8, 16)] * 2, [2.0, 0.5])[0].shape == (8, 16)\n"
               "from importlib.metadata import requires, version\n"
               "print(version('one'), *requires('several'), sorted(model.why()))\n")
    done = ran(program, folder=site)
    assert done.returncode == 0 and done.stdout == "0.1.0 torch>=2.11 ninja []\n", done.stderr


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="libraries are made on Linux")
def test_a_wheel_with_compiled_kernels_is_for_their_platform(emitted, tmp_path):
    text = emitted[0].read_text()
    libraries, _ = compiled_for(kernels_of(text), ("x86-64",), TARGETS["cpp"])
    path = tmp_path / "nested_new.py"
    path.write_text(f"{text}\n{libraries_text(libraries)}\n")
    made = make_wheel([path], name="held", version="1.0", output=tmp_path)
    assert made.path.name == "held-1.0-py3-none-linux_x86_64.whl" and made.requires == ("torch>=2.11",)
    assert "Root-Is-Purelib: false\nTag: py3-none-linux_x86_64\n" in contents(made.path)["held-1.0.dist-info/WHEEL"]


def test_what_files_import_is_asked_for(tmp_path):
    path = tmp_path / "model_new.py"
    path.write_text("import os, torch\nimport rich.table\n\ndef late():\n    import layers_of_mine\n\n"
                    "class ModelNew(torch.nn.Module):\n    pass\n")
    made = make_wheel([path], name="x", version="1", output=tmp_path)
    assert made.requires == ("torch>=2.11", "rich")
    (note,) = made.notes
    assert "model_new imports layers_of_mine, which no installed distribution has" in note and note in made.render()


BAD = {
    "no file": ("KW101", "missing_new.py", None),
    "a text": ("KW102", "notes.txt", "x"),
    "no ModelNew": ("KW405", "model.py", "class Model:\n    pass\n"),
    "no Python": ("KW405", "broken_new.py", "class ModelNew(:\n"),
    "no name of a module": ("KW405", "my-model.py", "class ModelNew:\n    pass\n"),
    "a keyword": ("KW405", "class.py", "class ModelNew:\n    pass\n"),
    "damaged libraries": ("KW405", "held_new.py", "class ModelNew:\n    pass\n_KERNELWRIGHT_LIBRARIES = [{'a': 1}]\n"),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_none(tmp_path, capsys, kind):
    code, name, text = BAD[kind]
    if text is not None:
        (tmp_path / name).write_text(text)
    assert package(tmp_path / name, "--name", "x", "-o", tmp_path / "dist") == 2
    assert f"error {code}: " in capsys.readouterr().err and not (tmp_path / "dist").exists()


@pytest.mark.parametrize("options", [("--name", "my model"), ("--name", "torch"), ("--name", "json"), ("--name", "3d"),
                                     ("--name", "class"), ("--name", "x", "--version", "v1"),
                                     ("--name", "x", "--version", "1.0-alpha")], ids=" ".join)
def test_names_and_versions_that_are_none(emitted, tmp_path, capsys, options):
    assert package(emitted[0], *options, "-o", tmp_path / "dist", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "KW403" and not (tmp_path / "dist").exists()


def test_two_files_of_one_name_and_folders_that_are_none(emitted, tmp_path, capsys):
    (tmp_path / emitted[0].name).write_text(emitted[0].read_text())
    assert package(*emitted, tmp_path / emitted[0].name, "--name", "x", "-o", tmp_path / "dist") == 2
    assert "error KW405: " in capsys.readouterr().err
    assert package(*emitted, "--name", "x", "-o", tmp_path / "no" / "dist") == 2
    assert package(*emitted, "--name", "x", "-o", emitted[0]) == 2
    assert capsys.readouterr().err.count("error KW401: ") == 2


def test_a_wheel_that_exists_is_kept(emitted, tmp_path, capsys):
    made = tmp_path / "x-0.1.0-py3-none-any.whl"
    made.write_text("precious")
    assert package(emitted[0], "--name", "x", "-o", tmp_path) == 2
    assert "error KW402: " in capsys.readouterr().err and made.read_text() == "precious"
    assert package(emitted[0], "--name", "x", "-o", tmp_path, "--force") == 0
    assert zipfile.is_zipfile(made) and [path.name for path in tmp_path.iterdir()] == [made.name]
