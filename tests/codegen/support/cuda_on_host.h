// The CUDA module's device as it is, on a CUDA runtime and a cuBLASLt that are this machine (tests/stand_ins): its
// streams run beside the host, with pauses, so that an order that nobody asked for shows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/evaluate.h"
#include "runtime/device/device.h"

namespace partita {

absl::StatusOr<std::unique_ptr<runtime::Device>> open_cuda_on_host(const runtime::Program& program, int ordinal);

// A library step's results on such a device, the first of which held `held` before. `choices`: the file of tuned
// products.
std::vector<Tensor> run_step_on_cuda(const runtime::Step& step, const std::vector<Tensor>& inputs, const Tensor& held,
                                     const std::string& choices = {});

}  // namespace partita
