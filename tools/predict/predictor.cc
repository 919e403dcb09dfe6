#include "tools/predict/predictor.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/cat.h"
#include "base/host/processors.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/checkpoint/module_files.h"
#include "runtime/data/convert.h"

namespace partita {

absl::StatusOr<std::unique_ptr<Predictor>> Predictor::create(ForwardProgram prediction, const std::string& weights,
                                                             int threads) {
  if (threads <= 0) threads = usable_processors();
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedProgram::load(std::move(prediction.program)));
  std::unique_ptr<Predictor> p(new Predictor);
  PARTITA_ASSIGN_OR_RETURN(p->executor_, runtime::Executor::create(std::move(loaded), nullptr, {.threads = threads}));
  PARTITA_RETURN_IF_ERROR(p->put_first_values(prediction.weights));
  if (!weights.empty()) PARTITA_RETURN_IF_ERROR(p->load(weights));
  return p;
}

absl::Status Predictor::put_first_values(const std::vector<InitialTensor>& weights) {
  std::map<std::string_view, const runtime::Operand*> states;
  for (const runtime::ProgramState& s : program().states) states[s.name] = &s.operand;
  WeightFiles files;
  PARTITA_RETURN_IF_ERROR(files.open(weights));
  for (const InitialTensor& w : weights) {
    const std::span<std::byte> own = executor_->memory(*states.at(w.name));
    const int64_t size = dtype_size(w.type.dtype);
    PARTITA_RETURN_IF_ERROR(files.for_each_block(
        w, [&](std::span<const int64_t> offset, std::span<const int64_t>, std::span<const std::byte> block) {
          // A block is some whole rows, or everything.
          const int64_t rows = offset.empty() ? 0 : offset[0];
          const int64_t row = rows == 0 ? 0 : elements(w.type.shape) / w.type.shape[0];
          std::memcpy(own.data() + rows * row * size, block.data(), block.size());
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

absl::Status Predictor::load(const std::string& weights) {
  const auto memory = [&](const runtime::Operand& o) { return executor_->memory(o); };
  std::error_code ec;
  if (runtime::is_module_path(weights) || !std::filesystem::is_directory(weights, ec))
    return runtime::load_module(program(), executor_->coordinates(), runtime::kept_tensors(program()), {weights, {}},
                                memory)
        .status();
  PARTITA_ASSIGN_OR_RETURN(const std::string folder, runtime::find_checkpoint(weights));
  PARTITA_ASSIGN_OR_RETURN(const runtime::CheckpointReader reader, runtime::CheckpointReader::open(folder));
  const std::vector<bool> owned(program().states.size(), true);
  return runtime::load_states(program(), executor_->coordinates(), owned, reader, /*parameters_only=*/true, nullptr,
                              memory);
}

absl::Status Predictor::run(absl::FunctionRef<absl::Status()> stage) {
  const std::vector<runtime::ScheduleEntry>& schedule = program().schedule;
  const bool takes = std::any_of(schedule.begin(), schedule.end(),
                                 [&](const runtime::ScheduleEntry& e) { return executor_->takes_samples(e); });
  if (!takes) PARTITA_RETURN_IF_ERROR(stage());  // what is asked for is inputs alone: there is nothing to compute
  return executor_->run(schedule, [&](int64_t, int64_t) { return stage(); });
}

absl::StatusOr<std::vector<float>> Predictor::output(size_t k) const {
  const runtime::Operand& operand = program().outputs[k].operand;
  PARTITA_ASSIGN_OR_RETURN(const runtime::ConvertFunction convert,
                           runtime::find_conversion(operand.dtype, DType::kF32));
  const std::span<const std::byte> bytes = executor_->memory(operand);
  std::vector<float> out(bytes.size() / static_cast<size_t>(dtype_size(operand.dtype)));
  if (convert(bytes.data(), reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(out.size())) >= 0)
    return absl::InvalidArgumentError(cat(quote(program().outputs[k].name), " holds a number that f32 cannot"));
  return out;
}

}  // namespace partita
