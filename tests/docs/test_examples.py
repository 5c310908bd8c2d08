"""Every example of the documentation runs against the real server, and fits on a screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tritonbatch.server import EmbeddedServer

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.triton
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs_and_is_short(example: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    """It has under 30 lines, ends well without complaints, and prints something."""
    assert len(example.read_text(encoding="utf-8").splitlines()) < 30
    result = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(example), server.http_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert "Traceback" not in result.stderr
