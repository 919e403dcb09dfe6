"""Hosts that are namespaces of this one, each with a network, a name, processes and memory of its own, joined by a bridge
and reached by ssh. Needs root, ip and sshd."""
import json
import os
import shutil
import subprocess
import time

from soaking import wire

TOOLS = ("ip", "nsenter", "unshare", "ssh", "ssh-keygen", "/usr/sbin/sshd")
LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"  # Debian: faketime


def missing():
    """Why there can be none here; empty where there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"no {', '.join(lacks)} (Debian: iproute2, util-linux, openssh-server)" if lacks else ""


def has_clocks():
    return os.path.exists(LIBRARY)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def replace(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


class Host:
    """Its processes have one ancestor, whose end is theirs, as that of a machine."""

    def __init__(self, network, number):
        self.network, self.name, self.address = network, f"h{number}", f"10.99.0.{number}"
        self.space, self.init = f"{network.name}-{self.name}", None
        self.clock, self.settings = f"{network.place}/{self.name}.clock", f"{network.place}/{self.name}.wire"
        ip("netns", "add", self.space)
        ends = []
        for end, (space, name) in {"a": (network.space, self.name), "b": (self.space, "eth0")}.items():
            made = f"s{os.getpid()}{end}{number}"
            ends.append(wire.open_tap(made))
            ip("link", "set", made, "netns", space)
            ip("-n", space, "link", "set", made, "name", name, "mtu", "9000")
        self.disturb()
        self.wire = wire.start(ends, self.settings)
        for end in ends:
            os.close(end)
        ip("-n", network.space, "link", "set", self.name, "master", "bridge")
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            ip("-n", self.space, "link", "set", link, "up")
        self.set_clock(0)

    def set_clock(self, seconds):
        replace(self.clock, f"{seconds:+d}\n")

    def up(self):
        place = self.network.place
        start = f"hostname {self.name} && mount -t proc proc /proc && mount -t tmpfs memory /dev/shm && " \
                f"mount -t tmpfs run /run && mkdir /run/sshd && mount --bind {place}/names /etc/hosts && " \
                f"exec {self.network.service(self)}"
        self.init = subprocess.Popen(["ip", "netns", "exec", self.space, "unshare", "--uts", "--mount", "--pid", "--ipc",
                                      "--fork", "--kill-child", "sh", "-c", start], start_new_session=True)
        self.plug(True)

    def sshd(self):
        settings = f"{self.network.place}/{self.name}.sshd"
        clock = f"SetEnv LD_PRELOAD={LIBRARY} FAKETIME_TIMESTAMP_FILE={self.clock} FAKETIME_CACHE_DURATION=1 " \
                "FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DONT_RESET=1\n" if has_clocks() else ""
        with open(settings, "w", encoding="utf-8") as file:
            file.write(f"ListenAddress {self.address}\nHostKey {self.network.place}/host_key\nPidFile none\nUsePAM no\n"
                       f"PermitRootLogin yes\nAuthorizedKeysFile {self.network.place}/user_key.pub\nStrictModes no\n"
                       f"MaxStartups 100\n{clock}")
        return f"/usr/sbin/sshd -D -E {settings}.log -f {settings}"

    def process(self):
        """Its first process, by the number that it has outside; None where it is only about to be."""
        with open(f"/proc/{self.init.pid}/task/{self.init.pid}/children", encoding="utf-8") as file:
            children = file.read().split()
        return int(children[0]) if children else None

    def plug(self, there):
        ip("-n", self.network.space, "link", "set", self.name, "up" if there else "down")

    def disturb(self, **how):
        """What it sends and receives (wire.GOOD names the ways); with no word: no longer."""
        replace(self.settings, json.dumps({**wire.GOOD, **how}))

    def down(self):
        """As when its power fails: nobody hears of it."""
        self.plug(False)
        if self.init is not None:
            self.init.kill()
            self.init.wait()
            self.init = None

    def remove(self):
        self.down()
        self.wire.stdin.close()
        self.wire.wait()
        subprocess.run(["ip", "netns", "del", self.space], check=False)


class Network:
    def __init__(self, place, count):
        self.place, self.name = place, f"soak{os.getpid()}"
        os.makedirs(place, exist_ok=True)
        self.space, self.hosts = f"{self.name}-switch", []
        for key in ("host_key", "user_key"):
            if not os.path.exists(f"{place}/{key}"):
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{place}/{key}"], check=True)
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.space, "addr", "add", "10.99.0.254/24", "dev", "bridge")
        for link in ("lo", "bridge"):
            ip("-n", self.space, "link", "set", link, "up")
        try:
            self.open(count)
        except BaseException:
            self.close()
            raise

    def open(self, count):
        place = self.place
        for k in range(count):
            self.hosts.append(Host(self, k + 1))
        with open(f"{place}/names", "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n10.99.0.254 head\n")
            for host in self.hosts:
                file.write(f"{host.address} {host.name}\n")
        with open(f"{place}/ssh_config", "w", encoding="utf-8") as file:
            for host in self.hosts:
                file.write(f"Host {host.name}\n  HostName {host.address}\n")
            file.write(f"Host *\n  User root\n  IdentityFile {place}/user_key\n  StrictHostKeyChecking no\n"
                       "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n  BatchMode yes\n  ConnectTimeout 3\n"
                       "  ServerAliveInterval 2\n  ServerAliveCountMax 3\n")
        for host in self.hosts:
            host.up()
        self.wait_for_all()

    def wait_for_all(self):
        for host in self.hosts:
            self.wait_for(host)

    def service(self, host):
        """The command that is a host's first process."""
        return host.sshd()

    def ssh(self):
        return f"ssh -T -F {self.place}/ssh_config"

    def inside(self):
        """What a command begins with that is to reach the hosts."""
        return ["nsenter", f"--net=/run/netns/{self.space}"]

    def wait_for(self, host, seconds=20):
        end = time.monotonic() + seconds
        while subprocess.run([*self.inside(), *self.ssh().split(), host.name, "true"], check=False,
                             stderr=subprocess.DEVNULL).returncode != 0:
            if time.monotonic() > end:
                raise RuntimeError(f"{host.name} does not answer ssh")
            time.sleep(0.1)

    def close(self):
        for host in self.hosts:
            host.remove()
        subprocess.run(["ip", "netns", "del", self.space], check=False)
