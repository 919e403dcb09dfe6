#include "tools/verify/certificate.h"

#include <algorithm>
#include <bit>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/program/params.h"
#include "runtime/program/tree_sums.h"
#include "tools/verify/check_evaluation.h"
#include "tools/verify/check_values.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/stages/stage_sources.h"
#include "tools/verify/steps/check_frame.h"
#include "tools/verify/steps/check_steps.h"

namespace partita::verifier {
namespace {

// What the symbolic check establishes, in words that outlive it.
constexpr const char* kProved[] = {
    "every local value is a part of a serial value, by the formulas of ops and the definitions of collectives",
    "every state, gradient and output equals the serial one; partial sums are completed exactly once",
    "every collective is issued by all ranks of its group, in one order, with one kind, count, type and reduction",
    "no rank waits for another that waits for it",
    "every operand is alive, of the right micro-batch, and untouched by asynchronous operations",
    "every state and output is written, and no two live buffers overlap",
    "every generated kernel, by the loop nest that it was made from, makes of its operands what the nodes do that it "
    "stands for: each element once, over all its units of work, and none is read after it was overwritten",
    "what the manifest says of ranks, mesh, inputs, samples, data, seed and evaluation follows from the programs and "
    "the serial program",
};
constexpr const char* kProvedOfCode =
    "the kernels' machine code is what this compiler makes of their nests, to the byte";
constexpr const char* kProvedOfOrder =
    "every sum over samples adds up the same parts of a step's samples in the same balanced binary tree, by their "
    "numbers, on this and on any other number of ranks that shares them out";
constexpr const char* kProvedOfBlocks =
    "every sum over an inner dimension that ranks divide adds up the same blocks of it in the same balanced binary "
    "tree, by their numbers, on this and on any other number of ranks that shares them out";
constexpr uint64_t kMostParts = 1 << 20;
// In place of what is equal, where it is not.
constexpr const char* kProvedButForCompression =
    "the ranks do NOT compute the serial program, by the user's choice of `compress`: with the compressed sums of "
    "gradients in their full type, every state, gradient and output would equal the serial one; partial sums are "
    "completed exactly once";
constexpr const char* kProvedButForDelays =
    "the ranks do NOT compute the serial program, by the user's choice of `schedule: pipedream`, which updates each "
    "stage after each micro-batch: with one micro-batch a step, every state, gradient and output would equal the "
    "serial "
    "one; partial sums are completed exactly once";
constexpr const char* kProvedOfVersions =
    "the forward and backward parts of a micro-batch read one version of a stage's weights, which is kept while it is "
    "in flight and lacks the updates of at most so many micro-batches before it; its own update follows its backward "
    "part and is applied to the newest version, in the order of the micro-batches";
constexpr size_t kEquality = 1;  // of kProved
constexpr const char* kProvedOfStages[] = {
    "every message between stages has its receive, of the same value and micro-batch, and every sum over stages all of "
    "them",
    "every trained state lies on one stage",
};

constexpr const char* kProvedOfEvaluation =
    "the evaluation programs compute the serial evaluation program in the same sense, on the states as training keeps "
    "them, and change none";
constexpr const char* kProvedOfSources =
    "the serial programs, what a run goes by, and the first weights are those that this compiler makes of the model "
    "and "
    "the recipe named under `sources`";
constexpr const char* kProvedOfInference = "the serial evaluation program draws no random numbers: dropout is off";

// The groups that the serial program's ops cut the samples of a run into.
int64_t statistic_groups(const Graph& serial) {
  int64_t groups = 1;
  for (const Node& node : serial.nodes) {
    if (node.op->split_form != nullptr && node.attrs.has("groups")) groups = std::max(groups, node.attrs.i("groups"));
  }
  return groups;
}

absl::StatusOr<StepsReport> check_program(const Graph& serial, const RankProgram& p) {
  PARTITA_ASSIGN_OR_RETURN(StepsReport report, check_steps(p.code, p.program, p.claims, p.nests, p.roundings));
  PARTITA_RETURN_IF_ERROR(check_frame(serial, p));
  return report;
}

absl::Status check_all_steps(const ProgramSet& set, Verdict& v) {
  for (size_t k = 0; k < set.programs.size(); ++k) {
    const RankProgram& p = set.programs[k];
    auto run = check_program(set.serial, p);
    if (!run.ok() && set.programs.size() > 1) return differs("stage ", k, ": ", run.status().message());
    if (!run.ok()) return run.status();
    v.steps += run->steps;
    v.operands += run->operands;
    v.collectives += run->collectives;
    v.kernels.nests += static_cast<int64_t>(p.nests.kernels.size());
  }
  return absl::OkStatus();
}

// A library kernel that does what its node says and no more, and sums over ranks that are a tree with every back end.
absl::Status check_strict(const runtime::Step& step) {
  if (step.kind == runtime::StepKind::kLibrary && step.params.contains("epilogue"))
    return differs("reproducible: step ", step.id, ", ", step.name,
                   ": expected a kernel of one node, found one that does what follows, too");
  if (runtime::adds_up_ranks(step) && runtime::int_param(step.params, "ordered", 0) != 1)
    return differs("reproducible: step ", step.id, ", ", step.name,
                   ": expected a sum over ranks in their order (ordered: 1), found one in any");
  return absl::OkStatus();
}

// That what a node computes does not depend on the others of its kernel.
absl::Status check_strict(const ProgramSet& set) {
  for (const RankProgram& p : set.programs) {
    for (const KernelNest& k : p.nests.kernels) {
      if (!k.nest.strict)
        return differs("reproducible: kernel ", quote(k.name),
                       ": expected a strict nest, whose sums have the order of their shapes");
    }
    for (const runtime::ProgramSegment& segment : p.program.segments) {
      for (const runtime::Step& step : segment.steps) PARTITA_RETURN_IF_ERROR(check_strict(step));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Verdict> check_set(const ProgramSet& set, const std::string& compress, const FixedSums& fixed) {
  const RankProgram& first = set.programs.front();
  if (first.program.samples_per_step != set.samples)
    return differs("expected ", set.samples, " samples a step, found ", first.program.samples_per_step);
  Verdict v{.programs = static_cast<int64_t>(set.programs.size()), .micro_batches = first.program.micro_batches};
  v.compress = compress;
  v.fixed = fixed;
  v.ranks = mesh_of(first.program).ranks();
  v.statistic_groups = statistic_groups(set.serial);
  // Of stages, first the steps, by which messages are matched.
  if (set.programs.size() > 1) PARTITA_RETURN_IF_ERROR(check_all_steps(set, v));
  PARTITA_ASSIGN_OR_RETURN(const RankValues values, check_values(set, compress, fixed));
  if (fixed.samples > 0) PARTITA_RETURN_IF_ERROR(check_strict(set));
  if (set.programs.size() == 1) PARTITA_RETURN_IF_ERROR(check_all_steps(set, v));
  v.values = values.report.values;
  v.states = values.report.states;
  v.outputs = values.report.outputs;
  v.compressed_sums = values.compressed_sums;
  v.delays = values.delays;
  return v;
}

absl::StatusOr<Verdict::Evaluation> check_evaluation(const ProgramSet& training, const ProgramSet& evaluation,
                                                     const FixedSums& fixed) {
  PARTITA_ASSIGN_OR_RETURN(Verdict v, check_set(evaluation, "none", fixed));
  PARTITA_RETURN_IF_ERROR(check_shared_states(training, evaluation));
  return Verdict::Evaluation{v.values, v.steps, random_nodes(evaluation.serial), v.kernels.nests};
}

}  // namespace

absl::StatusOr<FixedSums> fixed_sums(const Bundle& bundle) {
  FixedSums fixed;
  if (!bundle.run.is_object() || !bundle.run.contains("reproducible")) return fixed;
  const nlohmann::json& said = bundle.run["reproducible"];
  auto read = [&](const nlohmann::json& n, int64_t& out) {
    if (!n.is_number_integer() || n < 1 || n > kMostParts || !std::has_single_bit(n.get<uint64_t>())) return false;
    out = n.get<int64_t>();
    return true;
  };
  const bool right = said.is_object() ? said.size() == 2 && said.contains("samples") && said.contains("tensor") &&
                                            read(said["samples"], fixed.samples) && read(said["tensor"], fixed.tensor)
                                      : read(said, fixed.samples);
  if (!right)
    return differs("reproducible: expected a power of two, or one of samples and one of tensor, found ", said.dump());
  return fixed;
}

absl::StatusOr<Verdict> check_bundle(const Bundle& bundle) {
  PARTITA_ASSIGN_OR_RETURN(const FixedSums fixed, fixed_sums(bundle));
  PARTITA_ASSIGN_OR_RETURN(Verdict v, check_set(bundle, bundle.compress, fixed));
  if (bundle.evaluation) {
    auto evaluation = check_evaluation(bundle, *bundle.evaluation, fixed);
    if (!evaluation.ok()) return differs("evaluation: ", evaluation.status().message());
    v.kernels.nests += evaluation->kernels;
    v.evaluation = *evaluation;
  }
  return v;
}

absl::Status check_choices(const nlohmann::json& manifest, const Verdict& v) {
  if (manifest.contains("compress") && v.compressed_sums == 0)
    return differs(quote(runtime::kManifestName), ": compress: expected no such key: no sum is compressed");
  if (!v.delays.empty() && manifest.value("equal_to_serial", true))
    return differs(quote(runtime::kManifestName), ": equal_to_serial: expected false, with updates that are delayed");
  return absl::OkStatus();
}

std::string certificate_text(const std::string& root, const Verdict& v, const std::optional<NumericVerdict>& numeric,
                             const nlohmann::json& sources) {
  nlohmann::json proved = kProved, schedule;
  nlohmann::json kernels = {{"nests", v.kernels.nests}, {"compiled_again", v.kernels.compiled}};
  if (!v.kernels.unknown.empty()) kernels["unknown"] = v.kernels.unknown;
  if (v.kernels.unknown.empty() && v.kernels.compiled == v.kernels.nests) proved.push_back(kProvedOfCode);
  if (v.compressed_sums > 0) proved[kEquality] = kProvedButForCompression;
  if (!v.delays.empty()) {
    proved[kEquality] = kProvedButForDelays;
    proved.push_back(kProvedOfVersions);
    schedule = {{"kind", "pipedream"}, {"updates_behind", v.delays}};
  }
  for (const char* text : kProvedOfStages) {
    if (v.programs > 1) proved.push_back(text);
  }
  if (v.fixed.samples > 0) proved.push_back(kProvedOfOrder);
  if (v.fixed.tensor > 1) proved.push_back(kProvedOfBlocks);
  if (v.evaluation) proved.push_back(kProvedOfEvaluation);
  if (v.evaluation && v.evaluation->random_nodes == 0) proved.push_back(kProvedOfInference);
  const bool equal = v.compressed_sums == 0 && v.delays.empty();
  if (!sources.is_null()) proved.push_back(kProvedOfSources);
  nlohmann::json j = {{"version", runtime::kCertificateVersion},
                      {"root", root},
                      {"verdict", equal ? "equal to the serial program" : "not equal to the serial program, by choice"},
                      {"ranks", v.ranks},
                      {"programs", v.programs},
                      {"proved", proved},
                      {"counts",
                       {{"values", v.values},
                        {"states", v.states},
                        {"outputs", v.outputs},
                        {"steps", v.steps},
                        {"operands", v.operands},
                        {"collectives", v.collectives},
                        {"micro_batches", v.micro_batches}}},
                      {"kernels", kernels},
                      {"numeric", nullptr}};
  if (v.fixed.samples > 0) j["reproducible"] = v.fixed.samples;
  if (v.fixed.tensor > 1) j["reproducible"] = {{"samples", v.fixed.samples}, {"tensor", v.fixed.tensor}};
  if (v.statistic_groups > 1) j["semantics"] = {{"statistic_groups", v.statistic_groups}};
  if (v.evaluation) {
    j["evaluation"] = {
        {"values", v.evaluation->values}, {"steps", v.evaluation->steps}, {"random_nodes", v.evaluation->random_nodes}};
  }
  if (!v.delays.empty()) j["schedule"] = schedule;
  if (v.compress != "none") j["compress"] = {{"kind", v.compress}, {"sums", v.compressed_sums}};
  if (numeric) {
    j["numeric"] = {{"steps", numeric->steps},
                    {"tensors", numeric->tensors},
                    {"loss_error", numeric->loss_error},
                    {"tensor_error", numeric->tensor_error}};
    j["numeric"]["against"] = cat("the serial program, compiled for one rank",
                                  numeric->by_reference ? ", and by the reference evaluator in double precision" : "");
    const KernelTrials& trials = numeric->kernels;
    j["numeric"]["kernels"] = {{"generated", trials.generated},
                               {"library", trials.library},
                               {"draws", trials.draws},
                               {"elements", trials.elements},
                               {"left_out", trials.left_out}};
    j["numeric"]["confined"] = numeric->confined;
    if (!numeric->unconfined.empty()) j["numeric"]["unconfined"] = numeric->unconfined;
    if (!numeric->kink.empty()) j["numeric"]["kink"] = numeric->kink;
  }
  if (!sources.is_null()) j["sources"] = sources;
  j["sha256"] = sha256_hex(as_byte_span(j.dump(2)));
  return j.dump(2) + "\n";
}

}  // namespace partita::verifier
