"""A case of tools/soak whose ranks are on several hosts, started by `partita launch --hosts`."""
import os
import re
import signal
import time

from soaking import hosts
from soaking.case import CHECKPOINTS, TIMEOUT, Case, command_line, environment, lives, processes, wait_until

SLOTS = 2        # ranks of a host
ELASTIC = 4      # ranks of that case
MIRROR = 4       # steps from one copy in another host's memory to the next
SAVING = 30      # seconds in which ranks have left that are told to
ASKED = 60       # seconds from one question to the hosts that are missing to the next
FAULTS = {"kill": 5, "stop": 2, "supervisor": 2, "leave": 1, "full": 1, "corrupt": 1, "link": 4, "lossy": 3, "host": 4,
          "clock": 2}


def cases(count):
    """Names, and what they are compiled with: `elastic` goes on without a host."""
    ranks = SLOTS * count
    layouts = {
        "ddp": f"--ranks {ranks} --pin data={ranks}",
        "zero3": f"--ranks {ranks} --like zero3",
        "mixed": f"--ranks {ranks} --pin pipeline=2 --pin data={count} --pin micro_batch=2",
        "mirror": f"--ranks {ranks} --like zero1",
        "elastic": f"--ranks {ELASTIC} --like zero1 --also 2",
    }
    names = ["mlp-ddp", "gpt-mixed", "mlp-mirror", "mlp-elastic", "gpt-zero3"]
    return {name: layouts[name.split("-")[1]] for name in names}


class HostsCase(Case):
    patience = 150
    # They are told to save and leave, and the hosts' shells end what does not.
    leaving = SAVING
    # Nobody that sees the rank's end is there but ranks.
    causes = {"full": "ended without a word|was killed|did not come|died"}
    def __init__(self, soak, name):
        super().__init__(soak, name)
        self.layout = cases(soak.options.hosts)[name]
        self.elastic, self.mirrors = name.endswith("elastic"), name.endswith("mirror")
        self.recipe = "reproducible: 4\n" if self.elastic else ""
        self.batch = 16 if self.elastic else 24
        # A mirrored run is to live on what is in memory.
        self.every = 1000 if self.mirrors else CHECKPOINTS
        self.most_lost = 3 * MIRROR if self.mirrors else self.every
        self.network = self.make_network(soak.options.hosts)
        with open(f"{self.place}/hosts", "w", encoding="utf-8") as file:
            for host in self.network.hosts:
                file.write(f"{host.name} slots={SLOTS} address={host.address}\n")

    def make_network(self, count):
        return hosts.Network(f"{self.place}/network", count)

    def saved(self):
        return self.steps() // (3 * MIRROR) if self.mirrors else super().saved()

    def lost(self, fault):
        if not self.mirrors:
            super().lost(fault)

    def cannot(self):
        without_clocks = set() if hosts.has_clocks() else {"clock"}
        # It has next to no checkpoints.
        return without_clocks | ({"full", "corrupt", "leave"} if self.mirrors else set())

    def command(self):
        return [*self.network.inside(), self.soak.options.partita, "launch", f"{self.place}/bundle", "--hosts",
                f"{self.place}/hosts", "--ssh", self.network.ssh()]

    def flags(self):
        return [*super().flags(), *(["--mirror", str(MIRROR)] if self.mirrors else [])]

    def ranks(self):
        rank = f"{self.place}/bundle/rank".encode()
        own = [p for p in processes() if command_line(p).split(b"\0")[0] == rank and lives(p)]
        said = {p: environment(p) for p in own}
        names = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK")
        return {int(next((e[name] for name in names if name in e), -1)): p for p, e in said.items()}

    def host_of(self, rank):
        """By what its process sees as its network."""
        seen = os.readlink(f"/proc/{self.ranks()[rank]}/ns/net")
        return next(h for h in self.network.hosts if os.readlink(f"/proc/{h.init.pid}/ns/net") == seen)

    def fault(self, kind):
        if kind not in ("kill", "stop", "link", "lossy", "host", "clock"):
            return super().fault(kind)
        if not self.advance(1):
            return None
        time.sleep(self.soak.draw.uniform(0, 0.5))
        begin, ranks = os.path.getsize(self.output), self.ranks()
        if not ranks:
            return None
        victim = self.soak.draw.choice(sorted(ranks))
        host = self.host_of(victim)
        its = sorted(r for r in ranks if self.host_of(r) == host)
        self.soak.count(kind)
        self.steps()
        self.running = set(ranks.values())
        self.before = len(self.jumps)
        return getattr(self, f"do_{kind}")(victim, host, its, begin)

    def do_kill(self, victim, _, its, begin):
        os.kill(self.ranks()[victim], signal.SIGKILL)
        self.goes_on("kill", [victim], begin, must_start_again=True)

    def do_stop(self, victim, _, its, begin):
        os.kill(self.ranks()[victim], signal.SIGSTOP)
        self.goes_on("stop", [victim], begin, must_start_again=True)

    def do_link(self, _, host, its, begin):
        away = self.soak.draw.choice([1, 2, TIMEOUT + 3, TIMEOUT + 8])
        host.plug(False)
        time.sleep(away)
        host.plug(True)
        self.goes_on(f"link away for {away} s", its, begin)

    def do_lossy(self, _, host, its, begin):
        how = {"loss": self.soak.draw.uniform(0, 0.15), "delay": self.soak.draw.uniform(0, 0.01),
               "corrupt": self.soak.draw.uniform(0, 0.05)}
        host.disturb(**how)
        time.sleep(self.soak.draw.uniform(3, 8))
        host.disturb()
        self.goes_on("lossy", None, begin)

    def do_host(self, _, host, its, begin):
        host.down()
        if self.elastic and self.goes_on_without(host):
            self.shrinks_and_grows(host, its, begin)
            return
        time.sleep(self.soak.draw.uniform(2, 12))
        host.up()
        self.goes_on("host", its, begin, must_start_again=True)

    def goes_on_without(self, _):
        """An elastic run, until that host is back."""
        return True

    def has_spare_hosts(self):
        return len(self.network.hosts) * SLOTS >= ELASTIC + SLOTS

    def do_clock(self, _, host, its, begin):
        host.set_clock(self.soak.draw.choice([3600, -3600, 86400 * 365, -40]))
        time.sleep(2)  # until it is looked at
        if self.steps_follow("clock") and "root cause" in self.said(begin):
            self.wrong("ends", f"a clock that was set ended the run\n{self.said(begin)[-2000:]}")

    def shrinks_and_grows(self, host, its, begin):
        self.goes_on("host", its, begin, must_start_again=True)
        before = len(self.ranks())
        host.up()
        if self.has_spare_hosts():
            return
        if before != 2:
            self.wrong("ends", f"{before} ranks without a host, and a plan for 2\n{self.said(begin)[-2000:]}")
        if not wait_until(lambda: self.supervisor.poll() is None and len(self.ranks()) == ELASTIC, ASKED + self.patience):
            self.wrong("hangs", f"the host is back, and the run has not grown\n{self.said(begin)[-2000:]}")
        self.steps_follow("a host that is back")

    def steps_follow(self, what):
        have = self.steps()
        if wait_until(lambda: self.supervisor.poll() is not None or self.steps() > have + 2, self.patience):
            return self.supervisor.poll() is None or self.wrong("ends", f"{what}: code {self.supervisor.returncode}\n"
                                                                        f"{self.said(0)[-3000:]}")
        return self.wrong("hangs", f"{what}: no steps in {self.patience} s\n{self.said(0)[-3000:]}")

    def goes_on(self, kind, blamed, begin, must_start_again=False):
        """Until new steps are done: by a run that was started again, where it has to be, from where it has to."""
        have, since = self.steps(), time.monotonic()
        def there():
            if self.supervisor.poll() is not None:
                return True
            ranks = set(self.ranks().values()) if must_start_again else set()
            return self.steps() > have + 2 and (not must_start_again or (ranks and self.running.isdisjoint(ranks)))
        if not wait_until(there, self.patience) or self.supervisor.poll() is not None:
            self.wrong("hangs", f"{kind}: no further steps, code {self.supervisor.poll()}\n{self.said(begin)[-3000:]}")
            self.end()
            self.start()
            return
        self.soak.recoveries.append((kind, time.monotonic() - since))
        if must_start_again:  # what mpirun passes on comes later than the steps
            wait_until(lambda: "the last start, " in self.said(begin), TIMEOUT)
        for lost in self.jumps[self.before:]:
            self.soak.lost.append(lost)
            if lost > self.most_lost:
                self.wrong("lost", f"{kind}: {lost} steps were taken again")
        if self.soak.options.verbose:
            print(f"--- {self.name}: {kind} of {blamed}\n{self.said(begin)}", flush=True)
        told = self.causes_told(begin)
        if blamed is None or not (told or must_start_again):
            return
        self.soak.told += 1
        # Each side of a wire that is cut sees the other one gone.
        if not any(self.names(blamed, t) for t in told):
            self.wrong("causes", f"{kind} of {blamed}: {told}\n{self.said(begin)[-3000:]}")

    def causes_told(self, begin):
        """What the next start says of the one that ended; before that, what each host's ranks saw."""
        said = self.said(begin)
        return re.findall(r"the last start, .*root cause: (.*)", said)[:1] or re.findall(r"root cause: (.*)", said)

    @staticmethod
    def names(blamed, told):
        """As what is to blame, which comes before where it was."""
        return any(re.match(rf"[^;:]*\branks? ([0-9]+, )*{r}\b", told) for r in blamed)

    def cause(self, kind, victim, begin):
        wait_until(lambda: "the last start, " in self.said(begin) or self.supervisor.poll() is not None, self.patience)
        told = self.causes_told(begin)
        self.soak.told += 1
        if not any(self.names([victim], t) and re.search(self.causes[kind], t) for t in told):
            self.wrong("causes", f"{kind} of rank {victim}: {told}\n{self.said(begin)[-2000:]}")

    def close(self):
        super().close()
        self.network.close()
