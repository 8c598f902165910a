"""The peer of the vendors bench: one process asks each resource's status in turn, as reference pollers do.

    python -m tests.bench._serial SITES.json SWEEPS PERIOD_S

SITES is a list of {name, type, device, settings}. It makes that many sweeps, or goes on until it is killed for 0, and
prints the seconds and CPU seconds of each. It uses the qrmi library's own `status()`, and Braket's SDK for Braket.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import qrmi
from braket.aws import AwsSession

_TYPES = {
    "ibm-quantum-compute-service": "IBMQuantumComputeService",
    "ibm-quantum-system": "IBMQuantumSystem",
    "iqm-server": "IQMServer",
    "alice-bob-felis": "AliceBobFelis",
    "pasqal-cloud": "PasqalCloud",
    "pasqal-local": "PasqalLocal",
}


def status_of(site: Mapping[str, Any]) -> Callable[[], object]:
    settings = site["settings"]
    if site["type"] == "braket":
        session = boto3.session.Session(
            settings["aws_access_key_id"], settings["aws_secret_access_key"], region_name="eu-north-1"
        )
        client = session.client("braket", endpoint_url=settings["endpoint"])
        aws = AwsSession(boto_session=session, braket_client=client)
        return lambda: aws.get_device(settings["device"])
    config = {key: value for key, value in settings.items() if key.startswith(("QRMI_", "PASQAL_"))}
    config |= {"QRMI_JOB_UID": "0", "QRMI_JOB_ID": "1"} if site["type"] == "pasqal-local" else {}
    kind = getattr(qrmi.ResourceType, _TYPES[site["type"]])
    return qrmi.QuantumResource.from_config(site["device"], kind, config).status


def main() -> None:
    sites, sweeps, period_s = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]), float(sys.argv[3])
    ask = [status_of(site) for site in sites]
    done = 0
    while not sweeps or done < sweeps:
        began, cpu = time.monotonic(), time.process_time()
        for each in ask:
            # A reference poller logs what fails and goes on.
            with contextlib.suppress(Exception):
                each()
        took = time.monotonic() - began
        done += 1
        print(json.dumps({"took_s": took, "cpu_s": time.process_time() - cpu}), flush=True)
        if not sweeps or done < sweeps:
            time.sleep(max(0.0, period_s - took))


if __name__ == "__main__":
    main()
