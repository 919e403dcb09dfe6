// The CUDA module's own kernels that random models come to, for a GPU that is this machine.
#ifdef PARTITA_STAND_INS
#include "tests/stand_ins/cuda/kernels.h"
#undef __device__
#undef __shared__
#undef __launch_bounds__
#include "tests/runtime/support/cuda_kernels_host.h"

#include "runtime/cuda/kernels/attention.cu"
#include "runtime/cuda/kernels/epilogue.cu"
#include "runtime/cuda/kernels/flash.cu"
#include "runtime/cuda/kernels/grouped.cu"
#include "runtime/cuda/kernels/indexing.cu"
#include "tests/codegen/support/cuda_on_host.h"

namespace partita {
namespace {

void run_grid(const stand_in::Launch& launch, const stand_in::Work& body) {
  std::lock_guard lock(one_block());
  runtime::HostGrid::instance().launch({launch.blocks.x, launch.blocks.y, launch.blocks.z}, launch.threads.x, body,
                                       launch.shared_bytes, runtime::HostOrder::kShuffled);
}

template <typename... A>
void add(const char* image, const char* name, void (*kernel)(A...)) {
  stand_in::register_kernel(image, name, stand_in::kernel_maker(run_grid, kernel));
}

}  // namespace

void register_own_kernels() {
#define PARTITA_ADD(IMAGE, NAME) add(#IMAGE, #NAME, NAME)
  PARTITA_ADD(attention, softmax_rows_f64);
  PARTITA_ADD(attention, probabilities_f64);
  PARTITA_ADD(attention, score_gradients_f64);
  PARTITA_ADD(epilogue, finish_product_f32);
  PARTITA_ADD(epilogue, finish_product_bf16);
  PARTITA_ADD(epilogue, finish_product_f16);
  PARTITA_ADD(epilogue, sum_rows_f32);
  PARTITA_ADD(epilogue, sum_rows_bf16);
  PARTITA_ADD(epilogue, sum_rows_f16);
  PARTITA_ADD(flash, flash_forward_bf16_64);
  PARTITA_ADD(flash, flash_delta_bf16);
  PARTITA_ADD(flash, flash_query_grads_bf16_64);
  PARTITA_ADD(flash, flash_key_grads_bf16_64);
  PARTITA_ADD(grouped, group_rows_i32);
  PARTITA_ADD(grouped, group_rows_i64);
#define PARTITA_ADD_GROUPED(TYPE)                         \
  PARTITA_ADD(grouped, grouped_matmul_##TYPE);            \
  PARTITA_ADD(grouped, grouped_matmul_transposed_##TYPE); \
  PARTITA_ADD(grouped, grouped_matmul_grad_##TYPE)
  PARTITA_ADD_GROUPED(bf16);
  PARTITA_ADD_GROUPED(f16);
  PARTITA_ADD_GROUPED(f32);
  PARTITA_ADD_GROUPED(f64);
#undef PARTITA_ADD_GROUPED
  PARTITA_ADD(indexing, gather_64_i64);
  PARTITA_ADD(indexing, take_along_64_i64);
  PARTITA_ADD(indexing, take_along_grad_f64_i64);
  PARTITA_ADD(indexing, shard_slice_64);
  PARTITA_ADD(indexing, add_runs_f64);
  PARTITA_ADD(indexing, sort_rows_i64);
  PARTITA_ADD(indexing, slice_rows_i64);
#undef PARTITA_ADD
  for (const char* image : {"pool", "scan"}) stand_in::register_kernel(image, "none", nullptr);
}

}  // namespace partita
#endif
