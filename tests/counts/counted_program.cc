#include "tests/counts/counted_program.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/nvptx/assembler.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/params.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"

namespace partita::counts {
namespace {

using runtime::Operand;
using runtime::Program;
using runtime::Region;
using runtime::Step;
using runtime::StepKind;

constexpr int64_t kNearBytes = 32 << 10;  // of a processor's 128 to 228 KiB, which several blocks share
constexpr int64_t kDrawnBytes = 4 << 20;  // operands up to here hold numbers, larger ones zeros
constexpr const char* kVendors[] = {"matmul",           "multiply_fp8", "conv",          "conv_grad_data",
                                    "conv_grad_weight", "attention",    "attention_grad"};
constexpr const char* kProducts[] = {"grouped_matmul", "grouped_matmul_grad"};

template <typename Names>
bool is_one_of(const std::string& name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Precision precision_of(const Step& step) {
  switch (step.operands[0].dtype) {
    case DType::kBF16:
      return Precision::kBf16;
    case DType::kF16:
      return Precision::kFp16;
    case DType::kU8:
      return Precision::kFp8;
    default:
      return runtime::int_param(step.params, "tf32", 0) != 0 ? Precision::kTf32 : Precision::kFp32;
  }
}

// What two steps have to share to be one row.
std::string key_of(const Step& step) {
  std::string key = cat(step.name, " ", step.units);
  for (const Operand& o : step.operands) {
    append(key, " ", dtype_name(o.dtype));
    for (int64_t n : o.shape) append(key, ",", n);
  }
  for (const auto& [name, value] : step.params) {
    append(key, " ", name);
    if (const auto* n = std::get_if<int64_t>(&value)) append(key, "=", *n);
    if (const auto* text = std::get_if<std::string>(&value)) append(key, "=", *text);
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      for (int64_t n : *list) append(key, ",", n);
    }
  }
  return key;
}

class Counter {
 public:
  explicit Counter(Program program) : program_(std::move(program)) {}
  ~Counter() { stand_in::watch(nullptr); }

  absl::StatusOr<CountedProgram> run(const std::string& assembler) {
    if (program_.portable_kernels.empty())
      return absl::FailedPreconditionError(cat("the program for '", program_.target,
                                               "' has no PTX; expected a bundle that was compiled with --target "
                                               "cuda:sm_80 or another architecture whose bundles carry it"));
    PARTITA_RETURN_IF_ERROR(read_registers(assembler));
    // Code for the architecture itself is none that the interpreter has.
    program_.kernels.clear();
    program_.target = "cuda:sm_80";
    stand_in::watch(&counter_);
    PARTITA_ASSIGN_OR_RETURN(device_, runtime::CudaDevice::open(program_, 0));
    for (int r = 0; r < runtime::kRegions; ++r) {
      PARTITA_ASSIGN_OR_RETURN(regions_[r], device_->allocate(program_.region_bytes[r]));
    }
    std::memcpy(regions_[static_cast<int>(Region::kConstant)], program_.constants.data(), program_.constants.size());
    draw_inputs();
    for (size_t s = 0; s < program_.segments.size(); ++s) {
      const auto times = std::count_if(program_.schedule.begin(), program_.schedule.end(),
                                       [&](const auto& e) { return e.segment == static_cast<int32_t>(s); });
      PARTITA_RETURN_IF_ERROR(count_segment(program_.segments[s], times));
    }
    return std::move(made_);
  }

 private:
  absl::Status read_registers(const std::string& assembler) {
    if (assembler.empty()) return absl::OkStatus();
    const std::string ptx(program_.portable_kernels.begin(), program_.portable_kernels.end());
    const std::string architecture = program_.target.substr(program_.target.find("sm_"));
    PARTITA_ASSIGN_OR_RETURN(const Assembled assembled, assemble_ptx(ptx, {architecture, assembler}));
    for (const DeviceKernel& k : assembled.kernels) registers_[k.name] = k;
    return absl::OkStatus();
  }

  // Integers of data are numbers of classes and tokens.
  void draw_inputs() {
    for (const runtime::ProgramInput& input : program_.inputs) {
      const Operand& o = input.operand;
      if (o.dtype != DType::kI32 && o.dtype != DType::kI64) continue;
      const int64_t low = std::max<int64_t>(input.bounds.known() ? input.bounds.low : 0, 0);
      const int64_t high = input.bounds.known() ? std::max(input.bounds.high, low + 1) : 2;
      const int64_t count = runtime::operand_bytes(o) / dtype_size(o.dtype);
      for (int64_t slot = 0; slot < program_.slots; ++slot) {
        std::byte* at = address(o) + slot * o.address.slot_stride;
        for (int64_t k = 0; k < count; ++k) {
          const int64_t drawn = std::uniform_int_distribution<int64_t>(low, high - 1)(random_);
          std::memcpy(at + k * dtype_size(o.dtype), &drawn, static_cast<size_t>(dtype_size(o.dtype)));
        }
      }
    }
  }

  // Floats that a step reads: of what was computed in blocks that did not run there are only zeros.
  void draw_operands(const Step& step) {
    for (int k = 0; k < step.inputs; ++k) {
      const Operand& o = step.operands[static_cast<size_t>(k)];
      const int64_t bytes = runtime::operand_bytes(o);
      if (o.dtype != DType::kF32 || bytes > kDrawnBytes || o.address.region == Region::kConstant) continue;
      auto* at = reinterpret_cast<float*>(address(o));
      for (int64_t n = 0; n < bytes / 4; ++n) at[n] = std::uniform_real_distribution<float>(0, 1)(random_);
    }
  }

  std::byte* address(const Operand& o) const {
    return o.dtype == DType::kInvalid ? nullptr : regions_[static_cast<int>(o.address.region)] + o.address.offset;
  }

  absl::Status count_segment(const runtime::ProgramSegment& segment, int64_t times) {
    std::vector<bool> done(segment.steps.size(), false);
    for (const auto& [begin, end] : runtime::device_runs(program_, segment)) {
      const std::span<const Step> run(segment.steps.data() + begin, end - begin);
      for (const std::vector<size_t>& launch :
           runtime::batched_launches(run, runtime::batched_kinds(run), program_.slots)) {
        std::vector<const Step*> steps;
        for (size_t k : launch) steps.push_back(&run[k]), done[begin + k] = true;
        PARTITA_RETURN_IF_ERROR(count_launch(steps, times));
      }
    }
    for (size_t k = 0; k < segment.steps.size(); ++k) {
      if (done[k]) continue;
      const Step& step = segment.steps[k];
      const bool computes = step.kind == StepKind::kKernel || step.kind == StepKind::kLibrary;
      if (step.kind == StepKind::kCollectiveStart) made_.collectives += times;
      if (computes && runtime::runs_on_host(program_, step)) {
        made_.host_steps += times;
      } else if (computes || step.kind == StepKind::kCopy) {
        PARTITA_RETURN_IF_ERROR(count_launch({&step}, times));
      }
    }
    return absl::OkStatus();
  }

  absl::Status count_launch(const std::vector<const Step*>& steps, int64_t times) {
    std::string key;
    for (const Step* step : steps) append(key, key_of(*step), "; ");
    const auto [at, fresh] = known_.try_emplace(key, made_.rows.size());
    if (fresh) {
      PARTITA_ASSIGN_OR_RETURN(Row row, count_row(steps));
      made_.rows.push_back(std::move(row));
    }
    Row& row = made_.rows[at->second];
    row.count += times;
    made_.launches += times * row.kernels();
    return absl::OkStatus();
  }

  std::vector<Extent> extents_of(const std::vector<const Step*>& steps) const {
    std::vector<Extent> all;
    for (const Step* step : steps) {
      for (size_t k = 0; k < step->operands.size(); ++k) {
        const bool reads = static_cast<int>(k) < step->inputs;
        const Operand& o = step->operands[k];
        all.push_back(
            {reinterpret_cast<uint64_t>(address(o)), static_cast<uint64_t>(runtime::operand_bytes(o)), reads, !reads});
      }
    }
    return all;
  }

  absl::StatusOr<Row> count_row(const std::vector<const Step*>& steps) {
    const Step& first = *steps[0];
    Row row{.kernel = first.name, .steps = static_cast<int64_t>(steps.size())};
    if (first.origin >= 0) row.origin = program_.origins[static_cast<size_t>(first.origin)];
    for (const Step* step : steps) row.flops += static_cast<double>(step->flops);
    if (first.kind == StepKind::kCopy || (first.kind == StepKind::kLibrary && is_one_of(first.name, kVendors))) {
      row.kind = first.kind == StepKind::kCopy ? RowKind::kCopy : RowKind::kVendor;
      if (first.kind == StepKind::kCopy) row.kernel = "copy";
      count_operands(first, row);
      return row;
    }
    row.kind = first.kind == StepKind::kKernel ? RowKind::kGenerated : RowKind::kOwn;
    if (row.kind == RowKind::kOwn && is_one_of(first.name, kProducts)) {
      row.is_product = true;
      row.precision = precision_of(first);
    } else if (row.kind == RowKind::kOwn) {
      row.flops = 0;  // the compiler counts those of a formula: a gather's are of a product with ones and zeros
    }
    PARTITA_RETURN_IF_ERROR(run(steps, row));
    for (const ExtentUse& use : row.uses) {
      const auto size = static_cast<double>(use.extent.bytes);
      if (use.extent.is_input) row.least_read += std::min(size, use.reads.bytes);
      if (use.extent.is_output) row.least_written += std::min(size, use.writes.bytes);
    }
    if (const auto known = registers_.find(first.name); known != registers_.end()) {
      row.registers = known->second.registers;
      row.spilled_bytes = known->second.spilled_bytes;
    }
    return row;
  }

  // Each operand once; what is added to is read, too.
  void count_operands(const Step& step, Row& row) const {
    std::set<const std::byte*> read;
    for (size_t k = 0; k < step.operands.size(); ++k) {
      const Operand& o = step.operands[k];
      const auto bytes = static_cast<double>(runtime::operand_bytes(o));
      if (static_cast<int>(k) >= step.inputs)
        row.least_written += bytes;
      else if (read.insert(address(o)).second)
        row.least_read += bytes;
    }
    const std::string epilogue = runtime::text_param(step.params, "epilogue", "");
    if (epilogue.find("accumulate") != std::string::npos)
      row.least_read += static_cast<double>(runtime::operand_bytes(step.operands[static_cast<size_t>(step.inputs)]));
    row.is_product = row.kind == RowKind::kVendor;
    if (row.is_product) row.precision = precision_of(step);
  }

  absl::Status run(const std::vector<const Step*>& steps, Row& row) {
    std::vector<Extent> extents = extents_of(steps);
    std::unique_ptr<runtime::LibraryKernel> kernel;
    std::vector<std::byte*> addresses;
    std::vector<int64_t> parts;
    for (const Step* step : steps) {
      for (const Operand& o : step->operands) addresses.push_back(address(o));
      parts.push_back(step->units);
      draw_operands(*step);
    }
    const bool batched = steps[0]->params.count(runtime::kBatchedParam) > 0;
    auto made = batched ? device_->prepare_batched(program_, steps, addresses) : device_->prepare(program_, *steps[0]);
    if (!made.ok()) {
      made_.not_counted.push_back(cat(row.kernel, " (", row.origin, "): ", made.status().message()));
      return absl::OkStatus();
    }
    PARTITA_RETURN_IF_ERROR(device_->allocate_scratch().status());
    PARTITA_RETURN_IF_ERROR(device_->synchronize());
    Touched touched(std::move(extents), kNearBytes);
    counter_.begin(&touched, batched ? parts : std::vector<int64_t>{});
    (*made)->run(batched ? std::span<std::byte* const>{} : std::span<std::byte* const>(addresses));
    row.launches = counter_.end();
    row.uses = touched.uses();
    row.block_sectors = touched.block_sectors();
    PARTITA_RETURN_IF_ERROR(device_->failure());
    return with_context(counter_.status(), cat(row.kernel, " (", row.origin, ")"));
  }

  Program program_;
  LaunchCounter counter_;
  std::unique_ptr<runtime::CudaDevice> device_;
  std::array<std::byte*, runtime::kRegions> regions_{};
  std::mt19937 random_{1};
  std::map<std::string, DeviceKernel> registers_;
  std::map<std::string, size_t> known_;
  CountedProgram made_;
};

}  // namespace

absl::StatusOr<CountedProgram> count_program(Program program, const std::string& assembler) {
  return Counter(std::move(program)).run(assembler);
}

}  // namespace partita::counts
