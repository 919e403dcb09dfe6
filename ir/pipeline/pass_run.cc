#include "ir/pipeline/pass_run.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ir/text/print.h"

namespace partita {
namespace {

// "NAME#2" for the second of a name; the first has the plain name.
std::string numbered(std::string_view name, int count) {
  return count == 1 ? std::string(name) : cat(name, "#", count);
}

int64_t nodes_of(std::span<const Graph* const> graphs) {
  int64_t nodes = 0;
  for (const Graph* graph : graphs) nodes += static_cast<int64_t>(graph->nodes.size());
  return nodes;
}

}  // namespace

absl::StatusOr<PassRun> PassRun::create(PassOptions options, std::span<const std::string_view> passes) {
  if (!options.stop_after.empty()) {
    std::string known;
    bool found = false;
    std::map<std::string_view, int> seen;
    for (std::string_view pass : passes) {
      const std::string name = numbered(pass, ++seen[pass]);
      found = found || name == options.stop_after;
      append(known, known.empty() ? "" : ", ", name);
    }
    if (!found)
      return absl::InvalidArgumentError(
          cat("stop after: no pass ", quote(options.stop_after, 100), "; the passes are ", known));
  }
  if (!options.dump_folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.dump_folder, error);
    if (error)
      return absl::InvalidArgumentError(
          cat("folder for dumps ", quote(options.dump_folder, 200), ": ", error.message()));
  }
  PassRun run;
  run.options_ = std::move(options);
  return run;
}

PassRun PassRun::unchecked() {
  PassRun run;
  run.options_.verify = false;
  return run;
}

absl::Status PassRun::start(std::span<const Graph* const> graphs) { return dump("start", graphs); }

absl::Status PassRun::passed(std::string_view name, Phase phase, double seconds, int64_t nodes_before,
                             std::span<const Graph* const> graphs) {
  const std::string own = numbered(name, ++runs_.try_emplace(std::string(name)).first->second);
  for (size_t k = 0; options_.verify && k < graphs.size(); ++k) {
    const absl::Status sound = verify(*graphs[k], phase);
    if (!sound.ok())
      return absl::InternalError(
          cat("after pass ", own, graphs.size() > 1 ? cat(" on stage ", k) : "", ": ", std::string(sound.message())));
  }
  times_.push_back({own, seconds, nodes_before, nodes_of(graphs)});
  stopped_ = own == options_.stop_after;
  return dump(own, graphs);
}

absl::Status PassRun::dump(const std::string& name, std::span<const Graph* const> graphs) {
  if (options_.dump_folder.empty()) return absl::OkStatus();
  const size_t number = dumps_++;
  last_.resize(graphs.size());
  for (size_t k = 0; k < graphs.size(); ++k) {
    std::string text = print(*graphs[k], TextMode::kDump);
    if (text == last_[k]) continue;
    last_[k] = std::move(text);
    const std::string stage = graphs.size() > 1 ? cat(".stage", k) : "";
    PARTITA_RETURN_IF_ERROR(write_file_atomically(
        fmt::format("{}/{:02}-{}{}.txt", options_.dump_folder, number, name, stage), last_[k], Durable::kNo));
  }
  return absl::OkStatus();
}

std::string format_pass_times(std::span<const PassTime> times) {
  std::string text = fmt::format("{:<28} {:>10} {:>10} {:>10}\n", "pass", "ms", "nodes", "change");
  double total = 0;
  for (const PassTime& t : times) {
    text += fmt::format("{:<28} {:>10.2f} {:>10} {:>+10}\n", t.name, t.seconds * 1e3, t.nodes_after,
                        t.nodes_after - t.nodes_before);
    total += t.seconds;
  }
  return text + fmt::format("{:<28} {:>10.2f}\n", "total", total * 1e3);
}

}  // namespace partita
