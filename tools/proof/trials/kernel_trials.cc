#include "tools/proof/trials/kernel_trials.h"

#include <omp.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/nest/nest_text.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/kernel_module.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"
#include "tools/proof/trials/library_meaning.h"
#include "tools/proof/trials/nest_meaning.h"
#include "tools/proof/trials/sampled_indices.h"
#include "tools/proof/trials/tree_trial.h"
#include "tools/proof/trials/trial_memory.h"

namespace partita {
namespace {

using runtime::Operand;
using runtime::Step;
using runtime::StepKind;

constexpr Draw kDraws[] = {Draw::kOrdinary, Draw::kPositive, Draw::kSmall, Draw::kLarge, Draw::kNan};
// Of the library, where a result is linear in each operand; exponentials of infinities and of large numbers end in
// 32 bits where they do not in double precision. And of what takes long: most of them are ordinary numbers.
constexpr Draw kLinearDraws[] = {Draw::kOrdinary, Draw::kSmall, Draw::kLarge, Draw::kNan};
constexpr Draw kOtherDraws[] = {Draw::kOrdinary, Draw::kSmall, Draw::kNan};
constexpr Draw kHeavyDraws[] = {Draw::kNan};
// Of generated code that works on much memory: each draw is written and compared whole.
constexpr Draw kLongDraws[] = {Draw::kOrdinary, Draw::kNan};
constexpr int64_t kLong = int64_t{128} << 20;   // bytes
constexpr double kHeavy = 2e10;                 // floating point operations
constexpr int64_t kRare = 24;                   // one number in so many is special, for generated code
constexpr double kWork = 1e5, kMostWork = 2e7;  // scalar operations of a nest for each draw: about, and at most
constexpr int64_t kTreeElements = 10000;        // of a sum over micro-batches
constexpr int64_t kMostBytes = int64_t{8} << 30;
constexpr int64_t kMuch = int64_t{1} << 30;  // bytes of which two kernels do not work at once
constexpr int64_t kNeighbours = 2;           // units that run one after the other

const char* name_of(Draw draw) {
  switch (draw) {
    case Draw::kOrdinary:
      return "ordinary numbers";
    case Draw::kPositive:
      return "positive numbers";
    case Draw::kSmall:
      return "zeros and the smallest numbers";
    case Draw::kLarge:
      return "infinities and large numbers";
    case Draw::kNan:
      return "NaN";
  }
  return "";
}

// Which operands lie where others do: those of a step in place are another case than those apart.
std::string overlaps(const Step& step) {
  std::string all;
  for (size_t a = 0; a < step.operands.size(); ++a) {
    for (size_t b = a + 1; b < step.operands.size(); ++b) {
      const Operand &x = step.operands[a], &y = step.operands[b];
      const int64_t apart = y.address.offset - x.address.offset;
      if (x.dtype == DType::kInvalid || y.dtype == DType::kInvalid || x.address.region != y.address.region) continue;
      if (apart < runtime::operand_bytes(x) && -apart < runtime::operand_bytes(y))
        append(all, " ", a, "+", apart, "=", b);
    }
  }
  return all;
}

template <typename T>
std::string text_of(const T& value) {
  return cat(value);
}
template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string all;
  for (const T& v : values) append(all, v, " ");
  return all;
}

// A library step's name, operands and parameters.
std::string key_of(const Step& step) {
  std::string key = step.name;
  for (const Operand& o : step.operands) append(key, " ", to_string(TensorType{o.dtype, o.shape}));
  for (const auto& [name, value] : step.params)
    append(key, " ", name, "=", std::visit([](const auto& v) { return text_of(v); }, value));
  return key + overlaps(step);
}

enum class Kernels { kGenerated, kLibrary };

// Of kernels of one kind. Those of both run at once; `much_memory` is held by the one that works on much.
class Trials {
 public:
  Trials(Kernels kind, std::mutex& much_memory) : kind_(kind), much_memory_(much_memory) {}

  absl::Status run(const verifier::Bundle& bundle) {
    for (const verifier::RankProgram& p : bundle.programs) PARTITA_RETURN_IF_ERROR(run(p));
    if (!bundle.evaluation) return absl::OkStatus();
    for (const verifier::RankProgram& p : bundle.evaluation->programs) PARTITA_RETURN_IF_ERROR(run(p));
    return absl::OkStatus();
  }

  // Adds what was tried, and what was left out, to `all`.
  void done(verifier::KernelTrials& all) const {
    all.generated += trials_.generated;
    all.library += trials_.library;
    all.draws += trials_.draws;
    all.elements += trials_.elements;
    for (const auto& [why, steps] : left_out_)
      all.left_out.push_back(
          cat(steps.front(), steps.size() > 1 ? cat(" and ", steps.size() - 1, " others") : "", ": ", why));
  }

 private:
  absl::Status run(const verifier::RankProgram& p) {
    const runtime::Program& program = p.program;
    if (runtime::needs_device(program)) {
      if (kind_ == Kernels::kGenerated) leave_out("generated and library kernels", "they are a GPU's");
      return absl::OkStatus();
    }
    std::unique_ptr<runtime::KernelModule> module;
    if (kind_ == Kernels::kGenerated && !program.kernels.empty()) {
      PARTITA_ASSIGN_OR_RETURN(module, runtime::KernelModule::load(program.kernels));
    }
    std::map<std::string, const KernelNest*> nests;
    for (const KernelNest& k : p.nests.kernels) nests[k.name] = &k;
    for (const runtime::ProgramSegment& segment : program.segments) {
      for (const Step& step : segment.steps) {
        absl::Status status;
        if (step.kind == StepKind::kKernel && kind_ == Kernels::kGenerated) {
          PARTITA_ASSIGN_OR_RETURN(const runtime::KernelFunction function, module->find(step.name));
          status = run_nest(step, nests.at(step.name)->nest, function);
        } else if (step.kind == StepKind::kLibrary && kind_ == Kernels::kLibrary) {
          status = TreeTrial::is_tree(step) ? run_tree(step) : run_library(step);
        }
        if (!status.ok()) return with_context(status, cat("numeric: ", runtime::describe_step(program, step)));
      }
    }
    return absl::OkStatus();
  }

  void leave_out(std::string what, const std::string& why) { left_out_[why].push_back(std::move(what)); }

  // False where it was tried already, or cannot be.
  bool begin(const Step& step, const std::string& key) {
    if (!known_.insert(key).second) return false;
    if (TrialMemory::bytes(step) <= kMostBytes) return true;
    leave_out(step.name, cat("its operands take more than ", kMostBytes >> 30, " GiB"));
    return false;
  }

  std::unique_lock<std::mutex> hold(const Step& step) const {
    return TrialMemory::bytes(step) > kMuch ? std::unique_lock(much_memory_) : std::unique_lock<std::mutex>();
  }

  absl::Status run_nest(const Step& step, const LoopNest& nest, runtime::KernelFunction function) {
    if (!begin(step, to_string(nest) + overlaps(step))) return absl::OkStatus();
    const std::unique_lock<std::mutex> alone = hold(step);
    PARTITA_ASSIGN_OR_RETURN(TrialMemory memory, TrialMemory::allocate(step));
    NestMeaning meaning(nest, memory.before());
    if (meaning.least_work() > kMostWork) {
      leave_out(step.name, "its sums are too long for the reference");
      return absl::OkStatus();
    }
    ++trials_.generated;
    const std::span<const Draw> draws =
        TrialMemory::bytes(step) > kLong ? std::span<const Draw>(kLongDraws) : std::span<const Draw>(kDraws);
    for (const Draw draw : draws) {
      memory.draw(draw, ++seed_, kRare, {});
      const std::vector<int64_t> units = some_units(step.units);
      for (size_t k = units.size(); k-- > 0;)
        function(reinterpret_cast<char* const*>(memory.now().data()), units[k], units[k] + 1);
      for (int64_t unit : units) {
        for (const WrittenElement& w : meaning.sample(unit, kWork / static_cast<double>(units.size()), engine_))
          PARTITA_RETURN_IF_ERROR(compare(step, memory, static_cast<size_t>(w.operand), w.element, w.value, draw));
      }
      for (int64_t unit : units) {
        meaning.each_written(unit, [&](int operand, int64_t element) {
          const int64_t size = dtype_size(nest.operands[static_cast<size_t>(operand)]);
          memory.restore(static_cast<size_t>(operand), element * size, size);
        });
      }
      PARTITA_RETURN_IF_ERROR(check_beside(memory, draw));
    }
    return absl::OkStatus();
  }

  absl::Status run_library(const Step& step) {
    if (!begin(step, key_of(step))) return absl::OkStatus();
    const auto meaning = LibraryMeaning::of(step);
    if (absl::IsUnimplemented(meaning.status())) {
      leave_out(step.name, std::string(meaning.status().message()));
      return absl::OkStatus();
    }
    PARTITA_RETURN_IF_ERROR(meaning.status());
    const std::unique_lock<std::mutex> alone = hold(step);
    PARTITA_ASSIGN_OR_RETURN(TrialMemory memory, TrialMemory::allocate(step));
    PARTITA_ASSIGN_OR_RETURN(const auto kernel, runtime::prepare_kernel(step, {.threads = omp_get_max_threads()}));
    ++trials_.library;
    const bool heavy = static_cast<double>(step.flops) > kHeavy;
    const std::span<const Draw> draws = heavy                  ? std::span<const Draw>(kHeavyDraws)
                                        : meaning->is_linear() ? std::span<const Draw>(kLinearDraws)
                                                               : std::span<const Draw>(kOtherDraws);
    for (const Draw draw : draws) {
      memory.draw(draw, ++seed_, meaning->rare(), meaning->bounds());
      const auto parts = meaning->sample(memory.before(), engine_);
      kernel->run(memory.now());
      for (const LibraryMeaning::Part& part : parts) {
        for (size_t k = 0; k < part.elements.size(); ++k)
          PARTITA_RETURN_IF_ERROR(compare(step, memory, part.operand, part.elements[k], part.values[k], draw,
                                          (draw == Draw::kNan || draw == Draw::kLarge) && meaning->spreads()));
      }
      for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k)
        memory.restore(k, 0, runtime::operand_bytes(step.operands[k]));
      PARTITA_RETURN_IF_ERROR(check_beside(memory, draw));
    }
    return absl::OkStatus();
  }

  absl::Status run_tree(const Step& step) {
    if (!begin(step, key_of(step))) return absl::OkStatus();
    const std::unique_lock<std::mutex> alone = hold(step);
    PARTITA_ASSIGN_OR_RETURN(TrialMemory memory, TrialMemory::allocate(step));
    PARTITA_ASSIGN_OR_RETURN(const auto kernel, runtime::prepare_kernel(step, {.threads = omp_get_max_threads()}));
    ++trials_.library;
    const size_t result = step.operands.size() - 1;
    const int64_t bytes = runtime::operand_bytes(step.operands[result]);
    for (const Draw draw : kLinearDraws) {
      TreeTrial tree(step, sampled_indices(elements(step.operands[result].shape), kTreeElements, engine_));
      for (int64_t term = 1; term <= tree.terms(); ++term) {
        memory.draw(draw, ++seed_, kRare, {});
        tree.begin(memory);
        kernel->run(memory.now());
        tree.end(memory);
        const std::vector<double> sums = term == tree.terms() ? tree.sums() : std::vector<double>{};
        for (size_t k = 0; k < sums.size(); ++k)
          PARTITA_RETURN_IF_ERROR(compare(step, memory, result, tree.elements()[k], {{sums[k], 0}, 0}, draw));
        memory.restore(result, 0, bytes);
        PARTITA_RETURN_IF_ERROR(check_beside(memory, draw));
      }
    }
    return absl::OkStatus();
  }

  // The first, the last and some in between, each with a neighbour: one unit may not undo what another reads.
  std::vector<int64_t> some_units(int64_t units) {
    std::set<int64_t> some;
    for (int64_t from : sampled_indices(units, 3, engine_)) {
      for (int64_t u = from; u < from + kNeighbours; ++u) some.insert(std::min(u, units - 1));
    }
    if (units > 1) some.insert(units - 2);
    return {some.begin(), some.end()};
  }

  absl::Status compare(const Step& step, const TrialMemory& memory, size_t operand, int64_t element,
                       const BoundedValue& expected, Draw draw, bool may_be_nan = false) {
    const DType type = step.operands[operand].dtype;
    const Literal now{{type, step.operands[operand].shape}, nullptr, memory.now()[operand]};
    ScalarValue found;
    if (is_float(type)) {
      found.f = element_f(now, element);
    } else {
      found.i = element_i(now, element);
    }
    if (may_be_nan && std::isnan(found.f)) return absl::OkStatus();
    trials_.elements += std::isfinite(expected.off);
    if (allows(type, expected, found)) return absl::OkStatus();
    const auto text = [&](ScalarValue v) {
      return !is_float(type) ? cat(v.i) : std::isnan(v.f) ? std::string("NaN") : cat(v.f);
    };
    return absl::AbortedError(cat("drawn operands of ", name_of(draw), ": element ", element, " of operand ", operand,
                                  ": expected ", text(expected.value), " within ", expected.off, ", found ",
                                  text(found)));
  }

  absl::Status check_beside(const TrialMemory& memory, Draw draw) {
    ++trials_.draws;
    const std::string where = memory.written_beside();
    if (where.empty()) return absl::OkStatus();
    return absl::AbortedError(
        cat("drawn operands of ", name_of(draw), ": expected nothing to be written but its results, found ", where));
  }

  const Kernels kind_;
  std::mutex& much_memory_;
  verifier::KernelTrials trials_;
  std::set<std::string> known_;
  std::map<std::string, std::vector<std::string>> left_out_;  // by why
  std::mt19937_64 engine_{20250625};
  uint64_t seed_ = 0;
};

}  // namespace

absl::StatusOr<verifier::KernelTrials> try_kernels(const verifier::Bundle& bundle) {
  std::mutex much_memory;
  Trials generated(Kernels::kGenerated, much_memory), library(Kernels::kLibrary, much_memory);
  absl::Status of_library;
  std::thread other([&] { of_library = library.run(bundle); });
  const absl::Status of_generated = generated.run(bundle);
  other.join();
  PARTITA_RETURN_IF_ERROR(of_generated);
  PARTITA_RETURN_IF_ERROR(of_library);
  verifier::KernelTrials all;
  generated.done(all);
  library.done(all);
  return all;
}

}  // namespace partita
