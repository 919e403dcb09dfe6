#include "tools/proof/numeric_check.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "codegen/emit_program.h"
#include "ir/type/literal.h"
#include "nlohmann/json.hpp"
#include "partitioner/localize/whole_program.h"
#include "passes/training/loss_scale.h"
#include "runtime/execute/executor.h"
#include "runtime/files/safetensors.h"
#include "tools/proof/confined.h"
#include "tools/proof/kernel_trials.h"
#include "tools/proof/reference_run.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

constexpr double kNoise = 10;      // of the difference that compiling without fusion makes
constexpr double kRounding = 3;    // of the one that first values off by a 16-bit type's rounding make
constexpr double kScale = 1 << 8;  // the most that fp16's loss scale starts from: a held step shows nothing
constexpr const char* kGradient = "gradient of ";
constexpr double kReferenceSeconds = 60;  // that the reference evaluator may take, other draws included
constexpr int64_t kMostSeconds = 3600;    // of all runs
constexpr int kMoreDraws = 2;             // of synthetic samples, all of which must agree where the first did not

// Numbers of each step.
struct Scalars {
  std::vector<double> losses, evaluations, rates, norms;
  std::vector<bool> skipped;  // whether its gradients overflowed
};

class ScalarSink : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& metrics) override {
    scalars.losses.push_back(metrics.loss.value_or(0));
    scalars.rates.push_back(metrics.lr.value_or(0));
    scalars.norms.push_back(metrics.grad_norm.value_or(0));
    scalars.skipped.push_back(metrics.skipped);
    if (metrics.evaluation_loss) scalars.evaluations.push_back(*metrics.evaluation_loss);
    return absl::OkStatus();
  }
  Scalars scalars;
};

// What a run left: its tensors stay in their files, as those of several runs would not fit into memory.
class Outcome {
 public:
  absl::Status add(const std::string& path, const std::string& prefix) {
    PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile file, runtime::SafetensorsFile::open(path));
    for (const runtime::SafetensorsEntry& entry : file.entries())
      places_[prefix + entry.name] = {files_.size(), entry.name};
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, place] : places_) all.push_back(name);
    return all;
  }
  bool has(const std::string& name) const { return values.count(name) > 0 || places_.count(name) > 0; }
  DType dtype(const std::string& name) const {
    const auto& [file, key] = places_.at(name);
    return files_[file].find(key)->dtype;
  }
  std::vector<double> tensor(const std::string& name) const {
    if (const auto known = values.find(name); known != values.end()) return known->second;
    const auto& [file, key] = places_.at(name);
    const runtime::SafetensorsEntry& entry = *files_[file].find(key);
    auto bytes = files_[file].data(entry);
    Tensor t = to_tensor(make_literal({entry.dtype, entry.shape}, {bytes.begin(), bytes.end()}));
    return is_float(entry.dtype) ? std::move(t.f) : std::vector<double>(t.i.begin(), t.i.end());
  }

  Scalars scalars;
  std::map<std::string, std::vector<double>> values;  // tensors that are in no file

 private:
  std::vector<runtime::SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, std::string>> places_;
};

// Where a run's files go: each run has its own.
struct Place {
  const std::string& folder;
  const char* name;
  std::string file(std::string_view what) const { return cat(folder, "/", name, ".", what, ".safetensors"); }
};

bool keeps_gradients(const runtime::Program& program) {
  for (const runtime::ProgramOutput& o : program.outputs) {
    if (o.name.starts_with("grad/")) return true;
  }
  return false;
}

absl::StatusOr<Outcome> run(std::vector<runtime::Program> programs, runtime::TrainOptions options, const Place& place) {
  for (runtime::Program& p : programs) {
    for (runtime::ProgramState& s : p.states) {
      if (s.name == kLossScaleState && s.initial.kind == runtime::InitialKind::kFill)
        s.initial.a = std::min(s.initial.a, kScale);
    }
  }
  options.tell = false;
  options.save = place.file("states");
  options.save_optimizer = true;
  if (options.steps > 0 && std::any_of(programs.begin(), programs.end(), keeps_gradients))
    options.save_gradients = place.file("gradients");
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  ScalarSink sink;
  PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, &sink));
  Outcome out;
  out.scalars = std::move(sink.scalars);
  PARTITA_RETURN_IF_ERROR(out.add(options.save, ""));
  if (!options.save_gradients.empty()) PARTITA_RETURN_IF_ERROR(out.add(options.save_gradients, kGradient));
  return out;
}

// The serial graph as the program of one rank that runs all micro-batches.
absl::StatusOr<runtime::Program> compile_serial(const verifier::ProgramSet& set, bool fuse) {
  int64_t samples = 0;
  for (const GraphInput& in : set.serial.inputs) {
    const Shape& shape = set.serial.type(in.value).shape;
    if (in.kind == InputKind::kData && !shape.empty()) samples = shape[0];
  }
  const runtime::Program& first = set.programs.front().program;
  const int64_t micro_batches = samples > 0 ? first.samples_per_step / samples : first.micro_batches;
  return emit_program(whole_program(set.serial, first.samples_per_step, micro_batches), {.fuse = fuse});
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

std::vector<double> minus(std::vector<double> a, const std::vector<double>& b) {
  for (size_t k = 0; k < a.size() && k < b.size(); ++k) a[k] -= b[k];
  return a;
}

// The length of a - b over `size`.
double difference(const std::vector<double>& a, const std::vector<double>& b, double size) {
  if (a.size() != b.size()) return INFINITY;
  const double off = norm(minus(a, b));
  return off == 0 ? 0 : std::isnan(off) ? INFINITY : off / size;
}
double difference(double a, double b) { return difference({a}, {b}, std::abs(b)); }

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
absl::StatusOr<Outcome> run_off(runtime::Program serial, const Outcome& first, double share,
                                runtime::TrainOptions options, const std::string& folder) {
  std::map<std::string, Literal> values;
  for (runtime::ProgramState& s : serial.states) {
    if (s.kind != StateKind::kParameter || !is_float(s.operand.dtype)) continue;
    Tensor t = Tensor::zeros({s.operand.dtype, s.placement.logical});
    t.f = first.tensor(s.name);
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
  const std::string path = cat(folder, "/off.safetensors");
  PARTITA_ASSIGN_OR_RETURN(auto writer, runtime::SafetensorsWriter::create(path, std::move(tensors)));
  for (const auto& [name, value] : values) PARTITA_RETURN_IF_ERROR(writer->write(name, value.bytes()));
  PARTITA_RETURN_IF_ERROR(writer->finish());
  PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile off, runtime::SafetensorsFile::open(path));
  options.initial = std::make_shared<const runtime::SafetensorsFile>(std::move(off));
  return run({std::move(serial)}, options, {folder, "off"});
}

// What rounding a state to its own type may change it by, relatively, over some steps.
double stored(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : dtype == DType::kF64 ? 0x1p-50 : 0x1p-22;
}

// All that is compared: the ranks, the serial program, and what tells how much rounding changes it.
struct Runs {
  Outcome ranks, serial, unfused, first;  // `first`: before any step
  std::optional<Outcome> off;             // of a program that computes in 16 bits
  // By the reference evaluator, from the same first values and from some that are off by the rounding of 32 bits.
  std::optional<Outcome> reference, reference_off;
  bool several = false;  // ranks
};

// By the reference evaluator, from parameters that are off by `share` of themselves, up and down in turns.
absl::StatusOr<Outcome> run_by_reference(const verifier::Bundle& bundle, const runtime::Program& fused,
                                         const Outcome& first, double share, const runtime::TrainOptions& options) {
  std::map<std::string, std::vector<double>> values;
  for (const std::string& name : first.names()) values.emplace(name, first.tensor(name));
  for (const State& s : bundle.serial.states) {
    const auto at = values.find(s.name);
    if (at == values.end() || s.kind != StateKind::kParameter) continue;
    for (size_t k = 0; k < at->second.size(); ++k) at->second[k] *= 1 + (k % 2 == 0 ? share : -share);
  }
  PARTITA_ASSIGN_OR_RETURN(ReferenceRun run, run_reference(bundle.serial, fused, options.data, values, options.steps));
  Outcome out;
  out.scalars.losses = std::move(run.losses);
  out.scalars.rates = std::move(run.rates);
  out.scalars.norms = std::move(run.norms);
  out.values = std::move(run.states);
  for (auto& [name, gradient] : run.gradients) out.values.emplace(kGradient + name, std::move(gradient));
  return out;
}

// Where the program computes in 32 bits or more, and is small enough.
absl::Status add_reference(const verifier::Bundle& bundle, double coarse, const runtime::TrainOptions& options,
                           Runs& runs) {
  PARTITA_ASSIGN_OR_RETURN(const runtime::Program fused, compile_serial(bundle, true));
  const double seconds = reference_seconds(bundle.serial, fused.micro_batches, options.steps);
  if (coarse > 0 || options.steps <= 0 || 2 * (1 + kMoreDraws) * seconds > kReferenceSeconds) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(runs.reference, run_by_reference(bundle, fused, runs.first, 0, options));
  PARTITA_ASSIGN_OR_RETURN(runs.reference_off, run_by_reference(bundle, fused, runs.first, 0x1p-24, options));
  return absl::OkStatus();
}

absl::StatusOr<Runs> run_all(const verifier::Bundle& bundle, const NumericOptions& options, double coarse) {
  Runs runs;
  std::vector<runtime::Program> stages;
  for (const verifier::RankProgram& p : bundle.programs) stages.push_back(p.program);
  runs.several = !stages.front().mesh.empty();
  PARTITA_ASSIGN_OR_RETURN(runs.ranks, run(std::move(stages), options.train, {options.folder, "ranks"}));
  PARTITA_ASSIGN_OR_RETURN(runtime::Program fused, compile_serial(bundle, true));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions on_one, serial_options(bundle, true, options.train));
  runtime::TrainOptions none = on_one;
  none.steps = 0;
  PARTITA_ASSIGN_OR_RETURN(runs.first, run({fused}, none, {options.folder, "first"}));
  PARTITA_ASSIGN_OR_RETURN(runs.serial, run({fused}, on_one, {options.folder, "serial"}));
  PARTITA_ASSIGN_OR_RETURN(runtime::Program unfused, compile_serial(bundle, false));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions slowly, serial_options(bundle, false, options.train));
  PARTITA_ASSIGN_OR_RETURN(runs.unfused, run({std::move(unfused)}, slowly, {options.folder, "unfused"}));
  if (coarse > 0) {
    PARTITA_ASSIGN_OR_RETURN(runs.off, run_off(std::move(fused), runs.first, coarse / 2, on_one, options.folder));
  }
  return runs;
}

class Comparison {
 public:
  // `equal`: the ranks compute the serial program; else (compressed gradients) only the first loss is its own, and the
  // rest is measured, and has to be finite.
  Comparison(const Runs& runs, double tolerance, bool equal) : runs_(runs), tolerance_(tolerance), equal_(equal) {
    verdict.steps = static_cast<int64_t>(runs.serial.scalars.losses.size());
  }

  // The ranks must agree with each side, by what that side can tell. Of a sum whose terms cancel all is rounding to the
  // reference evaluator, while one rank and several differ; a fault of all compiled programs shows beside it alone.
  absl::Status compare_compiled() { return compare({runs_.serial, runs_.off ? &*runs_.off : nullptr, kRounding, ""}); }
  absl::Status compare_reference() {
    verdict.by_reference = true;
    return compare({*runs_.reference, &*runs_.reference_off, kNoise, " by the reference evaluator"});
  }

  verifier::NumericVerdict verdict;

 private:
  struct Side {
    const Outcome& serial;
    const Outcome* off;  // the same from first values that are off by their rounding; null: none was run
    double share;        // of what that changes, that the ranks may differ by
    const char* by;
  };

  absl::Status compare(const Side& side) {
    PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the loss of step", &Scalars::losses, 1));
    PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the learning rate of step", &Scalars::rates, SIZE_MAX));
    PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the gradients' norm of step", &Scalars::norms, 0));
    PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the loss of evaluation", &Scalars::evaluations, 0));
    return compare_tensors(side);
  }

  // Numbers of each step, the first `held` of them also where gradients are compressed.
  absl::Status compare_scalars(const Side& side, std::string_view what, std::vector<double> Scalars::*numbers,
                               size_t held) {
    const auto of = [&](const Outcome& o) -> const std::vector<double>& { return o.scalars.*numbers; };
    const std::vector<double>&all = of(runs_.ranks), &compiled = of(runs_.serial), &serial = of(side.serial);
    if (all.size() != compiled.size())
      return absl::AbortedError(cat("numeric: ", what, ": expected ", compiled.size(), ", found ", all.size()));
    for (size_t k = 0; k < serial.size(); ++k) {
      const double one = serial[k], found = difference(all[k], one);
      const double allowed = noise(side, one, compiled[k], [&](const Outcome& o, double from) {
        return k < of(o).size() ? difference(of(o)[k], from) : 0;
      });
      verdict.loss_error = std::max(verdict.loss_error, found);
      if (beyond(found, allowed, equal_ || k < held))
        return absl::AbortedError(cat("numeric: ", what, " ", k, ": expected ", one, side.by, ", found ", all[k],
                                      " on ", runs_.several ? "all ranks" : "one rank"));
    }
    return absl::OkStatus();
  }

  absl::Status compare_tensors(const Side& side) {
    verdict.tensors = 0;
    for (const std::string& name : runs_.serial.names()) {
      if (!runs_.ranks.has(name)) return absl::AbortedError(cat("numeric: ", quote(name), ": expected it, found none"));
      ++verdict.tensors;
      if (!side.serial.has(name)) continue;
      const std::vector<double> one = side.serial.tensor(name), compiled = runs_.serial.tensor(name);
      const double size = size_of(name, one), found = difference(runs_.ranks.tensor(name), one, size);
      const double allowed = noise(side, one, compiled, [&](const Outcome& o, const std::vector<double>& from) {
        return o.has(name) ? difference(o.tensor(name), from, size) : 0;
      });
      if (beyond(found, allowed, equal_))
        return absl::AbortedError(cat("numeric: ", quote(name), " after ", verdict.steps,
                                      " steps: expected the serial program's", side.by, ", found ",
                                      runs_.first.has(name) ? "a difference of " : "a relative difference of ", found,
                                      runs_.first.has(name) ? " times its update" : ""));
      if (allowed < kNoise * tolerance_) verdict.tensor_error = std::max(verdict.tensor_error, found);
    }
    return absl::OkStatus();
  }

  // How far rounding may take the ranks from a side, by `off`: how far an outcome is from a number or tensor.
  template <typename T, typename Off>
  double noise(const Side& side, const T& one, const T& compiled, Off off) const {
    const double unfused = kNoise * off(runs_.unfused, compiled);
    return side.off == nullptr ? unfused : std::max(unfused, side.share * off(*side.off, one));
  }

  bool beyond(double found, double noise, bool held) const {
    return held ? found > std::max(tolerance_, noise) : std::isinf(found);
  }

  // What a difference is held against: of a state the length of its update, and as much of its own that rounding the
  // state itself may be told from the tolerance.
  double size_of(const std::string& name, const std::vector<double>& expected) const {
    if (!runs_.first.has(name)) return norm(expected);
    return norm(minus(expected, runs_.first.tensor(name))) +
           stored(runs_.first.dtype(name)) / tolerance_ * norm(expected);
  }

  const Runs& runs_;
  const double tolerance_;
  const bool equal_;
};

// On the samples that options.train names.
absl::StatusOr<verifier::NumericVerdict> compare(const verifier::Bundle& bundle, const NumericOptions& options) {
  for (const verifier::RankProgram& p : bundle.programs) {
    if (verifier::updates_each(p.program))
      return absl::InvalidArgumentError(
          "numeric: with schedule: pipedream and several micro-batches a step the ranks do not compute the serial "
          "program, by choice; compile with batch.global of one micro-batch to compare, or leave --numeric out");
  }
  const double coarse = rounding(bundle.serial), tolerance = std::max(options.tolerance, coarse);
  PARTITA_ASSIGN_OR_RETURN(Runs runs, run_all(bundle, options, coarse));
  if (runs.serial.scalars.losses.empty()) return absl::AbortedError("numeric: expected steps, found none");
  // A rank sums the 16-bit products of fewer samples: near the largest number, one may overflow where the other does
  // not.
  if (runs.ranks.scalars.skipped != runs.serial.scalars.skipped)
    return absl::FailedPreconditionError(
        "numeric: the loss scale is at its limit: gradients of some step overflow in the serial program and not on the "
        "ranks, or the other way round, and what follows cannot be compared; compare on other samples (--data)");
  Comparison comparison(runs, tolerance, bundle.compress == "none");
  PARTITA_RETURN_IF_ERROR(comparison.compare_compiled());
  PARTITA_RETURN_IF_ERROR(add_reference(bundle, coarse, options.train, runs));
  if (runs.reference) PARTITA_RETURN_IF_ERROR(comparison.compare_reference());
  return comparison.verdict;
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

namespace {

using Json = nlohmann::json;

std::string to_text(const verifier::NumericVerdict& v) {
  const verifier::KernelTrials& t = v.kernels;
  return Json{{"steps", v.steps},
              {"kernels", {t.generated, t.library, t.draws, t.elements}},
              {"left_out", t.left_out},
              {"tensors", v.tensors},
              {"loss_error", v.loss_error},
              {"tensor_error", v.tensor_error},
              {"by_reference", v.by_reference},
              {"kink", v.kink}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<verifier::NumericVerdict> from_text(const std::string& text) {
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object()) return absl::AbortedError("numeric: the process that ran the bundle's code told nothing sound");
  const auto counts = j.value("kernels", std::vector<int64_t>{0, 0, 0, 0});
  return verifier::NumericVerdict{.steps = j.value("steps", int64_t{0}),
                                  .tensors = j.value("tensors", int64_t{0}),
                                  .loss_error = j.value("loss_error", 0.0),
                                  .tensor_error = j.value("tensor_error", 0.0),
                                  .by_reference = j.value("by_reference", false),
                                  .kink = j.value("kink", ""),
                                  .kernels = {counts.at(0), counts.at(1), counts.at(2), counts.at(3),
                                              j.value("left_out", std::vector<std::string>{})}};
}

}  // namespace

absl::StatusOr<verifier::NumericVerdict> check_numeric_apart(const verifier::Bundle& bundle, NumericOptions options) {
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create("the runs"));
  options.folder = folder.path();
  const Confinement limits{.folder = folder.path(),
                           .memory_bytes = ::sysconf(_SC_PHYS_PAGES) / 10 * 9 * ::sysconf(_SC_PAGESIZE),
                           .seconds = kMostSeconds};
  PARTITA_ASSIGN_OR_RETURN(ConfinedResult result, run_confined(limits, [&]() -> absl::StatusOr<std::string> {
                             PARTITA_ASSIGN_OR_RETURN(auto trials, try_kernels(bundle));
                             PARTITA_ASSIGN_OR_RETURN(auto verdict, check_numeric(bundle, options));
                             verdict.kernels = std::move(trials);
                             return to_text(verdict);
                           }));
  PARTITA_ASSIGN_OR_RETURN(verifier::NumericVerdict verdict, from_text(result.text));
  verdict.confined = std::move(result.held);
  verdict.unconfined = std::move(result.lacking);
  return verdict;
}

}  // namespace partita
