import re
import subprocess
import sys
from pathlib import Path

from qtandem.core.errors import KINDS

ROOT = Path(__file__).parents[3]


def test_the_reference_pages_say_what_the_code_says():
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    found = subprocess.run(check, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / ".dev")})
    assert found.returncode == 0, f"{found.stdout}{found.stderr}; run: make docs"


def test_every_error_code_has_its_troubleshooting():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    told = re.findall(r"^### `([a-z-]+)`\n(.{60})", page, re.MULTILINE)
    assert sorted(code for code, _ in told) == sorted(KINDS)
