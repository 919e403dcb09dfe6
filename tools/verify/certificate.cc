#include "tools/verify/certificate.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "tools/verify/check_graph.h"
#include "tools/verify/check_stages.h"
#include "tools/verify/check_steps.h"
#include "tools/verify/pad_serial.h"

namespace partita::verifier {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;

// What the symbolic check establishes, in words that outlive it.
constexpr const char* kProved[] = {
    "every local value is a part of a serial value, by the formulas of ops and the definitions of collectives",
    "every state, gradient and output equals the serial one; partial sums are completed exactly once",
    "every collective is issued by all ranks of its group, in one order, with one kind, count, type and reduction",
    "no rank waits for another that waits for it",
    "every operand is alive, of the right micro-batch, and untouched by asynchronous operations",
    "every state and output is written, and no two live buffers overlap",
};

// Of a pipeline. That the stages' values together are the serial program's is not proved.
constexpr const char* kProvedOfStages[] = {
    "every send between stages has its receive, in one order, of one type, and every sum over stages all of them",
    "no stage waits for another that waits for it, where sends wait for their receivers",
    "every operand is alive, of the right micro-batch, and untouched by asynchronous operations",
    "every state and output is written, no two live buffers overlap, and every trained state lies on one stage",
};

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::string name = fs::relative(it->path(), folder, ec).string();
    if (it->is_regular_file(ec) && name != kCertificateFile) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

namespace {

// Of a pipeline: each stage's steps against its own graph, and what passes between the stages.
absl::StatusOr<Verdict> check_pipeline(const Bundle& bundle) {
  Verdict v{.stages = true};
  for (size_t k = 0; k < bundle.programs.size(); ++k) {
    const RankProgram& p = bundle.programs[k];
    auto run = check_steps(p.code, p.program, p.claims);
    if (!run.ok()) return absl::AbortedError(cat("stage ", k, ": ", run.status().message()));
    v.steps += run->steps;
    v.operands += run->operands;
    v.collectives += run->collectives;
  }
  PARTITA_ASSIGN_OR_RETURN(StagesReport between, check_stages(bundle));
  const runtime::Program& first = bundle.programs.front().program;
  for (const auto& axis : first.mesh) v.ranks *= axis.size;
  v.programs = static_cast<int64_t>(bundle.programs.size());
  v.states = between.states;
  v.outputs = between.outputs;
  v.micro_batches = first.micro_batches;
  return v;
}

}  // namespace

absl::StatusOr<Verdict> check_bundle(const Bundle& bundle) {
  const RankProgram& p = bundle.programs.front();
  if (p.program.samples_per_step != bundle.samples)
    return absl::AbortedError(cat("expected ", bundle.samples, " samples a step, found ", p.program.samples_per_step));
  if (bundle.programs.size() > 1) return check_pipeline(bundle);
  PARTITA_ASSIGN_OR_RETURN(PaddedSerial padded, pad_serial(bundle.serial, p.program));
  auto serial = SerialValues::create(padded.graph);
  if (!serial.ok()) return absl::AbortedError(serial.status().message());
  std::vector<int> steps(p.rank.nodes.size(), -1), code_steps = steps_of_nodes(p.code, p.claims);
  for (size_t n = code_steps.size(); n-- > 0;) {
    if (code_steps[n] >= 0) steps[p.from[n]] = code_steps[n];
  }
  auto place = [&](NodeId n) {
    std::string node = cat("node ", n, " (", quote(p.rank.origin(p.rank.nodes[n])), ")");
    return steps[n] < 0 ? cat("on every rank, ", node)
                        : cat(describe_step(p.program, steps[n]), " on every rank, ", node);
  };
  PARTITA_ASSIGN_OR_RETURN(GraphReport graph, check_graph(*serial, p.rank, padded.program, place));
  PARTITA_ASSIGN_OR_RETURN(StepsReport run, check_steps(p.code, p.program, p.claims));
  Verdict v;
  for (const auto& axis : p.program.mesh) v.ranks *= axis.size;
  v.values = graph.values;
  v.states = graph.states;
  v.outputs = graph.outputs;
  v.steps = run.steps;
  v.operands = run.operands;
  v.collectives = run.collectives;
  v.micro_batches = p.program.micro_batches;
  return v;
}

absl::Status write_certificate(const std::string& folder, const Verdict& v,
                               const std::optional<NumericVerdict>& numeric) {
  nlohmann::json files = nlohmann::json::object();
  for (const std::string& name : files_of(folder)) {
    PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(cat(folder, "/", name)));
    files[name] = {{"bytes", file.size()}, {"sha256", sha256_hex(file.bytes())}};
  }
  nlohmann::json j = {{"version", kVersion},
                      {"files", files},
                      {"ranks", v.ranks},
                      {"programs", v.programs},
                      {"proved", v.stages ? nlohmann::json(kProvedOfStages) : nlohmann::json(kProved)},
                      {"counts",
                       {{"values", v.values},
                        {"states", v.states},
                        {"outputs", v.outputs},
                        {"steps", v.steps},
                        {"operands", v.operands},
                        {"collectives", v.collectives},
                        {"micro_batches", v.micro_batches}}},
                      {"numeric", nullptr}};
  if (numeric) {
    j["numeric"] = {{"steps", numeric->steps},
                    {"tensors", numeric->tensors},
                    {"loss_error", numeric->loss_error},
                    {"tensor_error", numeric->tensor_error}};
  }
  return write_file_atomically(cat(folder, "/", kCertificateFile), j.dump(2) + "\n", Durable::kNo);
}

absl::Status check_certificate(const std::string& folder, bool thorough) {
  std::string path = cat(folder, "/", kCertificateFile);
  std::error_code ec;
  if (!fs::exists(path, ec)) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(MappedFile paper, MappedFile::open(path));
  nlohmann::json j = nlohmann::json::parse(paper.text(), nullptr, false);
  bool sound = j.is_object() && j.value("version", nlohmann::json()).is_number_integer() && j.contains("files") &&
               j["files"].is_object();
  if (!sound) return absl::DataLossError(cat(quote(path), " is damaged; run `partita verify` again or remove it"));
  if (j["version"] != kVersion)
    return absl::FailedPreconditionError(cat(quote(path), ": expected version ", kVersion, ", found ",
                                             j["version"].dump(), "; run `partita verify` again"));
  auto other = [&](const std::string& name, std::string_view what) {
    return absl::FailedPreconditionError(cat(quote(path), " is of another bundle: ", quote(name), " ", what,
                                             "; run `partita verify` again, or remove the certificate"));
  };
  for (const std::string& name : files_of(folder)) {
    if (!j["files"].contains(name)) return other(name, "is not among its files");
  }
  for (const auto& [name, entry] : j["files"].items()) {
    std::error_code gone;
    if (name.find("..") != name.npos || !entry.is_object() || !fs::exists(folder + "/" + name, gone))
      return other(name, "is missing");
    PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(cat(folder, "/", name)));
    if (entry.value("bytes", nlohmann::json()) != file.size()) return other(name, "has another size");
    bool said = thorough || name == kImageFile || name.ends_with(".json");
    if (said && entry.value("sha256", nlohmann::json()) != sha256_hex(file.bytes()))
      return other(name, "has another content");
  }
  return absl::OkStatus();
}

}  // namespace partita::verifier
