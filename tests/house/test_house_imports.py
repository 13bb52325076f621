"""What may import what, where import-linter does not see it: pure layers, and processes that must stay lean."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPURE = {
    "asyncio", "datetime", "logging", "os", "pathlib", "random", "secrets", "select", "selectors", "signal", "socket",
    "sqlite3", "ssl", "structlog", "subprocess", "threading", "time", "trio", "uuid",
}  # fmt: skip
"""Modules by which code could look at a clock, draw a number, or touch anything outside its arguments."""


def imports(path: Path) -> set[str]:
    """The outermost names of everything a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("layer", ["wire", "hub"])
def test_pure_layers_import_nothing_impure(layer):
    modules = list((ROOT / "wakehub" / layer).glob("*.py"))
    assert modules
    for module in modules:
        assert not imports(module) & IMPURE, module


def test_the_wire_needs_nothing_but_the_standard_library():
    for module in (ROOT / "wakehub" / "wire").glob("*.py"):
        assert imports(module) <= set(sys.stdlib_module_names) | {"wakehub"}, module


@pytest.mark.parametrize("layer", ["wire", "hub"])
def test_pure_layers_neither_await_nor_print(layer):
    for module in (ROOT / "wakehub" / layer).glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), module
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"print", "open", "input", "hash"}, f"{module}:{node.lineno}"


def loaded(script: str) -> set[str]:
    """The modules that a fresh interpreter has loaded behind `script`."""
    words = [sys.executable, "-P", "-c", f"{script}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def test_the_hub_process_is_lean():
    """design.md: it imports neither sqlite3 nor anything of inbox, publisher, relay, intercom, ops."""
    found = loaded("import wakehub.server.serve")
    assert "sqlite3" not in found
    for area in ("inbox", "publisher", "relay", "intercom", "ops", "client", "cli"):
        assert not any(name == f"wakehub.{area}" or name.startswith(f"wakehub.{area}.") for name in found), area


def test_the_platforms_directories_are_looked_up_only_when_needed():
    assert "platformdirs" not in loaded("import wakehub.server.serve")
    assert "platformdirs" not in loaded("from wakehub import config; config.load({'WAKEHUB_HOME': '/nowhere'})")


def test_the_package_itself_is_cheap_to_import():
    found = loaded("import wakehub")
    assert {name for name in found if name.startswith("wakehub")} == {"wakehub"}
    assert not found & {"trio", "sqlite3", "nacl", "structlog"}


def test_nothing_outside_starts_a_shell():
    """Fault F89: no shell ever sees what a message says."""
    for module in (ROOT / "wakehub").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                assert not any(word.arg == "shell" for word in node.keywords), f"{module}:{node.lineno}"
                name = ast.unparse(node.func)
                assert name not in {"os.system", "os.popen", "subprocess.getoutput", "eval", "exec"}, module
