// Attention and its gradient by cuDNN's graph API, in 16 bits: out = softmax(scale q k^T) v as one kernel of cuDNN's,
// and its gradients by the one that adds in one order. What is kept between the two is ours: the rows' log-sums, in
// f32 (ir/ops/attention.cc), so either side may as well be by our own kernels (cuda_flash.h).
//
// cuDNN says only when it is asked, on the GPU itself, what it has for a shape. Its answer follows from its version,
// the GPU and the shapes: the same at every start.
#pragma once

#include <cudnn.h>

#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "runtime/kernels/attention.h"

namespace partita::runtime {

// How cuDNN computes one attention, or its gradient.
class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  virtual int64_t workspace_bytes() const = 0;
  // On the stream that the handle has. `operands` as those of the step (attention or attention_grad, without a mask);
  // addresses on the GPU, aligned to 16 bytes.
  virtual absl::Status run(std::span<std::byte* const> operands, std::byte* workspace) const = 0;
};

// The plans of one device, each made once and shared by the steps that are alike.
class CudnnAttentions {
 public:
  // Unimplemented in cuDNN's own words where it has nothing for this, or in ours where it would take more memory than
  // we give it, or where rows may be left without keys, which cuDNN defines in another way. FailedPrecondition where
  // the library or its interface are not there.
  absl::StatusOr<std::shared_ptr<const CudnnAttention>> plan(cudnnHandle_t handle, const AttentionShape& shape,
                                                             DType dtype, bool gradient);
  void clear() { plans_.clear(); }  // before the handle goes

 private:
  std::map<std::string, absl::StatusOr<std::shared_ptr<const CudnnAttention>>> plans_;
};

// Whether this build has cuDNN's graph API: the headers of cudnn-frontend were there (docs/cuda.md).
bool has_cudnn_attention();

}  // namespace partita::runtime
