// oneDNN, and how our operands look to it.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include "base/dtype.h"

namespace partita::runtime {

// data_type::undef where it has none.
inline dnnl::memory::data_type onednn_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return dnnl::memory::data_type::f32;
    case DType::kBF16:
      return dnnl::memory::data_type::bf16;
    case DType::kF16:
      return dnnl::memory::data_type::f16;
    default:
      return dnnl::memory::data_type::undef;
  }
}

// Each kernel has its own: primitives and their caches are shared behind them.
struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

}  // namespace partita::runtime
