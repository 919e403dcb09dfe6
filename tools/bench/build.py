"""Seconds that a build takes, and how busy the machine was with other things: see `build --help`."""
import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# What tools/demo runs.
DEMO = ["partita", "partita_runner", "partita_comm_mpi"]
ROOMS = [f"{room}/all" for room in ("base", "ir", "frontend", "passes", "partitioner", "codegen", "runtime", "tools")]
SANITIZED = ["base_test", "ir_test", "runtime_test"]
# The pass that a line is added to, the programs that are made again, the tests that are run.
CHANGED, RELINKED, CONCERNED = "passes/rewrite/clean_up.cc", ["passes_test", "partita"], r"^passes\."
PARTS = {
    "dependencies": "tools/install_dependencies into an empty prefix",
    "demo": "the programs that tools/demo runs, from nothing",
    "program": "then all libraries, programs and modules",
    "tests": "then all test programs",
    "sanitized": "what tools/test runs under ASan and UBSan, from nothing",
    "change": f"one line of {CHANGED} changed: {', '.join(RELINKED)} made again, the tests of passes run",
}


def machine():
    fields = {}
    for line in open("/proc/cpuinfo"):
        if ":" in line:
            key, value = line.split(":", 1)
            fields.setdefault(key.strip(), value.strip())
    memory = int(open("/proc/meminfo").readline().split()[1]) * 1024
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    return {"cpu": fields.get("model name"), "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release(), "compiler": compiler, "commit": commit}


def busy_seconds():
    """Processor seconds that the whole machine has spent."""
    user, nice, system, _, _, irq, softirq = (int(f) for f in open("/proc/stat").readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Bench:
    def __init__(self, args):
        self.args = args
        self.environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if not args.ccache:
            self.environment["CCACHE_DISABLE"] = "1"
        self.results = []
        self.log = open(args.log, "w") if args.log else subprocess.DEVNULL

    def call(self, *command, cwd):
        done = subprocess.run(command, cwd=cwd, env=self.environment, stdout=self.log, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"build: {' '.join(command)} left with {done.returncode}: {done.stderr[-2000:]}" + ("" if self.args.log else "; --log FILE keeps what it said"))

    def ccache_counts(self):
        if not self.args.ccache:
            return None
        lines = subprocess.run(["ccache", "--print-stats"], capture_output=True, text=True).stdout.split("\n")
        counts = dict(line.split("\t") for line in lines if "\t" in line)
        return {key: int(counts[key]) for key in ("direct_cache_hit", "preprocessed_cache_hit", "cache_miss")}

    @contextlib.contextmanager
    def part(self, name, **more):
        before, busy, own, load, begin = self.ccache_counts(), busy_seconds(), own_seconds(), os.getloadavg()[0], time.monotonic()
        row = {"part": name, "what": PARTS[name], **more}
        yield row
        row["seconds"] = time.monotonic() - begin
        row["processor_seconds"] = own_seconds() - own
        row["processor_seconds_of_others"] = max(0.0, busy_seconds() - busy - row["processor_seconds"])
        row["load"] = [load, os.getloadavg()[0]]
        if before:
            row["ccache"] = {key: count - before[key] for key, count in self.ccache_counts().items()}
        self.results.append(row)
        tell(row)
        self.write()

    # After each part: a bench that is stopped has said what it measured.
    def write(self):
        if self.args.output:
            with open(self.args.output, "w") as file:
                json.dump({"machine": machine(), "jobs": self.args.jobs, "ccache": self.args.ccache, "parts": self.results}, file, indent=1)
                file.write("\n")

    def dependencies(self, prefix):
        with self.part("dependencies", includes=missing_packages()):
            self.call(f"{ROOT}/tools/install_dependencies", prefix, cwd=ROOT)
        self.environment["PARTITA_DEPS"] = prefix

    def build(self, tree, preset, targets):
        self.call("cmake", "--preset", preset, cwd=tree)
        self.call("cmake", "--build", "--preset", preset, "-j", str(self.args.jobs), "--target", *targets, cwd=tree)

    def change(self, tree):
        self.build(tree, "release", RELINKED)
        path = f"{tree}/{CHANGED}"
        text = open(path).read()
        line = "[[maybe_unused]] static const long long kMeasured = %d;\n"
        try:
            for turn in range(self.args.rounds):
                with open(path, "w") as file:
                    file.write(text + line % time.time_ns())
                with self.part("change", turn=turn) as row:
                    begin = time.monotonic()
                    self.build(tree, "release", RELINKED)
                    row["seconds_to_build"] = time.monotonic() - begin
                    self.call("ctest", "-j", str(self.args.jobs), "-R", CONCERNED, cwd=f"{tree}/build/release")
        finally:
            with open(path, "w") as file:
                file.write(text)


def missing_packages():
    """What of Debian's packages the dependencies' seconds have in them."""
    script = open(f"{ROOT}/tools/install_dependencies").read()
    packages = script[script.index("packages=(") + len("packages=("):]
    packages = packages[:packages.index(")")].split()
    missing = [p for p in packages if subprocess.run(["dpkg-query", "-W", "-f=${Status}", p], capture_output=True, text=True).stdout != "install ok installed"]
    return f"{len(missing)} of {len(packages)} Debian packages, the others were installed before"


def tell(row):
    others = row["processor_seconds_of_others"] / row["seconds"] / os.cpu_count()
    hits = ""
    if "ccache" in row:
        found = row["ccache"]["direct_cache_hit"] + row["ccache"]["preprocessed_cache_hit"]
        hits = f", ccache {found} of {found + row['ccache']['cache_miss']} found"
    print(f"{row['part']:<14}{row['seconds']:>8.1f} s  {row['processor_seconds']:>8.1f} processor seconds, others took {others:.0%} of the machine, load {row['load'][0]:.1f} to {row['load'][1]:.1f}{hits}"
          f"  ({row['what']}{'; ' + row['includes'] if 'includes' in row else ''})", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/build", description="Measures builds one after the other and says how busy the machine was with other things meanwhile: seconds hold for a quiet "
                                     "machine only where others took next to nothing; processor seconds over the number of cores say what a quiet one would need at the least. Parts: "
                                     + "; ".join(f"{name}: {what}" for name, what in PARTS.items()) + ".")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas; `demo`, `program` and `tests` go on in one fresh clone, in this order")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3, help="how often the line is changed")
    parser.add_argument("--ccache", action="store_true", help="let ccache answer; otherwise everything is compiled")
    parser.add_argument("--folder", help="where clones and dependencies are made, and are left; default: a temporary folder")
    parser.add_argument("--output", help="JSON to write")
    parser.add_argument("--log", help="file for what the builds say")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    bench = Bench(args)
    with contextlib.ExitStack() as stack:
        folder = args.folder or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        if "dependencies" in chosen:
            bench.dependencies(f"{folder}/dependencies")
        tree, fresh = ROOT, f"{folder}/partita"
        if set(chosen) & {"demo", "program", "tests", "sanitized"}:
            subprocess.run(["git", "clone", "-q", ROOT, fresh], check=True)
        for name, preset, targets in (("demo", "release", DEMO), ("program", "release", ROOMS), ("tests", "release", ["all"]), ("sanitized", "asan", SANITIZED)):
            if name in chosen:
                with bench.part(name):
                    bench.build(fresh, preset, targets)
                tree = fresh if preset == "release" else tree
        if "change" in chosen:
            bench.change(tree)
    return 0


if __name__ == "__main__":
    sys.exit(main())
