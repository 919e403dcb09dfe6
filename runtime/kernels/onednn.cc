#include "runtime/kernels/onednn.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/status.h"

namespace partita::runtime {
namespace {

// Tiles (AMX) are configured by a palette, which leaf 0x1d counts. Some virtual machines show the instructions and hide
// the leaf; what oneDNN 3.2 then generates for 16-bit products ends with an illegal instruction.
bool has_tiles_without_palette() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0) return false;
  return __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) == 0 || a == 0;
#else
  return false;
#endif
}

}  // namespace

bool prepare_onednn(bool user_has_chosen) {
  static const bool prepared = [&] {
    if (!user_has_chosen && has_tiles_without_palette()) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_fp16);
    return true;
  }();
  return prepared;
}

bool is_bf16_slow(dnnl::cpu_isa isa, bool intel) {
  using enum dnnl::cpu_isa;
  if (isa == avx512_core || isa == avx512_core_vnni) return true;
  return intel && (isa == avx512_core_bf16 || isa == avx512_core_fp16);
}

bool is_bf16_slow() {
  prepare_onednn();
#if defined(__x86_64__)
  const bool intel = __builtin_cpu_is("intel");
#else
  const bool intel = false;
#endif
  return is_bf16_slow(dnnl::get_effective_cpu_isa(), intel);
}

void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                  const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc) {
  prepare_onednn();
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b,
                                          ldb, accumulate ? 1.0f : 0.0f, c, ldc);
  PARTITA_CHECK(status == dnnl_success, "dnnl_sgemm");
}

}  // namespace partita::runtime
