#include "tools/flow/model_source.h"

#include <tuple>

#include "base/status.h"
#include "partitioner/prepare/moe_capacity.h"

namespace partita {

ImportOptions import_options(const Recipe& recipe) {
  ImportOptions o;
  o.bind = recipe.bind;
  o.batch = recipe.batch.global;
  if (const auto& moe = recipe.semantics.moe; moe && moe->group)
    o.batch = moe->group;  // what the graph takes at a time
  o.trainable = recipe.trainable;
  o.frozen = recipe.frozen;
  o.names = recipe.names;
  o.seed = recipe.seed;
  o.batch_norm_training = recipe.semantics.batch_norm_training;
  return o;
}

absl::StatusOr<std::shared_ptr<const ImportedModel>> ModelSource::import(std::optional<int64_t> batch, bool training) {
  for (const Import& known : imports_) {
    const bool same_batch = known.batch == batch || !known.model->info.any_batch;
    if (known.training == training && same_batch) return known.model;
  }
  ImportOptions options = import_options(recipe_);
  options.batch = batch;
  options.training = training;
  PARTITA_ASSIGN_OR_RETURN(ImportedModel model, import_onnx(path_, options));
  if (recipe_.semantics.moe_dropless) PARTITA_RETURN_IF_ERROR(check_dropless(model.graph));
  if (recipe_.semantics.moe) {
    PARTITA_ASSIGN_OR_RETURN(model.graph, set_moe_capacity(model.graph, *recipe_.semantics.moe));
  }
  imports_.push_back({batch, training, std::make_shared<const ImportedModel>(std::move(model))});
  return imports_.back().model;
}

bool ModelSource::same(const GraphKey& a, const GraphKey& b) {
  auto fields = [](const GraphKey& k) {
    const PassContext& c = k.context;
    return std::tuple(k.model, k.sample_groups, k.recompute, c.micro_batches, c.accumulate, c.update_each,
                      c.expert_parts, c.keep_gradients);
  };
  return fields(a) == fields(b);
}

}  // namespace partita
