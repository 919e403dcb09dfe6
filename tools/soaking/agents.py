"""Launchers that somebody has to start again when they end: PyTorch's torchrun on each host, and Open MPI's mpirun."""
import os
import shutil
import signal
import subprocess
import time

from soaking import hosts
from soaking.case import field, processes, wait_until
from soaking.hosts_case import ELASTIC, SLOTS, HostsCase

PAUSE = 2  # seconds until one that ended is started again
LEAVING = 35  # seconds that torchrun and mpirun take at most to end ranks that are told to leave


def missing_torchrun():
    return hosts.missing() or ("" if shutil.which("torchrun") else "no torchrun on PATH (PyPI: torch)")


def missing_mpirun():
    return hosts.missing() or ("" if shutil.which("mpirun") else "no mpirun (Debian: openmpi-bin)")


class Agents:
    """As a process that is a run's supervisor: some, each started again when it ends, as a service manager does it."""

    def __init__(self, commands, output):
        """Of each what is to be started, or None while its host is down."""
        self.commands, self.output = commands, output
        self.running, self.ended, self.leaving, self.returncode, self.pid = {}, {}, False, None, -1
        self.poll()

    def poll(self):
        for k, command in enumerate(self.commands):
            process = self.running.get(k)
            if process is not None and process.poll() is not None:
                del self.running[k]
                self.ended[k] = time.monotonic()
            if k in self.running or self.leaving or time.monotonic() - self.ended.get(k, 0) < PAUSE:
                continue
            if (words := command()) is not None:
                with open(self.output, "a", encoding="utf-8") as output:
                    self.running[k] = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
        if self.leaving and not self.running:
            self.returncode = 143
        return self.returncode

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number):
        """To what nsenter started within a host, where it is that."""
        self.leaving = True
        outside = {str(p.pid) for p in self.running.values()}
        inside = {p: field(p, 1) for p in processes() if field(p, 1) in outside and b"nsenter" in name(field(p, 1))}
        for process in [*inside, *(int(p) for p in outside - set(inside.values()))]:
            os.kill(process, number)

    def wait(self, seconds=LEAVING):
        wait_until(lambda: self.poll() is not None, seconds)


def name(process):
    with open(f"/proc/{process}/comm", "rb") as file:
        return file.read()


class AgentsCase(HostsCase):
    # They hear of a host that is lost late.
    patience = 240
    leaving = LEAVING

    def cannot(self):
        """What one agent is told the others do not know, and mpirun does not wait; both have this host's clock."""
        return super().cannot() | {"supervisor", "leave", "clock"}


class TorchrunCase(AgentsCase):
    def start(self):
        count = ELASTIC // SLOTS if self.elastic else len(self.network.hosts)
        self.supervisor = Agents([lambda k=k: self.of_host(k, count) for k in range(count)], self.output)

    def goes_on_without(self, host):
        """The others meet at the first one."""
        return host is not self.network.hosts[0]

    def has_spare_hosts(self):
        """Agents beyond those that a run has room for make PyTorch start it again and again."""
        return False

    def of_host(self, k, count):
        host = self.network.hosts[k]
        if host.init is None or host.process() is None:
            return None
        # What enters the host is outside of it: its end is told to what it started there.
        return ["nsenter", f"--target={host.process()}", "--net", "--uts", "--mount", "--pid", "--ipc", "setpriv",
                "--pdeathsig", "KILL", self.soak.options.partita, "launch", f"{self.place}/bundle", "--torchrun", "--nodes",
                str(count), "--node-rank", str(k), "--master", self.network.hosts[0].name, *self.flags()]


class MpiCase(AgentsCase):
    def goes_on_without(self, _):
        """It starts on the hosts that it was told."""
        return False

    def start(self):
        words = [*self.network.inside(), "env", f"OMPI_MCA_plm_rsh_agent={self.network.ssh()}", "OMPI_ALLOW_RUN_AS_ROOT=1",
                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", self.soak.options.partita, "launch", f"{self.place}/bundle", "--mpi",
                 "--hosts", f"{self.place}/hosts", *self.flags()]
        self.supervisor = Agents([lambda: words], self.output)
