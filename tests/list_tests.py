#!/usr/bin/env python3
"""Writes what CTest runs of a test program: one entry for each test suite, with labels and cost.

  list_tests.py --name NAME --program FILE --costs FILE --output FILE.cmake

Tests that the file of costs names (NAME.Suite.Test) are entries of their own, and those of a suite that it names lie in
one. Labels: the folder below tests/ that a test lies in, and quick or slow. Fails where the program has no test, or
the file of costs names one that it does not have.
"""
import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile

WORDS = {"alone": [("RUN_SERIAL", "ON")], "cuda": []}
TIMEOUT = 1500  # seconds; in full, campaigns take long


def read_costs(path, name):
    """Returns [(pattern, seconds, words)] of the program's lines: 'PATTERN SECONDS [alone] [cuda]'."""
    costs = []
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 2 or any(w not in WORDS for w in words[2:]):
            sys.exit(f"{path}:{number}: expected NAME.SUITE[.TEST] SECONDS [{'|'.join(WORDS)}], found '{line.strip()}'")
        if words[0].split(".")[0] == name:
            costs.append((words[0], float(words[1]), words[2:]))
    return costs


def list_tests(program):
    """Returns {suite: [(test, file)]}, without those that gtest does not run unless it is told to."""
    environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tests.json")
        listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_output=json:{path}"], capture_output=True, text=True, env=environment)
        if listed.returncode != 0:
            sys.exit(f"{program} lists no tests: {listed.stderr}")
        suites = json.load(open(path, encoding="utf-8"))["testsuites"]
    return {s["name"]: [(t["name"], t["file"]) for t in s["testsuite"] if not t["name"].startswith("DISABLED_")] for s in suites}


def main():
    parser = argparse.ArgumentParser()
    for option in ("name", "program", "costs", "output"):
        parser.add_argument(f"--{option}", required=True)
    options = parser.parse_args()
    costs = read_costs(options.costs, options.name)
    unused = {pattern for pattern, _, words in costs if "cuda" not in words}
    lines = []

    def entry(name, gtest_filter, files, cost):
        folders = sorted({os.path.dirname(f[f.rindex("tests/") + len("tests/"):]) for f in files})
        seconds, words = (cost[1], cost[2]) if cost else (0, [])
        properties = {"LABELS": ";".join(folders + ["slow" if cost else "quick"]), "COST": f"{seconds:g}", "TIMEOUT": str(TIMEOUT),
                      "WORKING_DIRECTORY": os.path.dirname(options.output),
                      # A thread that waits gives its core to the test beside it.
                      "ENVIRONMENT": "OMP_WAIT_POLICY=passive"}
        properties.update(p for w in words for p in WORDS[w])
        text = " ".join(f"{key} [==[{value}]==]" for key, value in properties.items())
        lines.append(f"add_test([==[{name}]==] [==[{options.program}]==] [==[--gtest_filter={gtest_filter}]==])\n")
        lines.append(f"set_tests_properties([==[{name}]==] PROPERTIES {text})\n")

    def cost_of(name):
        for cost in costs:
            if fnmatch.fnmatchcase(name, cost[0]):
                unused.discard(cost[0])
                return cost
        return None

    for suite, tests in list_tests(options.program).items():
        own, rest = [], []  # entries of their own, and the others
        for test, file in tests:
            cost = cost_of(f"{options.name}.{suite}.{test}")
            (own if cost else rest).append((test, file))
            if cost:
                entry(f"{options.name}.{suite}.{test}", f"{suite}.{test}", [file], cost)
        if rest:
            but = "-" + ":".join(f"{suite}.{test}" for test, _ in own) if own else ""
            entry(f"{options.name}.{suite}", f"{suite}.*{but}", {file for _, file in rest}, cost_of(f"{options.name}.{suite}"))
    if unused:
        sys.exit(f"{options.costs}: no such test: {', '.join(sorted(unused))}")
    with open(options.output, "w", encoding="utf-8") as out:
        out.writelines(lines)


if __name__ == "__main__":
    main()
