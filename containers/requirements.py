"""Print what an image's virtual environment needs: the base, the simulator and the build back end; or a group or extra.

usage: requirements.py PYPROJECT [GROUP]
"""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads(Path(sys.argv[1]).read_text())
if len(sys.argv) > 2:
    wanted = (pyproject["project"]["optional-dependencies"] | pyproject["dependency-groups"])[sys.argv[2]]
else:
    wanted = [
        *pyproject["project"]["dependencies"],
        *pyproject["project"]["optional-dependencies"]["simulator"],
        *pyproject["build-system"]["requires"],
    ]
print("\n".join(sorted(wanted)))
