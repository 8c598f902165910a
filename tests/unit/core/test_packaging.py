"""Two near variants of the import mapping build an empty wheel with exit status 0: look at the files."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("core", "slurm", "local", "daemons")


def test_the_wheel_holds_every_file_of_every_room(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    built = set(zipfile.ZipFile(wheel).namelist())
    for room in ROOMS:
        listed = subprocess.run(["git", "ls-files", room], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in listed.stdout.split():
            if (ROOT / name).exists():
                assert f"qtandem/{name}" in built


def test_no_room_is_a_package_that_would_shadow_a_managers_bindings():
    assert not [room for room in ROOMS if (ROOT / room / "__init__.py").exists()]
