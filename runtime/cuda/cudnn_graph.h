// cuDNN's graph API, for the files that build plans with it (cudnn_attention.cc, cudnn_conv.cc) and nobody else: its
// headers take a minute to compile. Without PARTITA_CUDNN_FRONTEND there is none of it.
#pragma once

#ifdef PARTITA_CUDNN_FRONTEND
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // of cuDNN and of the CUDA runtime: nothing of theirs is linked
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {

namespace fe = cudnn_frontend;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

// Which cuDNN it calls, and which CUDA runtime it opens of several that a machine may have: read when it is first
// asked.
inline void use_cudnn(void* library) {
  cudnn_frontend::cudnn_dlhandle = library;
  [[maybe_unused]] static const int kTold =
      ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", cat("libcudart.so.", CUDART_VERSION / 1000).c_str(), /*overwrite=*/0);
}

// Unimplemented where cuDNN has nothing for what it was asked, as cudnn-frontend or cuDNN below it says.
inline absl::Status to_status(fe::error_t e) {
  if (e.is_good()) return absl::OkStatus();
  const std::string text = e.get_message();
  const bool lacking =
      e.get_code() == fe::error_code_t::GRAPH_NOT_SUPPORTED || text.find("NOT_SUPPORTED") != std::string::npos;
  return lacking ? absl::UnimplementedError(quote(text, 600)) : absl::InternalError(quote(text, 600));
}

// cudnn-frontend throws where it finds no library or function.
template <typename F>
absl::Status caught(F call) {
  try {
    return call();
  } catch (const std::exception& e) {
    return absl::FailedPreconditionError(quote(e.what(), 600));
  }
}

}  // namespace partita::runtime
#endif
