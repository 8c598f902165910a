"""Print what the image's virtual environment needs: the base, the simulator and the build back end.

usage: requirements.py PYPROJECT
"""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads(Path(sys.argv[1]).read_text())
wanted = [
    *pyproject["project"]["dependencies"],
    *pyproject["project"]["optional-dependencies"]["simulator"],
    *pyproject["build-system"]["requires"],
]
print("\n".join(sorted(wanted)))
