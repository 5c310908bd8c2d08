"""The tree: one namespace over several roots, installable as a checkout and as a wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS = SETTINGS["tool"]["hatch"]["build"]["dev-mode-dirs"]
STAGES = sorted(f"tritonbatch.{path.name}" for root in ROOTS for path in (ROOT / root / "tritonbatch").glob("*/"))
STAGES = [stage for stage in STAGES if "__" not in stage]
IMPORT_ALL = f"import importlib; print([importlib.import_module(name).__name__ for name in {STAGES!r}])"


def test_no_init_file_hides_the_other_roots() -> None:
    """A stray tritonbatch/__init__.py would make one root the whole package; there is none, anywhere."""
    assert [str(path) for root in ROOTS for path in ROOT.glob(f"{root}/tritonbatch/__init__.py")] == []
    assert list(ROOT.glob("*/tritonbatch/__init__.py")) == []


def test_every_root_is_named_wherever_roots_are_named() -> None:
    """Editable install, wheel and type checker know the same roots, and every root that exists."""
    existing = sorted(path.parent.name for path in ROOT.glob("*/tritonbatch"))
    assert sorted(ROOTS) == existing
    packages = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == [f"{root}/tritonbatch" for root in ROOTS]
    assert SETTINGS["tool"]["mypy"]["mypy_path"].split(":") == ROOTS
    assert SETTINGS["tool"]["mypy"]["files"] == ROOTS


def test_every_package_is_typed_for_its_users() -> None:
    """Each package of the namespace carries py.typed, which a namespace needs in every part."""
    for stage in STAGES:
        (found,) = [
            ROOT / root / stage.replace(".", "/") for root in ROOTS if (ROOT / root / stage.replace(".", "/")).is_dir()
        ]
        assert (found / "py.typed").exists(), stage
        assert (found / "__init__.py").exists(), stage


def test_the_checkout_imports_from_another_directory(tmp_path: Path) -> None:
    """Every stage of the editable install is importable from anywhere, in an isolated interpreter."""
    result = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == repr(STAGES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without the network."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked alone, before the environment's own packages, the wheel holds every stage."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # The editable install adds the checkout's roots through a .pth file; drop them, keep its dependencies.
    code = (
        f"import sys; sys.path = [{str(tmp_path)!r}] + [p for p in sys.path if not p.startswith({str(ROOT)!r}) "
        f"or 'site-packages' in p]\n{IMPORT_ALL}\n"
        "from tritonbatch.loadtest.generator import scenario\n"
        "files = [scenario('open_loop'), *(m.__file__ for n, m in sys.modules.items() if n[:12] == 'tritonbatch.')]\n"
        f"assert all(str(file).startswith({str(tmp_path)!r}) for file in files), files\n"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == repr(STAGES)


def test_the_wheel_holds_what_is_not_python(wheel: Path) -> None:
    """The backend that Triton loads, the page's style and script, the locustfiles and the type markers are in it."""
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "tritonbatch/server/backends/onnxruntime/model.py",
        "tritonbatch/report/page.css",
        "tritonbatch/report/page.js",
        "tritonbatch/loadtest/scenarios/open_loop.py",
        "tritonbatch/client/py.typed",
    ):
        assert needed in names
    assert "tritonbatch/__init__.py" not in names
    assert all(name.startswith(("tritonbatch/", "tritonbatch-")) for name in names)


def test_what_is_pinned_has_neither_addresses_nor_hashes() -> None:
    """The constraints are name==version lines, and cover every package that the project itself names."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "/" not in line and " " not in line for line in lines)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    extras = SETTINGS["project"]["optional-dependencies"]
    named = SETTINGS["project"]["dependencies"] + extras["cpu"] + extras["models"] + extras["dev"]
    assert {item.split("=")[0].split(">")[0].split("[")[0].lower() for item in named} <= pinned


def test_files_and_functions_stay_small_enough_to_read() -> None:
    """No Python file is over 500 lines, no function over 60."""
    files = [path for root in [*ROOTS, "tests"] for path in (ROOT / root).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    assert [str(path) for path in files if len(path.read_text(encoding="utf-8").splitlines()) > 500] == []
    functions = [
        (node.end_lineno - node.lineno + 1, f"{path.name}:{node.name}")
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [name for lines, name in functions if lines > 60] == []
