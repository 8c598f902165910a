import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_reference_pages_say_what_the_code_says():
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    found = subprocess.run(check, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / ".dev")})
    assert found.returncode == 0, f"{found.stdout}{found.stderr}; run: make docs"
