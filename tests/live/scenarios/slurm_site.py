"""A site with hooks of its own keeps them working, and its backup controller runs ours as the first one does."""

from __future__ import annotations

import time

import pytest

from tests.live.cluster import Cluster
from tests.live.scenarios.crowd import agreed

MANAGERS = ("slurm",)
OWN_CLUSTER = True
HOOKS = "/usr/libexec/qtandem/slurm"

SUBMIT = f"""
local qtandem = dofile("{HOOKS}/qtandem.lua")
function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.name == "forbidden" then
    slurm.log_user("the site forbids this name")
    return slurm.ERROR
  end
  job_desc.admin_comment = "site was here"
  local qpu = qtandem.submit(job_desc, part_list, submit_uid)
  if qpu ~= slurm.SUCCESS then return qpu end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local qpu = qtandem.modify(job_desc, job_rec, part_list, modify_uid)
  if qpu ~= slurm.SUCCESS then return qpu end
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""

OWN = ("prolog", "epilog", "prolog_slurmctld", "epilog_slurmctld")
CONF = """
Prolog=/etc/slurm/site/prolog
Epilog=/etc/slurm/site/epilog
PrologSlurmctld=/etc/slurm/site/prolog_slurmctld
EpilogSlurmctld=/etc/slurm/site/epilog_slurmctld
TaskProlog=/etc/slurm/site/task_prolog
JobSubmitPlugins=lua
PrologFlags=Alloc
GresTypes=qpu
"""
PREPARE = f"""
set -e
mkdir -p /etc/slurm/site; install -d -m 1777 /var/log/site
for hook in {" ".join(OWN)}; do
  printf '#!/bin/sh\\ntouch /var/log/site/%s-$SLURM_JOB_ID\\n' $hook >/etc/slurm/site/$hook
done
printf '#!/bin/sh\\necho export SITE=yes\\n{HOOKS}/task_prolog || exit 1\\n' >/etc/slurm/site/task_prolog
echo '{HOOKS}/prolog_slurmctld || exit 1' >>/etc/slurm/site/prolog_slurmctld
chmod 755 /etc/slurm/site/*
sed -i '/^include .*qtandem.conf/d' /etc/slurm/slurm.conf
cat >>/etc/slurm/slurm.conf
echo 'include /etc/slurm/qtandem.conf' >>/etc/slurm/slurm.conf
qtandem install slurm --apply
"""


@pytest.fixture(scope="module")
def site(module_cluster: Cluster) -> Cluster:
    """The cluster with the site's own hooks, ours added by hand as the installer shows it."""
    hosts = (module_cluster.control, *module_cluster.workers)
    module_cluster.exec(module_cluster.control, ["tee", "/etc/slurm/job_submit.lua"], stdin=SUBMIT).check()
    for host in hosts:
        module_cluster.shell(host, PREPARE, stdin=CONF, timeout=120).check()
    module_cluster.shell(module_cluster.control, "scontrol reconfigure", timeout=30).check()
    return module_cluster


def _marks(cluster: Cluster, job: str) -> set[str]:
    hosts = (cluster.control, *cluster.workers)
    text = " ".join(cluster.shell(host, "ls /var/log/site").stdout for host in hosts)
    return {name.rpartition("-")[0] for name in text.split() if name.endswith(f"-{job}")}


def test_the_sites_hooks_run_beside_ours(site: Cluster, cluster: Cluster) -> None:
    for qpu in ("east", ""):
        job = cluster.submit("echo $SITE ${QRMI_JOB_QPU_RESOURCES-none}", qpu)
        assert cluster.wait_state(job, "ended", within=60).outcome == "completed", cluster.output(job)
        assert cluster.output(job).split() == ["yes", qpu or "none"]
        cluster.until(lambda job=job: _marks(cluster, job), lambda seen: seen == set(OWN), 15, "all hooks ran")
        assert "site was here" in cluster.records(job)
    agreed(cluster)


def test_the_sites_rules_hold_and_its_words_stay(site: Cluster, cluster: Cluster) -> None:
    refused = cluster.try_submit("true", "east", name="forbidden")
    assert refused.status != 0
    assert "the site forbids this name" in refused.text
    job = cluster.submit("true", "east/south")
    assert "site was here | qtandem:choices=" in cluster.records(job)
    cluster.wait_ended([job])


def test_the_doctor_finds_nothing(site: Cluster, cluster: Cluster) -> None:
    for host in (cluster.control, *cluster.workers):
        done = cluster.qtandem("doctor", "slurm", host=host, timeout=60)
        assert done.status == 0, done.text


@pytest.mark.timeout(300)
def test_the_backup_controller_runs_the_hooks(site: Cluster, cluster: Cluster) -> None:
    """The first controller is killed; c1 takes over, with the state that both share."""
    share = (
        "sed -i 's#^StateSaveLocation=.*#StateSaveLocation=/home/slurmctld#; /^SlurmctldHost=ctl/a SlurmctldHost=c1'"
        " /etc/slurm/slurm.conf; echo SlurmctldTimeout=10 >>/etc/slurm/slurm.conf"
    )
    for host in (cluster.control, *cluster.workers):
        cluster.shell(host, share).check()
    cluster.shell(cluster.control, "install -d -o slurm -g slurm /home/slurmctld").check()
    hosts = 'sed -i \'s#^service_users = .*#&\\ncontrol_hosts = ["ctl", "c1"]#\' /etc/qtandem/qtandem.toml'
    for host in (cluster.control, "c1"):
        cluster.shell(host, hosts).check()
    cluster.shell(cluster.control, "cp -a /var/lib/slurm/slurmctld/. /home/slurmctld/; cluster stop slurmctld").check()
    cluster.exec("c1", ["tee", "/etc/slurm/job_submit.lua"], stdin=SUBMIT).check()
    cluster.start("controller", cluster.control)
    cluster.shell(cluster.control, "cluster stop qtandemd; cluster start qtandemd", timeout=90).check()
    for host in cluster.workers:
        cluster.shell(host, "cluster stop slurmd; cluster start slurmd", timeout=60).check()
    cluster.shell("c1", "slurmctld -i", timeout=30).check()
    cluster.until(
        lambda: cluster.shell("c1", "scontrol ping").stdout, lambda text: text.count("UP") == 2, 40, "both up"
    )
    before = cluster.submit("sleep 20; echo $QRMI_JOB_QPU_RESOURCES", "south")
    cluster.wait_begun(before)
    time.sleep(6)
    cluster.kill("controller")
    cluster.until(
        lambda: cluster.exec("c1", ["squeue"], timeout=20).status, lambda status: status == 0, 60, "took over"
    )
    job = cluster.submit("echo $QRMI_JOB_QPU_RESOURCES", "east", host="c2", timeout=60)
    for each in (job, before):
        cluster.until(lambda each=each: cluster.job(each).state, lambda state: state == "ended", 90, f"{each} ended")
    assert (cluster.output(job), cluster.output(before)) == ("east\n", "south\n")
    cluster.wait_no_leases(40)
    cluster.start("controller", cluster.control)
    cluster.until(
        lambda: cluster.shell("c2", "scontrol ping").stdout, lambda text: text.count("UP") == 2, 40, "both up"
    )
    asked = ["timeout", "5", "squeue"]
    cluster.until(
        lambda: cluster.exec(cluster.control, asked).status, lambda status: status == 0, 60, "control is back"
    )
