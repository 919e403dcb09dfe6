// Runs a prediction on this host, with the weights of a training run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/execute/executor.h"
#include "tools/predict/prediction.h"

namespace partita {

class Predictor {
 public:
  // `weights`: a safetensors file as --save writes it, or a folder of checkpoints or one of them; empty: the model's
  // own. Parameters must be there; of what is never trained the model's own stands where it is not. `threads`: 0 is all
  // cores. Errors name file and tensor.
  static absl::StatusOr<std::unique_ptr<Predictor>> create(ForwardProgram prediction, const std::string& weights,
                                                           int threads);

  const runtime::Program& program() const { return executor_->program(); }
  runtime::Executor& executor() { return *executor_; }
  // One run; `stage` fills the data inputs' memory (executor().memory()).
  absl::Status run(absl::FunctionRef<absl::Status()> stage);
  // The k-th output of the last run in f32. InvalidArgument where its type has no such value.
  absl::StatusOr<std::vector<float>> output(size_t k) const;

 private:
  absl::Status put_first_values(const std::vector<InitialTensor>& weights);
  absl::Status load(const std::string& weights);

  std::unique_ptr<runtime::Executor> executor_;
};

}  // namespace partita
