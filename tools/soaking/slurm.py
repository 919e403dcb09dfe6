"""Slurm on the hosts of soaking.hosts: its controller beside the switch, its daemon as each host's first process."""
import os
import re
import shutil
import subprocess

from soaking import hosts
from soaking.case import wait_until
from soaking.hosts_case import ELASTIC, SLOTS, HostsCase

SETTINGS = """ClusterName=soak
SlurmctldHost=head(10.99.0.254)
AuthType=auth/none
AuthInfo=cred_expire=15
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
ReturnToService=2
SlurmdTimeout=20
KillWait=10
MessageTimeout=5
SlurmdParameters=config_overrides
"""


def missing():
    return hosts.missing() or ("" if shutil.which("slurmctld") else "no slurmctld (Debian: slurm-wlm)")


class SlurmNetwork(hosts.Network):
    def service(self, host):
        return f"slurmd -D -N {host.name} -f {self.place}/slurm.conf"

    def wait_for_all(self):
        with open(f"{self.place}/slurm.conf", "w", encoding="utf-8") as file:
            file.write(SETTINGS.format(place=self.place))
            for host in self.hosts:
                file.write(f"NodeName={host.name} NodeAddr={host.address} CPUs={SLOTS}\n")
            file.write("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
        with open(f"{self.place}/cgroup.conf", "w", encoding="utf-8") as file:
            file.write("CgroupPlugin=cgroup/v1\n")
        for name in ["state", *(f"spool-{host.name}" for host in self.hosts)]:
            os.makedirs(f"{self.place}/{name}", exist_ok=True)
        start = f"hostname head && mount --bind {self.place}/names /etc/hosts && " \
                f"exec slurmctld -D -f {self.place}/slurm.conf"
        self.controller = subprocess.Popen([*self.inside(), "unshare", "--uts", "--mount", "sh", "-c", start],
                                           start_new_session=True)
        for host in self.hosts:
            host.down()  # whose daemon found no settings
            host.up()
            self.wait_for(host)

    def ask(self, *words):
        return subprocess.run([*self.inside(), *words], check=False, capture_output=True, text=True,
                              env={**os.environ, "SLURM_CONF": f"{self.place}/slurm.conf"}).stdout.strip()

    def wait_for(self, host, seconds=20):
        if not wait_until(lambda: self.ask("sinfo", "-h", "-n", host.name, "-o", "%T") in ("idle", "mixed", "allocated"), seconds):
            raise RuntimeError(f"Slurm does not have {host.name}: see {self.place}/slurmctld.log")

    def close(self):
        if getattr(self, "controller", None) is not None:
            self.controller.kill()
            self.controller.wait()
        super().close()


class Job:
    """As a process that is a run's supervisor."""

    def __init__(self, network, number):
        self.network, self.number, self.returncode, self.pid = network, number, None, -1

    def poll(self):
        said = self.network.ask("scontrol", "-o", "show", "job", self.number)
        state = re.search(r"JobState=(\S+)", said)
        if state and state[1] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
            self.returncode = int(re.search(r"ExitCode=(\d+)", said)[1])
        return self.returncode

    def kill(self):
        self.network.ask("scancel", self.number)

    def send_signal(self, _):
        """As at the end of its time: the ranks save and leave, and it is queued again; then it is taken away."""
        self.network.ask("scancel", "--batch", "--signal=USR1", self.number)
        wait_until(lambda: self.network.ask("squeue", "-h", "-j", self.number, "-o", "%T") != "RUNNING", 60)
        self.kill()

    def wait(self, seconds=20):
        wait_until(lambda: self.poll() is not None, seconds)


class SlurmCase(HostsCase):
    # A lost host's job waits twice before it is started again.
    patience = 240

    def cannot(self):
        """Slurm is its supervisor, and what it starts has this host's clock."""
        return super().cannot() | {"supervisor", "leave", "clock"}

    def make_network(self, count):
        return SlurmNetwork(f"{self.place}/network", count)

    def start(self):
        count = ELASTIC // SLOTS if self.elastic else len(self.network.hosts)
        command = [*self.network.inside(), self.soak.options.partita, "launch", f"{self.place}/bundle", "--slurm", "--nodes",
                   str(count), f"--slurm-option=--output={self.output}", *self.flags()]
        done = subprocess.run(command, cwd=self.place, check=True, capture_output=True, text=True,
                              env={**os.environ, "SLURM_CONF": f"{self.network.place}/slurm.conf"})
        open(self.output, "a", encoding="utf-8").close()
        self.supervisor = Job(self.network, re.search(r"Submitted batch job (\d+)", done.stdout)[1])
