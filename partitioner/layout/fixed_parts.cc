#include "partitioner/layout/fixed_parts.h"

#include <bit>

#include "base/cat.h"

namespace partita {
namespace {

std::string refused_recipe(const Recipe& recipe, int64_t global) {
  const int64_t parts = recipe.reproducible->samples, blocks = recipe.reproducible->tensor;
  if (blocks > 1 && recipe.precision != Precision::kFp32)
    return cat("precision: ", enum_name(recipe.precision), " rounds what a rank of the tensor axis has of a product ",
               "before it is added to the others'; use fp32, or leave `tensor` out");
  if (global % parts != 0)
    return cat("a step has ", global, " samples, which are no ", parts, " equal parts; change batch.global or the key");
  const int64_t micro = global / parts;
  if (recipe.batch.micro && *recipe.batch.micro != micro)
    return cat("a micro-batch is one of ", parts, " parts of ", global, " samples, ", micro, "; expected batch.micro ",
               micro, " or none, found ", *recipe.batch.micro);
  if (recipe.pin.micro_batch && *recipe.pin.micro_batch != micro)
    return cat("a micro-batch is one of ", parts, " parts of ", global, " samples, ", micro,
               "; expected pin micro_batch ", micro, " or none, found ", *recipe.pin.micro_batch);
  if (recipe.compress != Compression::kNone)
    return cat("compress: ", enum_name(recipe.compress),
               " rounds what each rank has, whatever the order of sums; leave one of the two out");
  if (recipe.optimizer && recipe.optimizer->kind == OptimizerKind::kAdafactor)
    return "optimizer: adafactor's means over rows and columns have no fixed order; use another kind";
  if (recipe.optimizer && recipe.optimizer->kind == OptimizerKind::kMuon)
    return "optimizer: muon's products of a matrix in parts have no fixed order; use another kind";
  if (recipe.semantics.moe)
    return "semantics.moe: an expert's capacity is of samples of several parts; leave one of the two out";
  return "";
}

}  // namespace

std::string why_other_sums(const ReproducibleRecipe& recipe, const Layout& layout) {
  const int64_t parts = recipe.samples;
  if (layout.pipeline > 1 && layout.schedule == PipelineSchedule::kPipedream)
    return "schedule pipedream: each micro-batch is a step of its own; use another schedule";
  if (layout.pipeline > 1 && parts == 1)
    return cat("pipeline ", layout.pipeline, ": a step of one part has one micro-batch, which no stages share");
  if (!layout.stages.empty()) return "stages: ranks of stages that differ have other samples each; use equal stages";
  if (layout.context * layout.expert > 1)
    return cat("context ", layout.context, ", expert ", layout.expert,
               ": these axes cut sums inside of a sample, whose order is not fixed; use the data, tensor and pipeline "
               "axes alone");
  if (recipe.tensor % layout.tensor != 0)
    return cat(
        "tensor ", layout.tensor, " is no divisor of the ", recipe.tensor,
        " blocks of an inner dimension that are added up in a fixed order; pin tensor accordingly, or have other "
        "blocks: reproducible: {samples: ",
        parts, ", tensor: ", std::bit_ceil(static_cast<uint64_t>(layout.tensor)), "}");
  if (layout.tensor > 1 && layout.sequence_parallel)
    return "sequence_parallel: ranks of the tensor axis would have parts of a sample's positions, over which norms' "
           "gradients are summed; pin sequence_parallel: false";
  if (layout.row_parts() > 1)
    return cat("overlap_products ", layout.row_parts(),
               ": the fixed order is that of whole products' sums; pin overlap_products: 1");
  if (layout.hierarchical_group > 0)
    return cat("hierarchical_group ", layout.hierarchical_group, ": sums in levels have an order of their own");
  if (parts % layout.sample_ranks() != 0)
    return cat(layout.sample_ranks(), " data-parallel ranks do not share out ", parts, " parts; expected a divisor of ",
               parts);
  return "";
}

absl::Status fix_parts(const Recipe& recipe, int64_t global, Layout& layout) {
  std::string why = refused_recipe(recipe, global);
  if (why.empty()) why = why_other_sums(*recipe.reproducible, layout);
  if (!why.empty()) return absl::InvalidArgumentError(cat("reproducible: ", why));
  layout.micro_batch = global / recipe.reproducible->samples;
  return absl::OkStatus();
}

}  // namespace partita
