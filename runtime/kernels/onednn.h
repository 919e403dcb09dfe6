// oneDNN, and how our operands look to it.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>

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

// Throws as for a primitive that there is none of where all that oneDNN has for 16-bit floats is its reference,
// hundreds of times slower than f32.
inline void refuse_reference(const dnnl::primitive_desc_base& desc, dnnl::memory::data_type type) {
  if (type != dnnl::memory::data_type::f32 && std::string_view(desc.impl_info_str()).starts_with("ref"))
    throw dnnl::error(dnnl_unimplemented, "only the reference");
}

// Before anything else of oneDNN: keeps it from instructions that the processor names and does not have, unless the
// user has chosen its instruction set, which a program's main tells before any kernel is made: the first call decides.
// Returns true.
bool prepare_onednn(bool user_has_chosen = false);

// Whether products of bf16 are faster on f32 copies: where oneDNN has to emulate the instructions (2.5 times the step
// of f32) and on Intel's processors without tiles, whose own have half the rate of f32's. By the processor alone, so
// that every start and every rank on such a one has the same bits.
bool is_bf16_slow(dnnl::cpu_isa isa, bool intel);
bool is_bf16_slow();

// c [m, n] (rows of `ldc`) = a b, + c where it accumulates; leading dimensions as BLAS has them, row-major.
void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                  const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc);

// Each kernel has its own: primitives and their caches are shared behind them.
struct OneDnn {
  bool prepared = prepare_onednn();
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

}  // namespace partita::runtime
