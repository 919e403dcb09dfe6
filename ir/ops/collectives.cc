// Communication as ops on local shapes. `parts` is the number of ranks in the group, `axes` the mesh axes (indices)
// that the group's ranks differ in. What is gathered or exchanged is a new leading dimension, so that every buffer is
// contiguous; transposes around it are ordinary ops.
#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> same_types(const OpView& use) {
  return std::vector<TensorType>(use.inputs.begin(), use.inputs.end());
}

absl::Status expect_leading_parts(const OpView& use) {
  for (const TensorType& t : use.inputs) {
    if (t.rank() < 1 || t.shape[0] != use.attrs.i("parts"))
      return absl::InvalidArgumentError(
          cat("expected a first dimension of ", use.attrs.i("parts"), ", found ", to_string(t)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> gathered_types(const OpView& use) {
  std::vector<TensorType> types(use.inputs.begin(), use.inputs.end());
  for (TensorType& t : types) {
    t.shape.insert(t.shape.begin(), use.attrs.i("parts"));
    if (!checked_elements(t.shape))
      return absl::InvalidArgumentError(cat("a result of ", to_string(t.shape), " elements is too large"));
  }
  return types;
}

absl::StatusOr<std::vector<TensorType>> scattered_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(expect_leading_parts(use));
  std::vector<TensorType> types(use.inputs.begin(), use.inputs.end());
  for (TensorType& t : types) t.shape.erase(t.shape.begin());
  return types;
}

absl::StatusOr<std::vector<TensorType>> exchanged_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(expect_leading_parts(use));
  return same_types(use);
}

absl::Status expect_peer(const OpView& use) {
  int64_t peer = use.attrs.i("peer"), parts = use.attrs.i("parts");
  if (peer < 0 || peer >= parts) return absl::InvalidArgumentError(cat("peer ", peer, " in a group of ", parts));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> sent_type(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(expect_peer(use));
  return std::vector<TensorType>{};
}

absl::StatusOr<std::vector<TensorType>> received_type(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(expect_peer(use));
  TensorType t{use.attrs.dtype("type"), use.attrs.ints("shape")};
  if (!checked_elements(t.shape))
    return absl::InvalidArgumentError(cat("a result of ", to_string(t.shape), " elements is too large"));
  return std::vector<TensorType>{std::move(t)};
}

absl::StatusOr<std::vector<TensorType>> cross_mesh_type(const OpView& use) {
  const Shape& view = use.attrs.ints("view");
  if (elements(view) != elements(use.shape(0)))
    return absl::InvalidArgumentError(
        cat("expected a view of ", to_string(use.inputs[0]), ", found ", to_string(view)));
  for (const auto& [axes, dims] : {std::pair("own_axes", "own_dims"), std::pair("scatter_axes", "scatter_dims"),
                                   std::pair("gather_axes", "gather_dims")}) {
    const auto &of = use.attrs.ints(axes), &at = use.attrs.ints(dims);
    const bool inside =
        std::all_of(at.begin(), at.end(), [&](int64_t d) { return d >= 0 && d < static_cast<int64_t>(view.size()); });
    if (of.size() != at.size() || !inside)
      return absl::InvalidArgumentError(cat("expected a dimension of ", to_string(view), " for each of ", axes));
  }
  TensorType t{use.dtype(), use.attrs.ints("shape")};
  if (!checked_elements(t.shape))
    return absl::InvalidArgumentError(cat("a result of ", to_string(t.shape), " elements is too large"));
  return std::vector<TensorType>{std::move(t)};
}

absl::StatusOr<std::vector<TensorType>> sliced_type(const OpView& use) {
  int64_t dim = use.attrs.i("dim"), parts = use.attrs.i("parts");
  if (use.inputs[1] != TensorType{DType::kI64, {}}) return absl::InvalidArgumentError("expected a scalar coordinate");
  if (dim < 0 || dim >= use.rank() || parts < 1 || use.shape(0)[dim] % parts != 0) {
    return absl::InvalidArgumentError(
        cat("cannot cut dimension ", dim, " of ", to_string(use.inputs[0]), " into ", parts, " parts"));
  }
  TensorType t = use.inputs[0];
  t.shape[dim] /= parts;
  return std::vector<TensorType>{std::move(t)};
}

void slice_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& out) {
  const Shape& shape = in[0]->type.shape;
  int64_t dim = use.attrs.i("dim"), outer = 1, inner = 1, whole = shape[dim], part = whole / use.attrs.i("parts"),
          block = in[1]->i[0];
  for (int64_t d = 0; d < dim; ++d) outer *= shape[d];
  for (size_t d = static_cast<size_t>(dim) + 1; d < shape.size(); ++d) inner *= shape[d];
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t k = 0; k < part * inner; ++k) {
      int64_t from = (o * whole + block * part) * inner + k, to = o * part * inner + k;
      if (is_float(use.dtype())) {
        out[0].f[to] = in[0]->f[from];
      } else {
        out[0].i[to] = in[0]->i[from];
      }
    }
  }
}

// Every dimension whole: a collective is made for one sharding and is not split again. Linear in its operands, but for
// a coordinate.
template <absl::StatusOr<std::vector<TensorType>> (*infer)(const OpView&), bool coordinate = false>
std::string whole_formula(const OpView& use) {
  std::string text;
  int names = 0;
  auto operand = [&](const Shape& shape) {
    if (shape.empty()) text += " .";
    for (int64_t n : shape) append(text, " ", factor_name(names++), "=", n, "^");
  };
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    text += k == 0 ? "~" : coordinate ? "," : ", ~";
    operand(use.shape(static_cast<int>(k)));
  }
  text += " ->";
  auto outputs = infer(use);
  if (outputs.ok() && outputs->empty()) text += " /";
  for (size_t k = 0; outputs.ok() && k < outputs->size(); ++k) {
    text += k ? "," : "";
    operand((*outputs)[k].shape);
  }
  return text;
}

}  // namespace

// x... -> their sums (attribute reduce: "sum", "max", "min") over the group. Several operands, here and below, travel
// together.
extern const OpDef kAllReduce = {.name = "all_reduce",
                                 .min_inputs = 1,
                                 .max_inputs = -1,
                                 .attributes = "ints axes, i parts, s reduce",
                                 .formula_of = whole_formula<same_types>,
                                 .infer = same_types,
                                 .communicates = true,
                                 .collective = CollectiveOp::kAllReduce};

// [...]... -> [parts, ...]..., in the order of the ranks in the group.
extern const OpDef kAllGather = {.name = "all_gather",
                                 .min_inputs = 1,
                                 .max_inputs = -1,
                                 .attributes = "ints axes, i parts",
                                 .formula_of = whole_formula<gathered_types>,
                                 .infer = gathered_types,
                                 .communicates = true,
                                 .collective = CollectiveOp::kAllGather};

// [parts, ...]... -> [...]...: the sum over the group of this rank's block.
extern const OpDef kReduceScatter = {.name = "reduce_scatter",
                                     .min_inputs = 1,
                                     .max_inputs = -1,
                                     .attributes = "ints axes, i parts, s reduce",
                                     .formula_of = whole_formula<scattered_types>,
                                     .infer = scattered_types,
                                     .communicates = true,
                                     .collective = CollectiveOp::kReduceScatter};

// [parts, ...]... -> [parts, ...]...: block r goes to rank r, block r comes from rank r.
extern const OpDef kAllToAll = {.name = "all_to_all",
                                .min_inputs = 1,
                                .max_inputs = -1,
                                .attributes = "ints axes, i parts",
                                .formula_of = whole_formula<exchanged_types>,
                                .infer = exchanged_types,
                                .communicates = true,
                                .collective = CollectiveOp::kAllToAll};

// x -> nothing here: rank `peer` of the group gets it, by the recv that stands at the same place among its receives
// from this rank. `in_flight`: messages of it that may be under way at a time; without it, it is waited for. The
// peer may be this rank itself.
extern const OpDef kSend = {.name = "send",
                            .attributes = "ints axes, i parts, i peer, i channel?, i in_flight?",
                            .formula_of = whole_formula<sent_type>,
                            .infer = sent_type,
                            .communicates = true};

// -> what rank `peer` of the group sends. The types of both sides are equal.
extern const OpDef kRecv = {.name = "recv",
                            .min_inputs = 0,
                            .max_inputs = 0,
                            .attributes = "ints axes, i parts, i peer, i channel?, ints shape, dtype type",
                            .formula_of = whole_formula<received_type>,
                            .infer = received_type,
                            .communicates = true};

// What a stage of a pipeline has, as another one has it whose ranks lie along other mesh axes; split_stages() makes
// sends and receives of it. The operand is seen as `view`. Senders along own_axes each take their part along own_dims
// of it. Dimension scatter_dims[i] is cut for the receivers along scatter_axes[i]; along other axes that the senders
// lack all receivers get the same. The parts of the senders along gather_axes are put together along gather_dims; along
// other axes that the receivers lack all senders have the same.
extern const OpDef kCrossMeshReshard = {.name = "cross_mesh_reshard",
                                        .attributes =
                                            "ints view, ints own_axes, ints own_dims, ints scatter_axes, "
                                            "ints scatter_dims, ints gather_axes, ints gather_dims, ints shape, "
                                            "i from, i to",
                                        .formula_of = whole_formula<cross_mesh_type>,
                                        .infer = cross_mesh_type,
                                        .communicates = true,
                                        .crosses_stages = true};

// Block `coordinate` of `parts` equal blocks along `dim`: what a replicated value becomes when an axis starts to split
// it.
extern const OpDef kShardSlice = {.name = "shard_slice",
                                  .min_inputs = 2,
                                  .max_inputs = 2,
                                  .attributes = "i dim, i parts",
                                  .formula_of = whole_formula<sliced_type, true>,
                                  .infer = sliced_type,
                                  .evaluate = slice_evaluate,
                                  .kernel = true};

}  // namespace partita
