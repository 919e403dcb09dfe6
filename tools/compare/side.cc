#include "tools/compare/side.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

absl::Status check_choices(const ComparedBundle& b) {
  const bool delayed = std::any_of(b.bundle.programs.begin(), b.bundle.programs.end(),
                                   [](const verifier::RankProgram& p) { return verifier::updates_each(p.program); });
  if (!delayed && b.bundle.compress == "none") return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat(b.name, " does not compute the serial program, by choice (",
          delayed ? "schedule: pipedream with several micro-batches" : cat("compress: ", b.bundle.compress),
          "); compile it without that to compare"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Side>> Side::start(const ComparedBundle& b, const runtime::DataConfig& data,
                                                  int64_t steps, int64_t unseen) {
  PARTITA_RETURN_IF_ERROR(check_choices(b));
  auto copies = RankCopies::create(b.bundle);
  if (!copies.ok()) return with_context(copies.status(), b.name);
  std::vector<runtime::Program> programs;
  for (const verifier::RankProgram& p : b.bundle.programs) programs.push_back(p.program);
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  runtime::TrainOptions options = b.train;
  options.steps = steps;
  options.data = data;
  options.evaluate = {};
  options.tell = false;
  return std::unique_ptr<Side>(new Side(b, *std::move(copies), std::move(loaded), std::move(options), unseen));
}

absl::Status Side::next_step() {
  if (captures_.wait_for_step()) return absl::OkStatus();
  runner_.join();
  return status_.ok() ? absl::OutOfRangeError(cat(name_, ": the data end")) : with_context(status_, name_);
}

}  // namespace partita
