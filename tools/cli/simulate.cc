#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "partitioner/plan_file.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

// Chrome's trace format: one process a stage; microseconds.
std::string chrome_trace(const Timeline& t) {
  nlohmann::json events = nlohmann::json::array();
  for (size_t s = 0; s < t.busy.size(); ++s)
    events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", s}, {"args", {{"name", cat("stage ", s)}}}});
  constexpr const char* kNames[] = {"forward", "backward", "weight gradients"};
  for (const Event& e : t.events) {
    events.push_back(
        {{"ph", "X"},
         {"name", cat(kNames[static_cast<int>(e.kind)], " ", e.micro_batch, e.chunk ? cat(" chunk ", e.chunk) : "")},
         {"cat", kNames[static_cast<int>(e.kind)]},
         {"pid", e.stage},
         {"tid", 0},
         {"ts", e.start * 1e6},
         {"dur", (e.end - e.start) * 1e6},
         {"args", {{"micro_batch", e.micro_batch}, {"chunk", e.chunk}}}});
  }
  return nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace

void add_simulate(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string plan, trace;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("simulate", "replay a plan's step event by event");
  verb->add_option("plan", flags->plan, "plan.json")->required();
  verb->add_option("--trace", flags->trace, "write the timeline for Perfetto or chrome://tracing");
  verb->callback([flags, &result] {
    auto run = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(nlohmann::json plan, read_plan(flags->plan));
      PARTITA_ASSIGN_OR_RETURN(Simulation s, plan_simulation(plan));
      Timeline t = simulate(s, !flags->trace.empty());
      std::printf("%lld micro-batches through %zu stages in %.4g s (without gradient reduction and optimizer)\n",
                  static_cast<long long>(s.micro_batches), s.chunks.size(), t.seconds);
      for (size_t k = 0; k < t.busy.size(); ++k) {
        std::printf("  stage %3zu busy %5.1f %%, at most %lld micro-batch chunks kept\n", k,
                    t.seconds > 0 ? 100 * t.busy[k] / t.seconds : 0, static_cast<long long>(t.most_in_flight[k]));
      }
      return flags->trace.empty() ? absl::OkStatus() : write_file_atomically(flags->trace, chrome_trace(t));
    };
    result = run();
  });
}

}  // namespace partita
