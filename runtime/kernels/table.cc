#include "runtime/kernels/table.h"

#include <exception>

#include "base/quote.h"

namespace partita::runtime {
namespace {

struct Entry {
  std::string_view name;
  Kernel (*make)(const KernelRequest&);
};

constexpr Entry kTable[] = {
    {"accumulate_tree", make_accumulate_tree},
    {"argmax", make_argmax},
    {"attention", make_attention},
    {"attention_grad", make_attention_grad},
    {"avg_pool", make_avg_pool},
    {"avg_pool_grad", make_avg_pool_grad},
    {"block_squares", make_block_squares},
    {"conv", make_conv},
    {"conv_grad_data", make_conv_grad_data},
    {"conv_grad_weight", make_conv_grad_weight},
    {"cumsum", make_cumsum},
    {"gather", make_gather},
    {"gather_grad", make_gather_grad},
    {"gather_nd", make_gather_nd},
    {"gather_nd_grad", make_gather_nd_grad},
    {"grouped_matmul", make_grouped_matmul},
    {"grouped_matmul_grad", make_grouped_matmul_grad},
    {"matmul", make_matmul},
    {"max_pool", make_max_pool},
    {"max_pool_grad", make_max_pool_grad},
    {"scatter_elements", make_scatter_elements},
    {"scatter_nd", make_scatter_nd},
    {"shard_slice", make_shard_slice},
    {"take_along", make_take_along},
    {"take_along_grad", make_take_along_grad},
    {"topk", make_topk},
};

}  // namespace

absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare_kernel(const Step& step, const ExecutionConfig& caller) {
  ExecutionConfig config = caller;
  if (config.scratch == nullptr) config.scratch = std::make_shared<KernelScratch>();
  for (const Entry& entry : kTable) {
    if (entry.name != step.name) continue;
    try {
      Kernel kernel = entry.make(KernelRequest(step, config));
      if (kernel.ok() && caller.scratch == nullptr) PARTITA_RETURN_IF_ERROR(config.scratch->allocate());
      return kernel;
    } catch (const std::exception& e) {  // oneDNN reports what it cannot do this way
      return absl::UnimplementedError(cat("kernel ", quote(step.name), " cannot be prepared for ",
                                          KernelRequest(step, config).types(), ": ", e.what()));
    }
  }
  return absl::UnimplementedError(cat("this runtime has no kernel ", quote(step.name)));
}

std::vector<std::string_view> library_kernel_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kTable) names.push_back(entry.name);
  return names;
}

}  // namespace partita::runtime
