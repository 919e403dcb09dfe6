#include "runtime/train/results.h"

#include <cstdio>
#include <vector>

#include "base/atomic_file.h"
#include "base/status.h"
#include "runtime/checkpoint/state_files.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {

absl::Status check_targets(std::initializer_list<std::string> paths) {
  for (const std::string& path : paths) {
    if (!path.empty()) PARTITA_RETURN_IF_ERROR(AtomicFile::create(path).status());
  }
  return absl::OkStatus();
}

absl::Status save_gradients(const Executor& executor, Communicator* communicator, const std::string& path) {
  constexpr std::string_view kPrefix = "grad/";
  std::vector<HeldTensor> tensors;
  for (const ProgramOutput& o : executor.program().outputs) {
    if (o.name.rfind(kPrefix, 0) != 0) continue;
    PARTITA_RETURN_IF_ERROR(executor.fetch(o.operand));
    tensors.push_back({o.name.substr(kPrefix.size()), o.operand.dtype, &o.placement, executor.memory(o.operand)});
  }
  int64_t kept = static_cast<int64_t>(tensors.size());  // a stage may have no parameters
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator, {&kept, 1}, ReduceOp::kMax, "gradients kept"));
  if (kept == 0)
    return absl::FailedPreconditionError("the program keeps no gradients; compile it with --keep-gradients");
  return save_tensors(path, tensors, executor.coordinates(), communicator);
}

absl::Status save_parameters(const Executor& executor, Communicator* communicator, const std::string& path,
                             bool optimizer, FlightRecorder* recorder) {
  std::vector<HeldTensor> tensors;
  PARTITA_RETURN_IF_ERROR(executor.fetch_states());
  for (const ProgramState& s : executor.program().states) {
    const bool of_optimizer = s.kind == StateKind::kOptimizer || s.kind == StateKind::kStep;
    if (s.kind == StateKind::kParameter || s.kind == StateKind::kRunning || (of_optimizer && optimizer))
      tensors.push_back({s.name, s.operand.dtype, &s.placement, executor.memory(s.operand)});
  }
  return save_tensors(path, tensors, executor.coordinates(), communicator, recorder);
}

absl::Status write_profile(const Executor& executor, const std::string& path, bool tables) {
  const StepProfile* profile = executor.profile();
  const std::string trace = trace_of_rank(path, executor.rank());
  if (profile == nullptr || trace.empty()) return absl::OkStatus();
  if (tables && executor.rank() == 0) std::fprintf(stderr, "%s", profile->table().c_str());
  return write_file_atomically(trace, profile->chrome_trace(), Durable::kNo);
}

}  // namespace partita::runtime
