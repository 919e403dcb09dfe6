// See tools/mutate.
#include <algorithm>
#include <cstdio>

#include "CLI/CLI.hpp"
#include "base/atomic_file.h"
#include "base/exit_code.h"
#include "base/fault.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "tools/mutation/campaign.h"
#include "tools/mutation/field_faults.h"
#include "tools/mutation/tree_mutations.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

struct Flags {
  std::vector<std::string> bundles;
  std::string output;
  CampaignOptions options;
};

absl::StatusOr<int> run(const Flags& flags) {
  nlohmann::json all = nlohmann::json::object();
  int holes = 0;
  for (const std::string& bundle : flags.bundles) {
    auto report = run_campaign(bundle, flags.options);
    if (!report.ok()) return with_context(report.status(), bundle);
    const auto inside =
        std::count_if(report->holes.begin(), report->holes.end(), [](const Hole& h) { return h.in_kernel; });
    std::printf(
        "%s: %d mutations: %d unchanged, %d refused, %d rejected, %d accepted with equal results, %zu holes (%lld of "
        "them "
        "in kernels)\n",
        bundle.c_str(), report->mutations(), report->unchanged, report->refused, report->rejected, report->equal,
        report->holes.size(), static_cast<long long>(inside));
    for (const Hole& h : report->holes)
      std::printf("  hole %d%s: %s: %s: %s\n", h.mutation, h.in_kernel ? " in a kernel" : "", h.kind.c_str(),
                  h.what.c_str(), h.outcome.c_str());
    std::fflush(stdout);
    holes += static_cast<int>(report->holes.size());
    all[bundle] = to_json(*report);
    if (!flags.output.empty()) PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.output, all.dump(2) + "\n"));
  }
  return holes;
}

// What the verifier says of each (docs/field_faults.md). The number of faults that the verifier does not name.
absl::StatusOr<int> run_field() {
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create("the models"));
  PARTITA_RETURN_IF_ERROR(write_field_models(folder.path()));
  int holes = 0;
  for (const FieldFault& f : field_faults()) {
    const auto bundle = compile_field(f, folder.path(), true);
    if (!bundle.ok()) return with_context(bundle.status(), std::string(f.name));
    const std::string said(verifier::check_bundle(*bundle).status().message());
    holes += said.find(f.message) == std::string::npos;
    std::printf("%s (%s)\n  %s\n", std::string(f.name).c_str(), std::string(f.thread).c_str(),
                said.empty() ? "ACCEPTED" : said.c_str());
  }
  return holes;
}

// Other orders of sums of `reproducible`. The number of those that the verifier accepts.
absl::StatusOr<int> run_tree(const CampaignOptions& options) {
  PARTITA_ASSIGN_OR_RETURN(const TreeReport report, run_tree_campaign(options.mutations, options.seed));
  for (const auto& [name, count] : report.rejected) std::printf("%s: %d rejected\n", name.c_str(), count);
  for (const std::string& what : report.accepted) std::printf("ACCEPTED %s\n", what.c_str());
  return static_cast<int>(report.accepted.size());
}

}  // namespace
}  // namespace partita

int main(int argc, char** argv) {
  partita::exit_on_uncaught();
  CLI::App app{
      "Changes the programs of bundles, thousands of times, and looks whether the verifier accepts a change that "
      "matters."};
  partita::Flags flags;
  bool blind = false, knowing = false, field = false, tree = false;
  app.add_option("bundles", flags.bundles, "folders that `partita compile` wrote");
  app.add_flag("--field", field, "faults of the field instead: what the verifier says of each, as a table");
  app.add_flag("--tree", tree, "other orders of sums of `reproducible` instead, of a small model in several layouts");
  app.add_option("--mutations", flags.options.mutations, "of each bundle")->capture_default_str();
  app.add_option("--seed", flags.options.seed, "mutation K is drawn from this + K")->capture_default_str();
  app.add_option("--steps", flags.options.steps, "of a run of what is accepted")->capture_default_str();
  app.add_option("--seconds", flags.options.seconds, "that such a run may take")->capture_default_str();
  app.add_flag("--blind", blind, "only mutations that know nothing of what they change");
  app.add_flag("--knowing", knowing, "only those that do");
  app.add_option("-o,--output", flags.output, "JSON with the counts and holes of each bundle");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  flags.options.blind = !knowing;
  flags.options.knowing = !blind;
  const absl::StatusOr<int> holes = field  ? partita::run_field()
                                    : tree ? partita::run_tree(flags.options)
                                           : partita::run(flags);
  if (holes.ok()) return *holes == 0 ? 0 : 4;
  std::fprintf(stderr, "mutate: %s\n", std::string(holes.status().message()).c_str());
  return partita::exit_code(holes.status());
}
