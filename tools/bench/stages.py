"""Plans whose stages and blocks differ, or whose micro-batches take turns, beside the best that do not, trained for real: see `stages --help`."""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

RECIPE = "optimizer: {{kind: adamw, lr: 0.001}}\nbatch: {{global: {batch}}}\ndata: {{kind: synthetic}}\n"
CLUSTER = "nodes: {ranks}\ndevices_per_node: 1\ndevice: {{like: cpu, memory: {memory}, reserve: 0}}\nlinks: [{{kind: ethernet, bandwidth: {bandwidth}}}]\n"
MODES = ("none", "selective", "attention", "mlp", "all_but_attention", "full")


class Case:
    """A model, a cluster, and the pins of the uniform plans, of which the fastest that fits is held against the search's, which
    has the pins `searched`."""

    def __init__(self, model, batch, ranks, memory, bandwidth, uniform, searched=""):
        self.model, self.batch, self.ranks, self.memory, self.bandwidth, self.uniform = model, batch, ranks, memory, bandwidth, uniform
        self.searched = searched


CASES = {
    # Equal stages: the head, which is some blocks' work, is beside as many blocks as the first stage has.
    "sizes": Case("gpt --layers 6 --hidden 256 --heads 4 --seq 128 --vocab 16384 --no-tied", 16, 2, 8e9, 25e6, ["pipeline=1", "pipeline=2"]),
    # The same with little memory: one mode for all blocks, of which the first stage holds more micro-batches.
    "recompute": Case("gpt --layers 6 --hidden 256 --heads 4 --seq 128 --vocab 16384 --no-tied", 16, 2, 160e6, 25e6,
                      [f"recompute={mode} pipeline={stages}" for mode in MODES for stages in (1, 2)]),
    # Ranks that have all blocks: what one mode frees is too little, and what the next one costs too much.
    "blocks": Case("gpt --layers 6 --hidden 64 --heads 1 --seq 4096 --vocab 256 --no-tied", 2, 2, 55e6, 40e6, [f"recompute={mode}" for mode in MODES]),
    # Sums over a tensor axis, which travel while another micro-batch computes.
    "turns": Case("gpt --layers 2 --hidden 512 --heads 8 --seq 512 --vocab 1024 --no-tied", 8, 2, 8e9, 120e6,
                  [f"tensor=2 overlap_micro_batches=1 overlap_products=1 micro_batch={n}" for n in (1, 2, 4, 8)], "tensor=2"),
}


class Wire:
    """Hosts that are network namespaces, joined by a bridge; each sends at a rate."""

    def __init__(self, hosts, bytes_per_second):
        self.name, self.hosts = f"stages{os.getpid()}", hosts
        self.spaces = [f"{self.name}h{k}" for k in range(hosts)]
        try:
            self.ip("netns", "add", self.name)
            self.ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
            self.ip("-n", self.name, "link", "set", "bridge", "up")
            for k, space in enumerate(self.spaces):
                self.ip("netns", "add", space)
                self.ip("-n", self.name, "link", "add", f"port{k}", "type", "veth", "peer", "name", "eth0", "netns", space)
                self.ip("-n", self.name, "link", "set", f"port{k}", "master", "bridge", "up")
                self.ip("-n", space, "addr", "add", f"10.98.0.{k + 1}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    self.ip("-n", space, "link", "set", link, "up")
                self.run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{8 * bytes_per_second:.0f}bit",
                         "burst", "256kb", "latency", "200ms")
        except BaseException:
            self.close()
            raise

    def run(self, *words):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"stages: {' '.join(words)}: {done.stderr.strip()}")

    def ip(self, *words):
        self.run("ip", *words)

    def close(self):
        for space in [*self.spaces, self.name]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


class SlowCores(threading.Thread):
    """Holds each process to 1/slow of a core, stopping it when it has had its share, so that what else the machine does
    is not in its time as long as that leaves so much."""

    BURST = 0.005  # processor seconds that a process which waited may take at once

    def __init__(self, processes, slow):
        super().__init__(daemon=True)
        self.processes, self.slow, self.over = processes, slow, threading.Event()

    @staticmethod
    def used(process):
        """Processor seconds of its threads."""
        tasks = f"/proc/{process.pid}/task"
        total = 0
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def run(self):
        left = {process: 0.0 for process in self.processes}
        before = {process: 0.0 for process in self.processes}
        at = time.monotonic()
        while not self.over.wait(0.003):
            now = time.monotonic()
            for process in self.processes:
                try:
                    used = self.used(process)
                    left[process] = min(left[process] + (now - at) / self.slow, self.BURST) - (used - before[process])
                    before[process] = used
                    os.kill(process.pid, signal.SIGSTOP if left[process] < 0 else signal.SIGCONT)
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
            at = now


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: nothing fits
        sys.exit(f"stages: {' '.join(command)} left with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.returncode == 0


def plan(args, folder, name, pins):
    """The plan with these pins, as a bundle in a folder of its own; None where none fits."""
    at = f"{folder}/{name}"
    os.makedirs(at)
    if not call(args.partita, "plan", f"{folder}/model.onnx", "--train", f"{folder}/train.yaml", "--cluster", f"{folder}/cluster.yaml",
                "--quiet", "-o", f"{at}/plan.json", *(f"--pin={pin}" for pin in pins)):
        return None
    return json.load(open(f"{at}/plan.json"))


def train(folder, name, wire, steps, slow):
    """Of each step its seconds, as they are where neither cores nor wire are `slow`, and its loss; of each rank the processor
    seconds of the whole run."""
    at = f"{folder}/{name}"
    ranks = []
    for k, space in enumerate(wire.spaces):
        environment = {**os.environ, "RANK": str(k), "WORLD_SIZE": str(wire.hosts), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                       "MASTER_ADDR": "10.98.0.1", "MASTER_PORT": "23456", "PARTITA_JOB_SECRET": "5" * 64}
        metrics = ["--metrics", f"{at}/metrics.jsonl"] if k == 0 else []
        with open(f"{at}/rank{k}.txt", "w") as said:
            ranks.append(subprocess.Popen(["ip", "netns", "exec", space, f"{at}/bundle/rank", "--steps", str(steps), "--threads", "1", "--quiet", *metrics],
                                          env=environment, stdout=said, stderr=said))
    cores = SlowCores(ranks, slow)
    if slow > 1:
        cores.start()
    processor = []
    for k, rank in enumerate(ranks):
        _, status, usage = os.wait4(rank.pid, 0)
        rank.returncode = os.waitstatus_to_exitcode(status)
        processor.append(usage.ru_utime + usage.ru_stime)
    cores.over.set()
    for k, rank in enumerate(ranks):
        if rank.returncode:
            sys.exit(f"stages: rank {k} of {name} left with {rank.returncode}:\n{open(f'{at}/rank{k}.txt').read()[-2000:]}")
    lines = [line for line in map(json.loads, open(f"{at}/metrics.jsonl")) if "loss" in line]
    os.remove(f"{at}/metrics.jsonl")
    return [line["seconds"] / slow for line in lines], [line["loss"] for line in lines], processor


def measure(args, name, case, folder):
    call(args.partita, "model", *case.model.split(), "--with-weights", "-o", f"{folder}/model.onnx", "--quiet")
    open(f"{folder}/train.yaml", "w").write(RECIPE.format(batch=case.batch))
    open(f"{folder}/cluster.yaml", "w").write(CLUSTER.format(ranks=case.ranks, memory=case.memory, bandwidth=case.bandwidth))
    searched = plan(args, folder, "searched", case.searched.split())
    uniform = [(pin, found) for k, pin in enumerate(case.uniform) if (found := plan(args, folder, f"uniform{k}", pin.split()))]
    chosen = {"searched": searched}
    for pin, found in uniform:
        chosen[f"uniform{case.uniform.index(pin)}"] = found
    names = ["searched", *sorted((n for n in chosen if n != "searched"), key=lambda n: chosen[n]["predicted"]["step_seconds"])[:args.uniform]]
    for n in names:
        call(args.partita, "compile", f"{folder}/model.onnx", "--train", f"{folder}/train.yaml", "--plan", f"{folder}/{n}/plan.json", "-o", f"{folder}/{n}/bundle", "--quiet")
    runs = {n: [] for n in names}
    wire = Wire(case.ranks, case.bandwidth / args.slow)
    try:
        start = {n: train(folder, n, wire, 1, 1)[2] for n in names}
        for _ in range(args.rounds):
            for n in names:
                runs[n].append(train(folder, n, wire, args.steps + 1, args.slow))
    finally:
        wire.close()
    rows = []
    for n in names:
        steps = [t for seconds, _, _ in runs[n] for t in seconds[1:]]
        busy = statistics.median(max((all_of - first) / args.steps for all_of, first in zip(processor, start[n])) for _, _, processor in runs[n])
        rows.append({"plan": chosen[n]["layout"], "pin": chosen[n]["pin"], "predicted": chosen[n]["predicted"]["step_seconds"], "fastest": min(steps), "median": statistics.median(steps),
                     "processor": busy, "steps": [seconds[1:] for seconds, _, _ in runs[n]],
                     "loss_difference": max(abs(a - b) / abs(b) for a, b in zip(runs[n][0][1], runs["searched"][0][1]))})
    best = min(rows[1:], key=lambda row: row["fastest"])
    ratio = {what: best[what] / rows[0][what] for what in ("predicted", "fastest", "median", "processor")}
    print(f"{name}: {case.model}, batch {case.batch}, {case.ranks} ranks of one thread and {case.memory:g} bytes, {case.bandwidth:g} bytes/s a rank; {args.rounds} rounds of {args.steps} steps")
    for row in rows:
        print(f"  {row['fastest']:.3f} s the fastest step, {row['median']:.3f} s the median one, {row['processor']:.3f} s of processor time on the busiest rank (predicted {row['predicted']:.3f} s), "
              f"losses within {row['loss_difference']:.0e}: {row['plan']}")
    print("  the best uniform plan over the searched one: " + ", ".join(f"{what} {value:.3f}" for what, value in ratio.items()), flush=True)
    return {"model": case.model, "batch": case.batch, "ranks": case.ranks, "memory": case.memory, "bandwidth": case.bandwidth, "slow": args.slow, "rounds": args.rounds, "ratio": ratio, "rows": rows}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(prog="stages", description="Plans models on small clusters as the search does and uniformly (equal stages, one mode of recomputation for all blocks), trains "
                                     "the plans in turns, each rank in a network namespace that sends at the cluster's bandwidth, and prints their steps. Needs root, ip and tc. Leaves with code 1 "
                                     "where the fastest step of the best uniform plan takes less than --least of the searched one's: other programs only add to a step.")
    parser.add_argument("--partita", default=f"{here}/../../build/release/tools/partita")
    parser.add_argument("--only", default=",".join(CASES), help="%(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of each plan in a round, after one that does not count")
    parser.add_argument("--uniform", type=int, default=2, help="uniform plans that are trained: those that are predicted to be fastest (%(default)s)")
    parser.add_argument("--slow", type=float, default=1, help="hold each rank to 1/SLOW of a core, and the wire to as much of its bandwidth; seconds are divided by SLOW. For machines that have other work")
    parser.add_argument("--least", type=float, default=1.1, help="%(default)s")
    parser.add_argument("--output", help="JSON to write")
    args = parser.parse_args()
    lacks = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacks or os.geteuid() != 0:
        sys.exit(f"stages: expected root, ip and tc (Debian: iproute2){', found no ' + ' and '.join(lacks) if lacks else ''}")
    args.partita = os.path.abspath(args.partita)
    result = {"load": os.getloadavg(), "cores": os.cpu_count(), "cases": {}}
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            result["cases"][name] = measure(args, name, CASES[name], folder)
    if args.output:
        with open(args.output, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return int(any(case["ratio"]["fastest"] < args.least for case in result["cases"].values()))


if __name__ == "__main__":
    sys.exit(main())
