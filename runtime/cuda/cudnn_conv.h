// Convolutions and their gradients by cuDNN's graph API, in 16 bits with channels last: what its older interface does
// slowly for bf16. Plans add in one order.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"

namespace partita::runtime {

enum class ConvDirection { kForward, kGradData, kGradWeight };

// Sizes of x [samples, channels, spatial…], of the weight [filters, channels of a group, spatial…] and of y, all of
// which have their channels last in memory.
struct CudnnConvShape {
  ConvDirection direction = ConvDirection::kForward;
  DType dtype = DType::kBF16;
  std::array<std::vector<int64_t>, 3> dims;  // x, weight, y
  std::vector<int64_t> padding, stride, dilation;
};

class CudnnConv {
 public:
  virtual ~CudnnConv() = default;
  virtual int64_t workspace_bytes() const = 0;
  // On the stream that the handle has; one of x, w and y is the result. Addresses on the GPU, aligned to 16 bytes.
  virtual absl::Status run(std::byte* x, std::byte* w, std::byte* y, std::byte* workspace) const = 0;
};

// The plans of one device, each made once and shared by the steps that are alike.
class CudnnConvs {
 public:
  // Unimplemented where cuDNN has none that adds in one order; FailedPrecondition where the library or its interface
  // are not there.
  absl::StatusOr<std::shared_ptr<const CudnnConv>> plan(cudnnHandle_t handle, const CudnnConvShape& shape);
  void clear() { plans_.clear(); }  // before the handle goes

 private:
  std::map<std::string, absl::StatusOr<std::shared_ptr<const CudnnConv>>> plans_;
};

}  // namespace partita::runtime
