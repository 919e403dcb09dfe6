// The views of a plan as a user gets them: the trace of simulate, the fixes of plan, diff. The page of report has tests
// of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

class Views : public testing::Test {
 protected:
  Outcome partita(const std::string& arguments) { return run_command(partita_program() + " " + arguments); }

  void write_model() {
    Outcome o = partita("model gpt --layers 8 --hidden 256 --heads 8 --vocab 1000 --seq 64 -o " + (out_ / "m.onnx"));
    ASSERT_EQ(o.code, 0) << o.text;
    out_.write("t.yaml", "optimizer: {kind: adamw}\nbatch: {global: 16}\nprecision: bf16\n");
  }
  Outcome plan(const std::string& cluster, const std::string& flags) {
    out_.write("c.yaml", cluster);
    return partita("plan " + (out_ / "m.onnx") + " --train " + (out_ / "t.yaml") + " --cluster " + (out_ / "c.yaml") +
                   " --quiet -o " + (out_ / "p.json") + " " + flags);
  }

  TempFolder out_;
};

int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

// Checks what must hold of any trace, and returns the end of its last slice in seconds.
double check_trace(const Json& trace, const std::set<int64_t>& ranks) {
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<int64_t, int64_t>>> slices;
  std::map<std::pair<int64_t, int64_t>, std::string> threads;
  std::map<int64_t, std::string> processes;
  std::map<int64_t, std::vector<Json>> starts, ends;
  std::set<int64_t> counters;
  for (const Json& e : trace["traceEvents"]) {
    const int64_t pid = e.at("pid");
    const std::string ph = e.at("ph");
    if (ph == "M") {
      if (e["name"] == "process_name") processes[pid] = e["args"]["name"];
      if (e["name"] == "thread_name") threads[{pid, e["tid"]}] = e["args"]["name"];
    } else if (ph == "X") {
      const int64_t from = nanoseconds(e["ts"]);
      slices[{pid, e["tid"]}].emplace_back(from, from + nanoseconds(e["dur"]));
    } else if (ph == "s" || ph == "f") {
      (ph == "s" ? starts : ends)[e["id"].get<int64_t>()].push_back(e);
    } else {
      EXPECT_EQ(ph, "C");
      counters.insert(pid);
    }
  }
  std::set<int64_t> pids;
  for (const auto& [pid, name] : processes) {
    pids.insert(pid);
    EXPECT_THAT(name, HasSubstr(cat("rank ", pid, ": stage ")));
  }
  EXPECT_EQ(pids, ranks);
  EXPECT_EQ(counters, ranks);
  int64_t last = 0;
  for (auto& [thread, list] : slices) {
    EXPECT_TRUE(threads.count(thread)) << thread.first << " " << thread.second;
    std::sort(list.begin(), list.end());
    for (size_t k = 1; k < list.size(); ++k) EXPECT_GE(list[k].first, list[k - 1].second) << threads[thread];
    last = std::max(last, list.back().second);
  }
  // Every arrow leaves within a slice of a thread that sends, and ends within one that receives from that rank.
  auto inside = [&](const Json& e) {
    for (auto [from, to] : slices[{e["pid"], e["tid"]}]) {
      if (nanoseconds(e["ts"]) >= from && nanoseconds(e["ts"]) <= to) return true;
    }
    return false;
  };
  EXPECT_EQ(starts.size(), ends.size());
  for (const auto& [id, list] : starts) {
    if (list.size() != 1 || ends[id].size() != 1) {
      ADD_FAILURE() << "arrow " << id << " has " << list.size() << " starts and " << ends[id].size() << " ends";
      continue;
    }
    const Json &s = list[0], &f = ends[id][0];
    EXPECT_EQ(f.at("bp"), "e");
    EXPECT_TRUE(inside(s) && inside(f));
    EXPECT_EQ((threads[{s["pid"], s["tid"]}]), cat("send to rank ", f["pid"].get<int64_t>()));
    EXPECT_EQ((threads[{f["pid"], f["tid"]}]), cat("receive from rank ", s["pid"].get<int64_t>()));
  }
  return static_cast<double>(last) / 1e9;
}

int64_t count(const Json& trace, const char* category) {
  int64_t n = 0;
  for (const Json& e : trace["traceEvents"]) n += e.value("cat", "") == category && e["ph"] == "X";
  return n;
}

int64_t arrows(const Json& trace) {
  int64_t n = 0;
  for (const Json& e : trace["traceEvents"]) n += e["ph"] == "s";
  return n;
}

TEST_F(Views, TracesHaveAProcessARankAndAThreadAStream) {
  write_model();
  const std::string node = "nodes: 2\ndevices_per_node: 4\ndevice: A100-80GB\n";
  struct Case {
    std::string cluster, pins;
    std::set<int64_t> first;
    int64_t ranks;
  };
  for (const Case& c :
       {Case{node, "--pin data=2 --pin tensor=2 --pin pipeline=2", {0, 4}, 8},
        Case{node, "--pin pipeline=4 --pin schedule=interleaved --pin interleave=2", {0, 2, 4, 6}, 8},
        Case{node, "--pin pipeline=2 --pin schedule=zero_bubble", {0, 4}, 8}, Case{node, "--like zero3", {0}, 8},
        Case{"devices_per_node: 6\ndevice: A100-80GB\n",
             "--pin 'stages=[{data: 4}, {tensor: 2}]' --pin schedule=1f1b",
             {0, 4},
             6}}) {
    SCOPED_TRACE(c.pins);
    Outcome planned = plan(c.cluster, c.pins);
    ASSERT_EQ(planned.code, 0) << planned.text;
    const double step = Json::parse(TempFolder::read(out_ / "p.json"))["predicted"]["step_seconds"];
    auto trace = [&](const std::string& flags) {
      Outcome o = partita("simulate " + (out_ / "p.json") + " --trace " + (out_ / "t.json") + flags);
      EXPECT_EQ(o.code, 0) << o.text;
      if (flags.empty()) {
        EXPECT_THAT(o.text, HasSubstr(cat(c.first.size(), " of ", c.ranks, " ranks, the first of each stage")));
      }
      return Json::parse(TempFolder::read(out_ / "t.json"));
    };
    const Json some = trace("");
    EXPECT_NEAR(check_trace(some, c.first) / step, 1, 1e-6);
    EXPECT_EQ(some["otherData"]["ranks_shown"], Json(std::vector<int64_t>(c.first.begin(), c.first.end())));
    const Json all = trace(" --ranks all");
    std::set<int64_t> every;
    for (int64_t r = 0; r < c.ranks; ++r) every.insert(r);
    EXPECT_NEAR(check_trace(all, every) / step, 1, 1e-6);
    EXPECT_EQ(count(all, "send"), count(all, "receive"));
    EXPECT_EQ(arrows(all), count(all, "send"));
    EXPECT_EQ(count(all, "send") > 0, c.first.size() > 1);
    EXPECT_NEAR(check_trace(trace(" --ranks 1,3..4"), {1, 3, 4}) / step, 1, 1e-6);
  }
  for (const char* bad : {"6", "0..6", "x", "1,,2", "3..1", "-1"}) {
    Outcome o = partita("simulate " + (out_ / "p.json") + " --trace " + (out_ / "t.json") + " --ranks=" + bad);
    EXPECT_EQ(o.code, 2) << bad;
    EXPECT_THAT(o.text, HasSubstr("--ranks: expected all, or ranks from 0 to 5 as 0,8,16..19, found")) << bad;
  }
  EXPECT_EQ(partita("simulate " + (out_ / "p.json") + " --ranks all").code, 2);  // of which trace?
}

struct ToldFix {
  std::string change, layout;
};
// The fixes of an infeasible plan: a line that says what to type, and one that begins with the layout.
std::vector<ToldFix> told_fixes(const std::string& text) {
  std::vector<ToldFix> out;
  std::istringstream lines(text.substr(std::min(text.find("\nWhat makes it fit"), text.size())));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("      ", 0) == 0) {
      if (!out.empty()) out.back().layout = line.substr(6, line.find(';') - 6);
    } else if (line.rfind("  ", 0) == 0) {
      out.push_back({line.substr(2), ""});
    }
  }
  return out;
}

// A cluster file with `lines` ("nodes: 2; links: […]") in place of its lines with those keys.
std::string with_lines(std::string cluster, std::string lines) {
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find("; ", at), lines.size());
    const std::string line = lines.substr(at, end - at), key = line.substr(0, line.find(':') + 1);
    const size_t old = cluster.rfind(key, 0) == 0 ? 0 : cluster.find("\n" + key) + 1;
    if (old > 0 || cluster.rfind(key, 0) == 0) cluster.erase(old, cluster.find('\n', old) + 1 - old);
    append(cluster, line, "\n");
    at = end + 2;
  }
  return cluster;
}

// Each fix is typed as it is printed, and gives the layout that it was told with.
TEST_F(Views, FixesOfWhatDoesNotFitWorkAsTheyArePrinted) {
  ASSERT_EQ(
      partita("model gpt --layers 24 --hidden 2048 --heads 16 --vocab 32000 --seq 1024 -o " + (out_ / "m.onnx")).code,
      0);
  out_.write("t.yaml", "optimizer: {kind: adamw}\nbatch: {global: 64}\nprecision: bf16\n");
  const std::string small = "device: {like: A100-40GB, memory: 10e9}\n";
  std::set<std::string> kinds;
  for (const auto& [cluster, flags] :
       {std::pair{small + "nodes: 1\ndevices_per_node: 4\n", std::string("--like ddp")},
        std::pair{small + "nodes: 1\ndevices_per_node: 4\nlinks: [{kind: nvlink3, bandwidth: 200e9}]\n",
                  std::string("--pin zero=1 --pin tensor=1 --pin pipeline=1 --pin recompute=none")},
        std::pair{small, std::string("--pin offload=none")}}) {
    SCOPED_TRACE(cluster + flags);
    Outcome o = plan(cluster, flags);
    ASSERT_EQ(o.code, 3) << o.text;
    EXPECT_THAT(o.text, testing::ContainsRegex("\\([0-9]+ bytes\\) too much on rank [0-9]+"));
    const std::vector<ToldFix> fixes = told_fixes(o.text);
    EXPECT_FALSE(fixes.empty()) << o.text;
    for (const ToldFix& fix : fixes) {
      SCOPED_TRACE(fix.change);
      std::string change = fix.change, again = cluster, typed = flags;
      const size_t without = change.find("without --pin, --like");
      if (without != change.npos) typed = "", change = change.substr(0, without ? without - 2 : 0);
      const std::string file = "in the cluster file: ";
      if (change.rfind(file, 0) == 0) {
        again = with_lines(cluster, change.substr(file.size()));
      } else {
        append(typed, " ", change);
      }
      kinds.insert(fix.change.substr(0, fix.change.find_first_of("=:")));
      Outcome fits = plan(again, typed);
      EXPECT_EQ(fits.code, 0) << fits.text;
      EXPECT_EQ(Json::parse(TempFolder::read(out_ / "p.json"))["layout"], fix.layout);
    }
  }
  EXPECT_GE(kinds.size(), 3u) << testing::PrintToString(kinds);
}

// What a plan takes for granted, it says.
TEST_F(Views, PlansSayWhichLinksTheyAssume) {
  write_model();
  auto summary = [&](const std::string& cluster) {
    EXPECT_EQ(plan(cluster, "").code, 0);
    return partita("explain " + (out_ / "p.json")).text;
  };
  EXPECT_THAT(summary("nodes: 2\ndevices_per_node: 4\ndevice: A100-80GB\n"),
              HasSubstr("links: pcie 32 GB/s among 4, ethernet 12.5 GB/s among 8 (assumed: the cluster file names "
                        "neither a preset nor links)"));
  const std::string preset = summary("preset: dgx-a100\nnodes: 1\n");
  EXPECT_THAT(preset, HasSubstr("links: nvlink3 300 GB/s among 8\n"));
  EXPECT_THAT(summary("groups: [{preset: dgx-h100}, {preset: dgx-a100}]\n"), HasSubstr("between the groups: "));
}

// What follows from the rest is no difference of its own, and the first line says what counts.
TEST_F(Views, DifferencesBeginWithTheStep) {
  write_model();
  ASSERT_EQ(plan("devices_per_node: 4\ndevice: A100-80GB\n", "--pin data=4").code, 0);
  out_.write("a.json", TempFolder::read(out_ / "p.json"));
  ASSERT_EQ(plan("devices_per_node: 4\ndevice: A100-80GB\n", "--pin data=2 --pin pipeline=2").code, 0);
  Outcome o = partita("diff " + (out_ / "a.json") + " " + (out_ / "p.json"));
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, testing::MatchesRegex("a step: [0-9.e-]+ s -> [0-9.e-]+ s \\([+-][0-9.]+ %\\)\n(.|\n)*"));
  EXPECT_THAT(o.text, HasSubstr("-> data 2 x pipeline 2"));
  const Outcome all = partita("diff --all " + (out_ / "a.json") + " " + (out_ / "p.json"));
  EXPECT_THAT(all.text, HasSubstr("pin/pipeline: 1 -> 2\n"));
  for (const char* derived : {"/parts/", "/traffic/", "/update/"})
    EXPECT_THAT(o.text, testing::Not(HasSubstr(derived)));
  EXPECT_EQ(partita("diff " + (out_ / "a.json") + " " + (out_ / "a.json")).text, "no difference\n");
}

}  // namespace
}  // namespace partita
