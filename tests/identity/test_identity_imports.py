"""The hub's process imports this layer: it stays lean (design.md, Top level)."""

import subprocess
import sys
from pathlib import Path

import pytest

import wakehub.identity

MODULES = sorted(path.stem for path in Path(wakehub.identity.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("module", MODULES)
def test_importing_brings_nothing_heavy(module: str) -> None:
    program = (
        f"import sys, wakehub.identity.{module}\n"
        "print(*sorted({'sqlite3', 'trio', 'structlog', 'platformdirs', 'asyncio', 'subprocess'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""


def test_every_module_has_its_tests() -> None:
    here = Path(__file__).parent
    assert [module for module in MODULES if not (here / f"test_identity_{module}.py").exists()] == []
