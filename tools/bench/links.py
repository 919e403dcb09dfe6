"""What steps wait for other ranks over two levels of links, measured and foretold: see `links --help`."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

NODES, RANKS_OF_A_NODE = 2, 2
RECIPE = "optimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 4}\ndata: {kind: synthetic}\n"
CLUSTER = f"nodes: {NODES}\ndevices_per_node: {RANKS_OF_A_NODE}\ndevice: cpu\nlinks: [{{kind: measured-node, group: {RANKS_OF_A_NODE}}}, {{kind: measured-network}}]\n"
# Small steps of compute, much to exchange.
MODEL = "gpt --layers 4 --hidden 256 --heads 4 --seq 32 --vocab 1024"
# Layouts, and which of them differ in levels alone.
LAYOUTS = {
    "ddp": "data=4 zero=0 hierarchical_group=1",
    "ddp in levels": "data=4 zero=0 hierarchical_group=2",
    "zero1": "data=4 zero=1 hierarchical_group=1",
    "zero1 in levels": "data=4 zero=1 hierarchical_group=2",
    "zero3": "data=4 zero=3 hierarchical_group=1",
    "zero3 in levels": "data=4 zero=3 hierarchical_group=2",
    "tensor in nodes": "data=2 tensor=2 zero=0",
    "pipeline": "data=2 pipeline=2 zero=0",
}
WAITED = ("gradients", "gathers", "tensor", "context", "expert", "statistics", "send", "tied", "bubble")  # parts of a predicted step


class Wire:
    """Two network namespaces, each with the ranks of a node, whose wire carries so many bits a second."""

    def __init__(self, rate, delay):
        self.spaces = [f"links{os.getpid()}n{k}" for k in range(NODES)]
        try:
            for space in self.spaces:
                run("ip", "netns", "add", space)
            run("ip", "link", "add", "eth0", "netns", self.spaces[0], "type", "veth", "peer", "name", "eth0", "netns", self.spaces[1])
            for k, space in enumerate(self.spaces):
                run("ip", "-n", space, "addr", "add", f"10.97.0.{k + 1}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    run("ip", "-n", space, "link", "set", link, "up")
                # BBR, where it is the host's, leaves a fifth of the wire idle to collectives that take turns.
                run("ip", "-n", space, "route", "replace", "10.97.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", f"10.97.0.{k + 1}", "congctl", "cubic")
                # A small bucket: what it holds goes at the speed of memory.
                run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "tbf", "rate", f"{rate}mbit", "burst", "8kb", "latency", "200ms")
                if delay:
                    run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "parent", "1:1", "netem", "delay", f"{delay}ms")
        except BaseException:
            self.close()
            raise

    def job(self, folder, *command):
        """Runs the command on each rank; what rank 0 printed."""
        world, ranks = NODES * RANKS_OF_A_NODE, []
        for rank in range(world):
            environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank % RANKS_OF_A_NODE), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(RANKS_OF_A_NODE),
                           "MASTER_ADDR": "10.97.0.1", "MASTER_PORT": "29517", "PARTITA_JOB_SECRET": "7" * 64}
            with open(f"{folder}/rank{rank}.txt", "w", encoding="utf-8") as said:
                ranks.append(subprocess.Popen(["ip", "netns", "exec", self.spaces[rank // RANKS_OF_A_NODE], *command], env=environment, stdout=said, stderr=said))
        codes = [rank.wait() for rank in ranks]
        for rank, code in enumerate(codes):
            if code:
                sys.exit(f"links: rank {rank} of {' '.join(command)} left with {code}:\n" + open(f"{folder}/rank{rank}.txt", encoding="utf-8").read()[-2000:])
        return open(f"{folder}/rank0.txt", encoding="utf-8").read()

    def close(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"links: {' '.join(command)} left with {done.returncode}:\n{done.stderr.strip()[-2000:]}")


def prepare(args, folder, name, pins):
    """The plan with these pins, compiled into a bundle beside it."""
    at = f"{folder}/{name.replace(' ', '_')}"
    os.makedirs(at)
    common = (f"{folder}/model.onnx", "--train", f"{folder}/train.yaml", "--quiet")
    run(args.partita, "plan", *common, "--cluster", f"{folder}/cluster.yaml", "--profiles", f"{folder}/links.yaml", *(f"--pin={pin}" for pin in pins.split()), "-o", f"{at}/plan.json")
    run(args.partita, "compile", *common, "--plan", f"{at}/plan.json", "-o", f"{at}/bundle")
    return at


def waits(wire, at, steps):
    """Of each step but the first what rank 0 waited for others, in all and by axes of the mesh."""
    metrics = f"{at}/metrics.jsonl"
    if os.path.exists(metrics):
        os.remove(metrics)
    wire.job(at, f"{at}/bundle/rank", "--steps", str(steps + 1), "--threads", "1", "--quiet", "--metrics", metrics)
    lines = [json.loads(line) for line in open(metrics, encoding="utf-8")][1:]
    return [line["communication_stall_seconds"] for line in lines], [line["seconds"] for line in lines]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(prog="links", description=f"Joins two namespaces of {RANKS_OF_A_NODE} ranks by a wire of --rate, has `doctor --links` measure what joins them, plans layouts for that, trains "
                                     "them in turns, and prints what a step waits for other ranks beside what the plan says. Needs root, ip and tc.")
    parser.add_argument("--partita", default=f"{here}/../../build/release/tools/partita")
    parser.add_argument("--only", default=",".join(LAYOUTS), help="%(default)s")
    parser.add_argument("--rate", type=float, default=50, help="Mbit/s between the nodes (%(default)s)")
    parser.add_argument("--delay", type=float, default=0, help="ms that the wire takes (netem, where the kernel has it)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="of each layout in a round, after one that does not count")
    parser.add_argument("--output", help="JSON to write")
    parser.add_argument("--more", action="store_true", help="by the links that --output has already, whose rows are kept: layouts can be run a few at a time")
    args = parser.parse_args()
    lacks = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacks or os.geteuid() != 0:
        sys.exit(f"links: expected root, ip and tc (Debian: iproute2){', found no ' + ' and '.join(lacks) if lacks else ''}")
    args.partita = os.path.abspath(args.partita)
    names = args.only.split(",")
    before = json.load(open(args.output, encoding="utf-8")) if args.more else {"rows": {}}
    with tempfile.TemporaryDirectory() as folder:
        run(args.partita, "model", *MODEL.split(), "--with-weights", "--quiet", "-o", f"{folder}/model.onnx")
        open(f"{folder}/train.yaml", "w", encoding="utf-8").write(RECIPE)
        open(f"{folder}/cluster.yaml", "w", encoding="utf-8").write(CLUSTER)
        wire = Wire(args.rate, args.delay)
        try:
            if args.more:
                open(f"{folder}/links.yaml", "w", encoding="utf-8").write(before["links"])
            else:
                said = wire.job(folder, args.partita, "doctor", "--links", f"{folder}/links.yaml")
                print("".join(line + "\n" for line in said.splitlines() if line.startswith(("measured-", "collectives", folder))).replace(folder + "/", ""), end="", flush=True)
            links = open(f"{folder}/links.yaml", encoding="utf-8").read().replace(folder + "/", "")
            at = {name: prepare(args, folder, name, LAYOUTS[name]) for name in names}
            waited, seconds = {name: [] for name in names}, {name: [] for name in names}
            for _ in range(args.rounds):
                for name in names:
                    for kept, found in zip((waited, seconds), waits(wire, at[name], args.steps)):
                        kept[name].extend(found)
        finally:
            wire.close()
        plans = {name: json.load(open(f"{at[name]}/plan.json", encoding="utf-8")) for name in names}
    rows = before["rows"]
    for name in names:
        parts = plans[name]["predicted"]["breakdown"]
        row = rows[name] = {"plan": plans[name]["layout"], "predicted": sum(parts.get(part, 0) for part in WAITED), "least": min(waited[name]), "median": statistics.median(waited[name]),
                            "step_predicted": plans[name]["predicted"]["step_seconds"], "step_least": min(seconds[name]), "waited": waited[name]}
        print(f"{name:16} waits {row['least']:.3f} s a step at least, {row['median']:.3f} s usually; predicted {row['predicted']:.3f} s, {row['predicted'] / row['least'] - 1:+.0%} and "
              f"{row['predicted'] / row['median'] - 1:+.0%}: {row['plan']}", flush=True)
    gains = {}
    for name in rows:
        levels = f"{name} in levels"
        if levels in rows:
            gain = {what: rows[name][what] / rows[levels][what] for what in ("predicted", "least", "median")}
            gains[name] = gain
            print(f"{name}: flat over levels {gain['least']:.2f} (medians {gain['median']:.2f}), predicted {gain['predicted']:.2f}", flush=True)
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump({"load": os.getloadavg(), "cores": os.cpu_count(), "model": MODEL, "rate_mbit": args.rate, "delay_ms": args.delay, "links": links, "rows": rows, "flat_over_levels": gains}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
