"""A small model in one layout, trained while it is disturbed: one case of tools/soak."""
import json
import os
import re
import signal
import subprocess
import time

RECIPE = "optimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n"
MODELS = {
    "gpt": ("gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 16", ""),
    "mlp": ("mlp --layers 64,128,128,8", "loss: {kind: mse, target: target}\n"),
}
LAYOUTS = {
    "ddp": "--ranks 2 --pin data=2",
    "zero3": "--ranks 2 --like zero3",
    "tensor": "--ranks 2 --pin tensor=2",
    "pipeline": "--ranks 2 --pin pipeline=2 --pin micro_batch=2",
    "mixed": "--ranks 4 --pin pipeline=2 --pin data=2 --pin micro_batch=2",
}
CASES = ["gpt-ddp", "gpt-zero3", "gpt-tensor", "gpt-pipeline", "gpt-mixed", "mlp-ddp", "mlp-zero3", "mlp-mixed"]
FAULTS = {"kill": 6, "stop": 2, "supervisor": 2, "leave": 1, "full": 1, "corrupt": 1}  # how often each
CAUSES = {"kill": "was killed by signal 9", "stop": "is stopped or hangs|was stopped|did not come", "full": "was killed by signal 9"}
TIMEOUT = 5     # seconds, of a step, a collective and a checkpoint
PATIENCE = 60   # seconds without a step: a hang
CHECKPOINTS = 4 # steps from one checkpoint to the next
DISK = 64       # MB, of a disk that can be full


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def field(process, name):
    """Of /proc/N/stat, by number from the state on; None where there is no such process."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[name]
    except OSError:
        return None


def lives(process):
    return field(process, 0) not in (None, "Z", "X")


def environment(process):
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            return dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
    except OSError:
        return {}


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def checkpoints(folder):
    """Steps of the complete checkpoints, rising."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(n[5:]) for n in names if n.startswith("step-") and os.path.exists(f"{folder}/{n}/manifest.json"))


def tensors(checkpoint):
    with open(f"{checkpoint}/manifest.json", encoding="utf-8") as file:
        return json.load(file)["manifest"]["tensors"]


class Case:
    batch, recipe, every, most_lost, patience, causes = 8, "", CHECKPOINTS, CHECKPOINTS, PATIENCE, CAUSES
    leaving = 2  # seconds after their supervisor's end in which ranks have to be gone

    def __init__(self, soak, name):
        self.soak, self.name = soak, name
        self.place = f"{soak.place}/{name}"
        self.folder, self.metrics, self.output = f"{self.place}/disk/ckpt", f"{self.place}/metrics.jsonl", f"{self.place}/output"
        os.makedirs(f"{self.place}/disk")
        self.mounted = soak.can_mount and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "soak", f"{self.place}/disk"], check=False).returncode == 0
        self.layout = LAYOUTS.get(name.split("-")[1])
        self.losses, self.read, self.last, self.done = {}, 0, -1, 0
        self.jumps = []  # each time that steps were taken again: how many
        self.supervisor = None

    def partita(self, *words):
        subprocess.run([self.soak.options.partita, *words], check=True, stdout=subprocess.DEVNULL)

    def compile(self):
        flags, loss = MODELS[self.name.split("-")[0]]
        with open(f"{self.place}/train.yaml", "w", encoding="utf-8") as file:
            file.write(RECIPE + self.recipe + loss)
        self.partita("model", *flags.split(), "--batch", str(self.batch), "--with-weights", "--quiet", "-o", f"{self.place}/model.onnx")
        self.partita("compile", f"{self.place}/model.onnx", "--train", f"{self.place}/train.yaml", "--quiet",
                     *self.layout.split(), "-o", f"{self.place}/bundle")

    def cannot(self):
        """Kinds of faults that it does not know."""
        return set()

    def command(self):
        return [self.soak.options.partita, "run", f"{self.place}/bundle", "--processes"]

    def flags(self):
        return ["--threads", "1", "--quiet", "--steps", "100000000", "--checkpoint", self.folder,
                "--every", str(self.every), "--resume", "--metrics", self.metrics, "--max-restarts", "1000000",
                "--restarts-per-hour", "1000000",
                *(word for phase in ("collective", "step", "checkpoint") for word in ("--timeout", f"{phase}={TIMEOUT}"))]

    def start(self):
        command = [*self.command(), *self.flags()]
        with open(self.output, "a", encoding="utf-8") as output:
            self.supervisor = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True,
                                               cwd=self.place)

    def ranks(self):
        """Of this supervisor, its processes by rank."""
        own = [p for p in processes() if field(p, 1) == str(self.supervisor.pid)]
        named = {int(environment(p).get(b"RANK", -1)): p for p in own}
        return {rank: p for rank, p in named.items() if rank >= 0}

    def steps(self):
        """Reads the metrics on: how many steps are done. A step that is taken again has to have the same numbers."""
        try:
            with open(self.metrics, encoding="utf-8") as file:
                file.seek(self.read)
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self.read = file.tell()
                    try:
                        step = json.loads(line)
                    except json.JSONDecodeError:  # cut by a kill, and gone on with
                        continue
                    if self.losses.setdefault(step["step"], step["loss"]) != step["loss"]:
                        self.wrong("numbers", f"step {step['step']}: {self.losses[step['step']]}, then {step['loss']}")
                    if step["step"] <= self.last:
                        self.jumps.append(self.done - step["step"])
                    self.last = step["step"]
                    self.done = max(self.done, self.last + 1)
        except FileNotFoundError:
            pass
        return self.done

    def wrong(self, what, text):
        self.soak.wrong(what, f"{self.name}: {text}")

    def said(self, since):
        with open(self.output, "rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")

    def saved(self):
        """The last step whose states are saved."""
        return (checkpoints(self.folder) or [-1])[-1]

    def advance(self, steps):
        """Until so many more are done, and a checkpoint more is there."""
        begin, had = self.steps(), self.saved()
        if not wait_until(lambda: self.supervisor.poll() is not None or
                          (self.steps() >= begin + steps and self.saved() > had), self.patience):
            self.wrong("hangs", f"no {steps} steps in {self.patience} s\n{self.said(0)[-3000:]}")
            self.end()
            self.start()
            return False
        if self.supervisor.poll() is not None:
            self.wrong("ends", f"the run ended with code {self.supervisor.returncode}\n{self.said(0)[-3000:]}")
            self.start()
            return False
        return True

    def end(self):
        """Of all processes, whose number has to be none a moment after their supervisor is gone."""
        ranks = self.ranks()
        self.supervisor.kill()
        self.supervisor.wait()
        if not self.ranks_leave(ranks):
            self.wrong("orphans", f"ranks outlive their supervisor: {list(filter(lives, ranks.values()))}")
            for process in filter(lives, ranks.values()):
                os.kill(process, signal.SIGKILL)

    def ranks_leave(self, ranks):
        return wait_until(lambda: not any(map(lives, ranks.values())), self.leaving)

    def lost(self, fault):
        done, newest = self.steps(), max(0, self.saved())
        self.soak.lost.append(done - newest)
        if done - newest > self.most_lost:
            self.wrong("lost", f"{fault}: {done} steps were done, the newest checkpoint is of {newest}")

    def fault(self, kind):
        if not self.advance(1):
            return
        time.sleep(self.soak.draw.uniform(0, 0.5))
        begin = os.path.getsize(self.output)
        ranks = self.ranks()
        if not ranks:
            return
        victim = self.soak.draw.choice(sorted(ranks))
        self.soak.count(kind)
        if kind == "full":
            filler = f"{self.place}/disk/filler"
            with open(filler, "wb") as file:
                try:
                    while True:
                        file.write(bytes(1 << 16))
                        file.flush()
                except OSError:
                    pass
            have = self.steps()
            if not wait_until(lambda: self.steps() > have + 3 * self.every, self.patience):
                self.wrong("hangs", "no steps while the disk is full\n" + self.said(begin)[-2000:])
        if kind in ("kill", "full", "stop"):
            os.kill(ranks[victim], signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
            self.cause(kind, victim, begin)
        elif kind == "leave":
            self.supervisor.send_signal(signal.SIGTERM)
            if not wait_until(lambda: self.supervisor.poll() is not None, self.patience) or self.supervisor.returncode != 143:
                self.wrong("ends", f"SIGTERM: code {self.supervisor.poll()}\n" + self.said(begin)[-2000:])
                self.end()
            if checkpoints(self.folder)[-1] != self.last_done():
                self.wrong("lost", f"leave: {self.last_done()} steps were done, the newest checkpoint is of {checkpoints(self.folder)[-1]}")
            self.start()
        else:
            self.end()
            if kind == "supervisor":
                self.lost(kind)
            else:
                self.corrupt()
            self.start()
        if kind == "full":
            os.remove(filler)

    def last_done(self):
        self.steps()
        return self.last + 1

    def cause(self, kind, victim, begin):
        if not wait_until(lambda: "root cause: " in self.said(begin) or self.supervisor.poll() is not None, TIMEOUT + 10):
            self.wrong("causes", f"{kind} of rank {victim}: none told\n{self.said(begin)[-2000:]}")
            return
        if kind != "full":
            self.lost(kind)
        told = re.findall(r"root cause: (.*)", self.said(begin))
        self.soak.told += 1
        right = rf"rank {victim} on host .*({self.causes[kind]})"
        if not any(re.match(right, t) for t in told[:1]):
            self.wrong("causes", f"{kind} of rank {victim}: {told}")

    def corrupt(self):
        path = f"{self.folder}/step-{checkpoints(self.folder)[-1]:012}/states.safetensors"
        with open(path, "r+b") as file:
            size = os.path.getsize(path)
            file.seek(self.soak.draw.randrange(size))
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0x10]))

    def finish(self):
        """Saved and left; then the same steps undisturbed."""
        wait_until(lambda: self.advance(1), 3 * self.patience)
        self.supervisor.send_signal(signal.SIGTERM)
        self.supervisor.wait(self.patience)
        last = checkpoints(self.folder)[-1]
        if left := [n for n in os.listdir(self.folder) if n.endswith(".partial")]:
            self.wrong("left", f"{left}")
        self.partita("run", f"{self.place}/bundle", "--threads", "1", "--quiet", "--steps", str(last), "--checkpoint",
                     f"{self.place}/whole")
        mine, whole = (tensors(f"{f}/step-{last:012}") for f in (self.folder, f"{self.place}/whole"))
        if mine != whole:
            names = [a["name"] for a, b in zip(mine, whole) if a != b]
            self.wrong("bits", f"after {last} steps {len(names)} of {len(whole)} states are others: {names[:5]}")
        own = f"{self.place}/bundle".encode()
        if left := [p for p in processes() if own in command_line(p) and lives(p)]:
            self.wrong("orphans", f"processes {left}")
        return last

    def close(self):
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.end()
        if self.mounted:
            subprocess.run(["umount", f"{self.place}/disk"], check=False)


def command_line(process):
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
