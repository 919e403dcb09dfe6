#include "tools/proof/numeric_check.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/emit_program.h"
#include "ir/type/literal.h"
#include "passes/training/loss_scale.h"
#include "runtime/execute/executor.h"
#include "runtime/files/safetensors.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using Numbers = std::map<std::string, std::vector<double>>;

constexpr double kNoise = 10;      // of the difference that compiling without fusion makes
constexpr double kRounding = 3;    // of the one that first values off by a 16-bit type's rounding make
constexpr double kScale = 1 << 8;  // the most that fp16's loss scale starts from: a held step shows nothing
constexpr int kMoreDraws = 2;      // of synthetic samples, all of which must agree where the first did not

class LossSink : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& metrics) override {
    losses_.push_back(metrics.loss.value_or(0));
    skipped_.push_back(metrics.skipped);
    if (metrics.evaluation_loss) evaluations_.push_back(*metrics.evaluation_loss);
    return absl::OkStatus();
  }
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<bool>& skipped() const { return skipped_; }
  const std::vector<double>& evaluations() const { return evaluations_; }

 private:
  std::vector<double> losses_, evaluations_;
  std::vector<bool> skipped_;
};

struct Outcome {
  std::vector<double> losses, evaluations;
  std::vector<bool> skipped;  // per step: whether its gradients overflowed
  Numbers tensors;
};

// A folder for the runs' results that goes away with its owner.
class ResultFolder {
 public:
  ResultFolder() : path_((fs::temp_directory_path() / cat("partita-verify-", getpid())).string()) {
    std::error_code ec;
    fs::create_directories(path_, ec);
  }
  ~ResultFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  std::string file(std::string_view name) const { return cat(path_, "/", name); }

 private:
  std::string path_;
};

absl::Status read_numbers(const std::string& path, std::string_view prefix, Numbers& into) {
  PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile file, runtime::SafetensorsFile::open(path));
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    auto bytes = file.data(entry);
    Tensor t = to_tensor(make_literal({entry.dtype, entry.shape}, {bytes.begin(), bytes.end()}));
    std::vector<double>& out = into[cat(prefix, entry.name)];
    out = is_float(entry.dtype) ? std::move(t.f) : std::vector<double>(t.i.begin(), t.i.end());
  }
  return absl::OkStatus();
}

bool keeps_gradients(const runtime::Program& program) {
  for (const runtime::ProgramOutput& o : program.outputs) {
    if (o.name.starts_with("grad/")) return true;
  }
  return false;
}

absl::StatusOr<Outcome> run(std::vector<runtime::Program> programs, runtime::TrainOptions options,
                            const ResultFolder& folder) {
  for (runtime::Program& p : programs) {
    for (runtime::ProgramState& s : p.states) {
      if (s.name == kLossScaleState && s.initial.kind == runtime::InitialKind::kFill)
        s.initial.a = std::min(s.initial.a, kScale);
    }
  }
  options.save = folder.file("parameters.safetensors");
  if (std::any_of(programs.begin(), programs.end(), keeps_gradients))
    options.save_gradients = folder.file("gradients.safetensors");
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  LossSink sink;
  PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, &sink));
  Outcome out{sink.losses(), sink.evaluations(), sink.skipped(), {}};
  PARTITA_RETURN_IF_ERROR(read_numbers(options.save, "", out.tensors));
  if (!options.save_gradients.empty())
    PARTITA_RETURN_IF_ERROR(read_numbers(options.save_gradients, "gradient of ", out.tensors));
  return out;
}

// The serial graph as the program of one rank that runs all micro-batches.
absl::StatusOr<runtime::Program> compile_serial(const verifier::ProgramSet& set, bool fuse) {
  LocalProgram local;
  local.graph = set.serial;
  auto place = [&](ValueId v, std::vector<PlacedTensor>& into) {
    const Shape& shape = set.serial.type(v).shape;
    into.push_back({shape, Sharding::replicated(shape)});
  };
  int64_t samples = 0;
  for (const GraphInput& in : local.graph.inputs) {
    place(in.value, local.inputs);
    const Shape& shape = set.serial.type(in.value).shape;
    if (in.kind == InputKind::kData && !shape.empty()) samples = shape[0];
  }
  for (const State& s : local.graph.states) place(s.value, local.states);
  for (const GraphOutput& o : local.graph.outputs) place(o.value, local.outputs);
  const runtime::Program& first = set.programs.front().program;
  local.samples_per_step = first.samples_per_step;
  local.micro_batches = samples > 0 ? local.samples_per_step / samples : first.micro_batches;
  return emit_program(local, {.fuse = fuse});
}

// The same options for that program: evaluation is of one rank too.
absl::StatusOr<runtime::TrainOptions> serial_options(const verifier::Bundle& bundle, bool fuse,
                                                     runtime::TrainOptions options) {
  if (!bundle.evaluation) return options;
  PARTITA_ASSIGN_OR_RETURN(runtime::Program program, compile_serial(*bundle.evaluation, fuse));
  PARTITA_ASSIGN_OR_RETURN(options.evaluate.programs, runtime::LoadedPrograms::load({std::move(program)}));
  return options;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  std::vector<double> d(a.size());
  for (size_t k = 0; k < a.size(); ++k) d[k] = a[k] - b[k];
  double size = norm(b), off = norm(d);
  return off == 0 ? 0 : std::isnan(off) ? INFINITY : off / size;
}

// Half the distance from 1 to the next number of the narrowest float type that the graph computes in.
double rounding(const Graph& graph) {
  double coarsest = 0;
  for (const Value& v : graph.values) {
    if (v.type.dtype == DType::kBF16) coarsest = std::max(coarsest, std::ldexp(1.0, -8));
    if (v.type.dtype == DType::kF16) coarsest = std::max(coarsest, std::ldexp(1.0, -11));
  }
  return coarsest;
}

// The serial program from parameters that are off by `share` of themselves, up and down in turns: every value that is
// then rounded to 16 bits is rounded anew, as it is on ranks that compute parts of sums.
absl::StatusOr<Outcome> run_off(runtime::Program serial, double share, runtime::TrainOptions options,
                                const ResultFolder& folder) {
  runtime::TrainOptions none = options;
  none.steps = 0;
  PARTITA_ASSIGN_OR_RETURN(Outcome first, run({serial}, none, folder));
  std::map<std::string, Literal> values;
  for (runtime::ProgramState& s : serial.states) {
    if (s.kind != StateKind::kParameter || !is_float(s.operand.dtype)) continue;
    Tensor t = Tensor::zeros({s.operand.dtype, s.placement.logical});
    t.f = first.tensors.at(s.name);
    for (size_t k = 0; k < t.f.size(); ++k) t.f[k] *= 1 + (k % 2 == 0 ? share : -share);
    values.emplace(s.name, to_literal(t));
    s.initial.kind = runtime::InitialKind::kFile;
  }
  for (const runtime::SafetensorsEntry& e : options.initial->entries()) {
    std::vector<std::byte> bytes(static_cast<size_t>(e.end - e.begin));
    PARTITA_RETURN_IF_ERROR(options.initial->read(e.name, std::vector<int64_t>(e.shape.size(), 0), e.shape, bytes));
    values.try_emplace(e.name, make_literal({e.dtype, e.shape}, std::move(bytes)));
  }
  std::vector<runtime::TensorInfo> tensors;
  for (const auto& [name, value] : values) tensors.push_back({name, value.type.dtype, value.type.shape});
  const std::string path = folder.file("off.safetensors");
  PARTITA_ASSIGN_OR_RETURN(auto writer, runtime::SafetensorsWriter::create(path, std::move(tensors)));
  for (const auto& [name, value] : values) PARTITA_RETURN_IF_ERROR(writer->write(name, value.bytes()));
  PARTITA_RETURN_IF_ERROR(writer->finish());
  PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile off, runtime::SafetensorsFile::open(path));
  options.initial = std::make_shared<const runtime::SafetensorsFile>(std::move(off));
  return run({std::move(serial)}, options, folder);
}

// On the samples that options.train names.
absl::StatusOr<verifier::NumericVerdict> compare(const verifier::Bundle& bundle, const NumericOptions& options) {
  for (const verifier::RankProgram& p : bundle.programs) {
    if (verifier::updates_each(p.program))
      return absl::InvalidArgumentError(
          "numeric: with schedule: pipedream and several micro-batches a step the ranks do not compute the serial "
          "program, by choice; compile with batch.global of one micro-batch to compare, or leave --numeric out");
  }
  ResultFolder folder;
  std::vector<runtime::Program> stages;
  for (const verifier::RankProgram& p : bundle.programs) stages.push_back(p.program);
  const bool several = !stages.front().mesh.empty();
  PARTITA_ASSIGN_OR_RETURN(Outcome ranks, run(std::move(stages), options.train, folder));
  PARTITA_ASSIGN_OR_RETURN(runtime::Program fused, compile_serial(bundle, true));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions on_one, serial_options(bundle, true, options.train));
  PARTITA_ASSIGN_OR_RETURN(Outcome serial, run({fused}, on_one, folder));
  PARTITA_ASSIGN_OR_RETURN(runtime::Program unfused, compile_serial(bundle, false));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions slowly, serial_options(bundle, false, options.train));
  PARTITA_ASSIGN_OR_RETURN(Outcome other, run({std::move(unfused)}, slowly, folder));
  const double coarse = rounding(bundle.serial), tolerance = std::max(options.tolerance, coarse);
  std::optional<Outcome> off;
  if (coarse > 0) {
    PARTITA_ASSIGN_OR_RETURN(off, run_off(std::move(fused), coarse / 2, on_one, folder));
  }
  // With compressed gradients only the first loss is the serial program's; the rest is measured, and has to be finite.
  const bool equal = bundle.compress == "none";
  auto beyond = [&](double found, double noise, bool held) {
    return held ? found > std::max(tolerance, noise) : std::isinf(found);
  };
  verifier::NumericVerdict verdict;
  verdict.steps = static_cast<int64_t>(serial.losses.size());
  if (ranks.losses.size() != serial.losses.size() || serial.losses.empty())
    return absl::AbortedError(cat("numeric: expected ", serial.losses.size(), " steps, found ", ranks.losses.size()));
  // A rank sums the 16-bit products of fewer samples: near the largest number, one may overflow where the other does
  // not.
  if (ranks.skipped != serial.skipped)
    return absl::FailedPreconditionError(
        "numeric: the loss scale is at its limit: gradients of some step overflow in the serial program and not on the "
        "ranks, or the other way round, and what follows cannot be compared; compare on other samples (--data)");
  auto compare_losses = [&](std::string_view what, std::vector<double> Outcome::*losses, size_t held) -> absl::Status {
    const auto &one = serial.*losses, &all = ranks.*losses;
    if (all.size() != one.size())
      return absl::AbortedError(cat("numeric: expected ", one.size(), " of ", what, ", found ", all.size()));
    for (size_t k = 0; k < one.size(); ++k) {
      const double found = difference({all[k]}, {one[k]});
      double noise = kNoise * difference({(other.*losses)[k]}, {one[k]});
      if (off && k < ((*off).*losses).size())
        noise = std::max(noise, kRounding * difference({((*off).*losses)[k]}, {one[k]}));
      verdict.loss_error = std::max(verdict.loss_error, found);
      if (beyond(found, noise, equal || k < held))
        return absl::AbortedError(cat("numeric: ", what, " ", k, ": expected ", one[k], ", found ", all[k], " on ",
                                      several ? "all ranks" : "one rank"));
    }
    return absl::OkStatus();
  };
  PARTITA_RETURN_IF_ERROR(compare_losses("the loss of step", &Outcome::losses, 1));
  PARTITA_RETURN_IF_ERROR(compare_losses("the loss of evaluation", &Outcome::evaluations, 0));
  for (const auto& [name, expected] : serial.tensors) {
    auto here = ranks.tensors.find(name);
    if (here == ranks.tensors.end())
      return absl::AbortedError(cat("numeric: ", quote(name), ": expected it, found none"));
    auto from = [&](const Outcome& o) {
      auto at = o.tensors.find(name);
      return at == o.tensors.end() ? 0 : difference(at->second, expected);
    };
    double found = from(ranks), noise = kNoise * from(other);
    if (off) noise = std::max(noise, kRounding * from(*off));
    ++verdict.tensors;
    if (beyond(found, noise, equal))
      return absl::AbortedError(cat("numeric: ", quote(name), " after ", verdict.steps,
                                    " steps: expected the serial program's, found a relative difference of ", found));
    if (noise < kNoise * tolerance) verdict.tensor_error = std::max(verdict.tensor_error, found);
  }
  return verdict;
}

}  // namespace

absl::StatusOr<verifier::NumericVerdict> check_numeric(const verifier::Bundle& bundle, const NumericOptions& options) {
  auto first = compare(bundle, options);
  const runtime::DataConfig& data = options.train.data;
  if (first.status().code() != absl::StatusCode::kAborted || data.kind != DataKind::kSynthetic) return first;
  // A value that lies at a kink (of a relu, between two maxima) falls on either side by rounding, and its gradient
  // with it. That is so on some samples; a wrong program is wrong on all.
  verifier::NumericVerdict verdict;
  for (int draw = 1; draw <= kMoreDraws; ++draw) {
    NumericOptions other = options;
    other.train.data.seed += draw;
    auto again = compare(bundle, other);
    if (!again.ok()) return first;
    if (draw == 1 || again->tensor_error > verdict.tensor_error) verdict = *again;
  }
  verdict.kink = std::string(first.status().message());
  return verdict;
}

}  // namespace partita
