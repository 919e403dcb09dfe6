#include "runtime/launch/last_start.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "runtime/record/diagnosis.h"
#include "runtime/record/flight_recorder.h"
#include "runtime/record/flight_view.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

// "NAME=VALUE" of scontrol's one line.
std::string field(std::string_view shown, std::string_view name) {
  const std::string key = cat(" ", name, "=");
  const size_t at = shown.find(key);
  if (at == shown.npos) return "";
  const std::string_view rest = shown.substr(at + key.size());
  return std::string(rest.substr(0, rest.find_first_of(" \n")));
}

// A reason has words, and is the line's last field but for who gave it: "Not responding [slurm@2026-11-27T09:48:33]".
std::string reason_of(std::string_view shown) {
  const size_t at = shown.find(" Reason=");
  if (at == shown.npos) return "";
  const std::string_view rest = shown.substr(at + 8);
  return std::string(rest.substr(0, rest.find_first_of("[\n")));
}

// Nanoseconds since 1970 of this host's "2026-11-27T09:48:33"; 0 where it is none.
int64_t time_of(const std::string& text) {
  std::tm parts{};
  parts.tm_isdst = -1;
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) return 0;
  return static_cast<int64_t>(std::mktime(&parts)) * 1'000'000'000;
}

std::string ask_slurm(const RankFate& lost) {
  const std::string node = lost.host.substr(0, lost.host.find('.'));
  const bool plain = !node.empty() && node[0] != '-' && std::all_of(node.begin(), node.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (std::getenv("SLURM_JOB_ID") == nullptr || !plain) return "";
  const std::string command = cat("timeout -s KILL 5 scontrol -o show node ", node, " 2>/dev/null");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string shown;
  std::array<char, 4096> part{};
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) shown += part.data();
  const std::string says = slurm_on_node(shown, lost.time);
  return says.empty() ? "" : cat("; ", says);
}

std::string describe(std::span<const FlightView> views) {
  const Diagnosis d = diagnose(views, {}, wall_clock(), RunState::kIsOver);
  std::string why;
  if (d.root) {
    const bool lost = d.root->kind == FateKind::kSilent || d.root->kind == FateKind::kKilled;
    why = cat(d.root->kind == FateKind::kTold ? "" : "root cause: ", d.root_text(), lost ? ask_slurm(*d.root) : "");
  } else if (d.together || !d.awaited.empty()) {
    why = cat("root cause: ", d.root_text());
  } else {
    const auto first =
        std::find_if(d.others.begin(), d.others.end(), [](const RankFate& f) { return f.kind == FateKind::kFollowed; });
    if (first == d.others.end()) return "";
    why = cat("rank ", first->rank, " on host ", quote(first->host), ": ", first->cause);
  }
  std::optional<int64_t> step;
  for (const FlightView& v : views) {
    if (v.phase != Phase::kStart) step = std::max(step.value_or(0), v.training_step + 1);
  }
  return cat("the last start, of ", views[0].size, views[0].size == 1 ? " rank" : " ranks", ", ended ",
             step ? cat("at training step ", *step) : "before its first step", ": ", why);
}

}  // namespace

std::string take_last_start(const std::string& folder, int from) {
  if (folder.empty()) return "";
  put_away_records(folder, from);
  const std::string found = cat(folder, "/", kFormerStart), told = cat(folder, "/", kToldStart);
  const auto views = read_flight_records(found);
  std::error_code ignored;
  if (!views.ok()) {
    fs::remove_all(found, ignored);  // of another version
    return "";
  }
  fs::remove_all(told, ignored);
  fs::rename(found, told, ignored);
  return describe(*views);
}

std::string slurm_on_node(std::string_view shown, int64_t silent_since) {
  const size_t name = shown.find("NodeName=");
  const std::string node = name == 0 ? std::string(shown.substr(9, shown.find(' ') - 9)) : "",
                    state = field(shown, "State");
  if (node.empty()) return "";
  const std::string of = cat("Slurm: node ", quote(node), " ");
  for (const char* bad : {"DOWN", "FAIL", "NOT_RESPONDING", "NO_RESPOND", "REBOOT", "POWER", "*"}) {
    if (state.find(bad) == state.npos) continue;
    std::string reason = reason_of(shown);
    while (!reason.empty() && reason.back() == ' ') reason.pop_back();
    return cat(of, "is ", state, reason.empty() ? "" : cat(" (", reason, ")"));
  }
  for (const auto& [key, what] :
       {std::pair{"BootTime", "was booted at "}, {"SlurmdStartTime", "has a slurmd that was started at "}}) {
    const std::string time = field(shown, key);
    if (time_of(time) > silent_since) return cat(of, what, time);
  }
  return "";
}

}  // namespace partita::runtime
