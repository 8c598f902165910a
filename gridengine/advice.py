"""Settings of the cell that qtandem needs, and what an admin does by hand where the site has its own. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

JSV_NOTE = (
    "With a server JSV, Grid Engine lets qalter change only what jsv_allowed_mod lists (default: ac,h,i,e,o,j,M,N,p,w):"
    " all users lose `qalter -l`, `-q`, `-a` and the like on pending jobs. A letter that is added there is checked"
    " by no JSV; keep `l` and `v` out."
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One attribute of the cell's configuration: why, its name, the value that we need."""

    title: str
    key: str
    value: str


def script(value: str) -> Path:
    """The path in `USER@PATH ARGUMENT...`."""
    return Path(re.sub(r"^[^/@]*@", "", value).split()[0])


def by_hand(setting: Setting, have: str, note: str) -> str:
    """What an admin does where the site has a script of its own."""
    if setting.key == "jsv_url":
        lines = [
            f"it is {have}",
            "set options.jsv in [managers.gridengine] to that script, which ours then asks first; install again, then:",
            f"qconf -mconf global: jsv_url {setting.value}",
            note,
        ]
    elif setting.key == "shepherd_cmd":
        lines = [f"it is {have}", f"start ours where it starts sge_shepherd: {setting.value}"]
    elif setting.key == "execd_params":
        lines = [f"it is {have}", f"have in it: {setting.value}"]
    else:
        path = re.sub(r"^root@", "", setting.value)
        lines = [f"it is {have}", f"call ours from it, as root, and pass on its exit status: {path}"]
        lines.append("(said until it does, and wherever this host cannot read it)")
    return "\n".join(lines)
