#include "tools/verify/certificate.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "tools/verify/bundle/pad_serial.h"
#include "tools/verify/check_evaluation.h"
#include "tools/verify/graph/check_graph.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/stages/check_stages.h"
#include "tools/verify/stages/join_stages.h"
#include "tools/verify/steps/check_frame.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/check_versions.h"
#include "tools/verify/undo/undo_compression.h"

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

// Says of a node of a rank's graph which step computes it.
class NodePlaces {
 public:
  explicit NodePlaces(const ProgramSet& set) : set_(set) {
    for (const RankProgram& p : set.programs) {
      std::vector<int>& steps = steps_.emplace_back(p.rank.nodes.size(), -1);
      std::vector<int> code_steps = steps_of_nodes(p.code, p.claims);
      for (size_t n = code_steps.size(); n-- > 0;) {
        if (code_steps[n] >= 0) steps[p.from[n]] = code_steps[n];
      }
    }
  }

  std::string operator()(const StageNode& n) const {
    const RankProgram& p = set_.programs[static_cast<size_t>(n.stage)];
    std::string node = cat("node ", n.node, " (", quote(p.rank.origin(p.rank.nodes[n.node])), ")");
    std::string ranks = set_.programs.size() > 1 ? cat("every rank of stage ", n.stage) : "every rank";
    int step = steps_[static_cast<size_t>(n.stage)][n.node];
    return step < 0 ? cat("on ", ranks, ", ", node) : cat(describe_step(p.program, step), " on ", ranks, ", ", node);
  }

 private:
  const ProgramSet& set_;
  std::vector<std::vector<int>> steps_;  // per stage and node, -1: none
};

// Whether ranks that differ along some of the axes have different sums of strides: the axes are digits of one number.
bool counts_once(std::vector<runtime::AxisStride> axes, const std::vector<runtime::MeshAxis>& mesh) {
  std::sort(axes.begin(), axes.end(), [](const auto& a, const auto& b) { return a.stride < b.stride; });
  int64_t next = 1;
  for (const runtime::AxisStride& a : axes) {
    if (a.stride != next) return false;
    next *= mesh[static_cast<size_t>(a.axis)].size;
  }
  return true;
}

// The ranks of the stage that has the state.
int64_t ranks_with_state(const ProgramSet& set, const std::string& name) {
  const Mesh mesh = mesh_of(set.programs.front().program);
  for (size_t s = 0; set.programs.size() > 1 && s < set.programs.size(); ++s) {
    const auto& states = set.programs[s].rank.states;
    if (std::none_of(states.begin(), states.end(), [&](const State& x) { return x.name == name; })) continue;
    int64_t ranks = 1;
    for (int a = 1; a < static_cast<int>(mesh.axes.size()); ++a)
      ranks *= mesh.has(a, static_cast<int64_t>(s)) ? mesh.axes[static_cast<size_t>(a)].size : 1;
    return ranks;
  }
  return mesh.ranks();
}

// Takes away the states that compression keeps: with those who do not share them as a first dimension, which they
// split; what no ranks share is zero at first.
absl::Status drop_states(const Uncompressed& whole, const ProgramSet& set, runtime::Program& program) {
  auto drop = [&](const std::string& name, const std::vector<int64_t>& shared) {
    const int64_t ranks = ranks_with_state(set, name);
    auto at = std::find_if(program.states.begin(), program.states.end(), [&](const auto& s) { return s.name == name; });
    auto expected = [&](std::string_view what) { return differs("state ", quote(name), ": expected ", what); };
    if (at == program.states.end()) return expected("it in the program's interface");
    if (shared.empty() && (at->initial.kind != runtime::InitialKind::kFill || at->initial.a != 0))
      return expected("zeros at first");
    const runtime::Placement& p = at->placement;
    int64_t split = 1, owners = ranks;
    for (int64_t a : shared) owners /= program.mesh[static_cast<size_t>(a)].size;
    std::set<int32_t> axes;
    for (const auto& dim : p.axes) {
      for (const runtime::AxisStride& a : dim) {
        split *= program.mesh[static_cast<size_t>(a.axis)].size;
        axes.insert(a.axis);
      }
    }
    const bool among_sharers =
        std::any_of(shared.begin(), shared.end(), [&](int64_t a) { return axes.count(static_cast<int32_t>(a)) > 0; });
    if (p.logical.empty() || p.logical[0] != owners || split != owners || p.local[0] != 1 || among_sharers ||
        axes.size() != p.axes[0].size() || !counts_once(p.axes[0], program.mesh))
      return expected(cat("a part of its own on each of ", owners, owners == ranks ? " ranks" : " groups of ranks"));
    program.states.erase(at);
    return absl::OkStatus();
  };
  for (const auto& [name, shared] : whole.kept) PARTITA_RETURN_IF_ERROR(drop(name, shared));
  return absl::OkStatus();
}

absl::Status check_values(const Graph& serial, const ProgramSet& set, const Graph& ranks, runtime::Program program,
                          const std::function<std::string(NodeId)>& place_of, Verdict& v) {
  PARTITA_ASSIGN_OR_RETURN(Uncompressed whole, undo_compression(ranks, v.compress));
  v.compressed_sums = whole.sums;
  PARTITA_RETURN_IF_ERROR(drop_states(whole, set, program));
  auto place = [&](NodeId n) { return place_of(whole.from[static_cast<size_t>(n)]); };
  PARTITA_ASSIGN_OR_RETURN(PaddedSerial padded, pad_serial(serial, program));
  auto values = SerialValues::create(padded.graph);
  if (!values.ok()) return absl::AbortedError(values.status().message());
  PARTITA_ASSIGN_OR_RETURN(GraphReport graph, check_graph(*values, whole.graph, padded.program, place));
  v.values = graph.values;
  v.states = graph.states;
  v.outputs = graph.outputs;
  return absl::OkStatus();
}

// The groups that the serial program's ops cut the samples of a run into.
int64_t statistic_groups(const Graph& serial) {
  int64_t groups = 1;
  for (const Node& node : serial.nodes) {
    if (node.op->split_form != nullptr && node.attrs.has("groups")) groups = std::max(groups, node.attrs.i("groups"));
  }
  return groups;
}

absl::StatusOr<StepsReport> check_program(const Graph& serial, const RankProgram& p) {
  PARTITA_ASSIGN_OR_RETURN(StepsReport report, check_steps(p.code, p.program, p.claims, p.nests));
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

absl::StatusOr<Verdict> check_set(const ProgramSet& set, const std::string& compress) {
  const RankProgram& first = set.programs.front();
  if (first.program.samples_per_step != set.samples)
    return differs("expected ", set.samples, " samples a step, found ", first.program.samples_per_step);
  Verdict v{.programs = static_cast<int64_t>(set.programs.size()), .micro_batches = first.program.micro_batches};
  v.compress = compress;
  v.ranks = mesh_of(first.program).ranks();
  v.statistic_groups = statistic_groups(set.serial);
  const NodePlaces places(set);
  if (set.programs.size() == 1) {
    auto place = [&](NodeId n) { return places({0, n}); };
    PARTITA_RETURN_IF_ERROR(check_values(set.serial, set, first.rank, first.program, place, v));
    PARTITA_RETURN_IF_ERROR(check_all_steps(set, v));
    return v;
  }
  PARTITA_RETURN_IF_ERROR(check_all_steps(set, v));
  PARTITA_ASSIGN_OR_RETURN(StagesReport between, check_stages(set));
  PARTITA_ASSIGN_OR_RETURN(JoinedStages joined, join_stages(set, between.links));
  auto place = [&](NodeId n) { return places(joined.nodes[static_cast<size_t>(n)]); };
  const bool asynchronous = std::any_of(set.programs.begin(), set.programs.end(),
                                        [](const RankProgram& p) { return updates_each(p.program); });
  if (asynchronous) {
    PARTITA_ASSIGN_OR_RETURN(v.delays, check_versions(set));
  }
  const Graph serial = asynchronous ? as_one_micro_batch(set.serial) : set.serial;
  PARTITA_RETURN_IF_ERROR(check_values(serial, set, joined.graph, joined.program, place, v));
  return v;
}

absl::StatusOr<Verdict::Evaluation> check_evaluation(const ProgramSet& training, const ProgramSet& evaluation) {
  PARTITA_ASSIGN_OR_RETURN(Verdict v, check_set(evaluation, "none"));
  PARTITA_RETURN_IF_ERROR(check_shared_states(training, evaluation));
  return Verdict::Evaluation{v.values, v.steps, random_nodes(evaluation.serial), v.kernels.nests};
}

}  // namespace

absl::StatusOr<Verdict> check_bundle(const Bundle& bundle) {
  PARTITA_ASSIGN_OR_RETURN(Verdict v, check_set(bundle, bundle.compress));
  if (bundle.evaluation) {
    auto evaluation = check_evaluation(bundle, *bundle.evaluation);
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
    j["numeric"]["confined"] = numeric->confined;
    if (!numeric->unconfined.empty()) j["numeric"]["unconfined"] = numeric->unconfined;
    if (!numeric->kink.empty()) j["numeric"]["kink"] = numeric->kink;
  }
  if (!sources.is_null()) j["sources"] = sources;
  j["sha256"] = sha256_hex(as_byte_span(j.dump(2)));
  return j.dump(2) + "\n";
}

}  // namespace partita::verifier
