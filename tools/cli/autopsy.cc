// partita autopsy DIR
#include <cstdio>
#include <cstring>

#include "base/cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/record/diagnosis.h"
#include "runtime/record/flight_recorder.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

using runtime::Diagnosis;
using runtime::FlightEvent;
using runtime::FlightEventKind;
using runtime::FlightView;

struct Flags {
  std::string folder;
  int64_t last = 0;
};

std::string event_text(const FlightView& v, const FlightEvent& e) {
  const std::string op =
      cat(std::string_view(e.name, ::strnlen(e.name, sizeof e.name)), e.label[0] != '\0' ? cat(" ", e.label) : "");
  switch (e.kind) {
    case FlightEventKind::kStep:
      return cat("micro-batch ", e.micro_batch, ": ", v.step_name(e.step));
    case FlightEventKind::kIdle:
      return "the schedule's end";
    case FlightEventKind::kIssued:
      return cat("started  ", op, " (operation ", e.ticket, ")");
    case FlightEventKind::kWaits:
      return cat("waiting  ", op, " (operation ", e.ticket, "), for ", runtime::name_ranks({e.peer, e.peer + e.peers}));
    case FlightEventKind::kDone:
      return cat("done     operation ", e.ticket);
    case FlightEventKind::kNone:
      break;
  }
  return "?";
}

// Its last operations, each with the seconds before the rank's last sign of life.
void tell_events(const FlightView& v, size_t last) {
  std::printf("rank %d, its last operations:\n", v.rank);
  for (size_t k = v.events.size() - std::min(last, v.events.size()); k < v.events.size(); ++k) {
    const FlightEvent& e = v.events[k];
    std::printf("  %9.3f s  training step %lld  %s\n", static_cast<double>(e.time - v.heartbeat) * 1e-9,
                static_cast<long long>(e.training_step + 1), event_text(v, e).c_str());
  }
}

absl::Status autopsy(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<FlightView> views, runtime::read_flight_records(flags.folder));
  const Diagnosis d = runtime::diagnose(views, {}, runtime::wall_clock());
  std::printf("root cause: %s\n", d.root_text().c_str());
  for (const runtime::RankFate& f : d.others) std::printf("%s\n", d.other_text(f).c_str());
  if (static_cast<size_t>(views.front().size) > views.size())
    std::printf("records of %zu of %d ranks are here\n", views.size(), views.front().size);
  for (const FlightView& v : views) {
    if (flags.last > 0) tell_events(v, static_cast<size_t>(flags.last));
  }
  return absl::OkStatus();
}

}  // namespace

void add_autopsy(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("autopsy", "say why a run ended, from the flight records that its ranks left");
  verb->add_option("folder", flags->folder, "of the records: a run's --log-dir, or flight/ in its --checkpoint")
      ->required();
  verb->add_option("--last", flags->last, "show so many of each rank's last operations")->check(CLI::PositiveNumber);
  verb->callback([flags, &result] { result = autopsy(*flags); });
}

}  // namespace partita
