#include "tools/predict/generator.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/convert.h"
#include "runtime/data/sample_reader.h"

namespace partita {
namespace {

using runtime::ColumnRole;
using runtime::ProgramInput;

runtime::InputSpec spec_of(const ProgramInput& in) {
  const std::vector<int64_t>& shape = in.operand.shape;
  return {.name = in.name, .dtype = in.operand.dtype, .sample_shape = {shape.begin() + 1, shape.end()}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> Generator::open(std::unique_ptr<Predictor> predictor,
                                                           const runtime::DataConfig& columns) {
  std::unique_ptr<Generator> g(new Generator);
  const runtime::Program& program = predictor->program();
  std::optional<size_t> tokens;
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    const ProgramInput& in = program.inputs[k];
    if (in.kind != InputKind::kData || in.operand.shape.empty()) continue;
    PARTITA_ASSIGN_OR_RETURN(const ColumnRole role, runtime::column_role(columns, in.name));
    if (role == ColumnRole::kInputIds) {
      if (in.operand.shape.size() != 2 || !is_integer(in.operand.dtype) || tokens)
        return absl::InvalidArgumentError(cat("expected one input of tokens, integers [samples, positions], found ",
                                              quote(in.name),
                                              tokens ? cat(" beside ", quote(program.inputs[*tokens].name))
                                                     : cat(" of ", in.operand.shape.size(), " dimensions"),
                                              "; data: columns in train.yaml says which it is"));
      tokens = k;
      continue;
    }
    if (role == ColumnRole::kLabels || role == ColumnRole::kDocuments) continue;  // zeros: no score depends on them
    if (role == ColumnRole::kUnknown || role == ColumnRole::kRandom)
      return absl::InvalidArgumentError(cat("input ", quote(in.name),
                                            " is neither tokens, positions, a mask nor labels; "
                                            "data: columns in train.yaml says what it takes"));
    PARTITA_ASSIGN_OR_RETURN(const std::vector<std::byte> sample, runtime::constant_sample(spec_of(in), role));
    const std::span<std::byte> own = predictor->executor().memory(in.operand);
    for (size_t at = 0; at + sample.size() <= own.size() && !sample.empty(); at += sample.size())
      std::memcpy(own.data() + at, sample.data(), sample.size());
  }
  if (!tokens)
    return absl::InvalidArgumentError("the model has no input of tokens; data: columns in train.yaml says which it is");
  const std::vector<int64_t>&shape = program.inputs[*tokens].operand.shape, scores = program.outputs[0].operand.shape;
  g->tokens_ = *tokens;
  g->samples_ = shape[0], g->width_ = shape[1];
  g->vocabulary_ = scores.empty() ? 0 : scores.back();
  const int64_t rows = g->vocabulary_ > 0 ? *runtime::element_count(scores) / g->vocabulary_ : 0;
  g->positions_ = rows / g->samples_;
  if (g->vocabulary_ < 2 || rows == 0 || rows % g->samples_ != 0 || g->positions_ > g->width_)
    return absl::InvalidArgumentError(cat(quote(program.outputs[0].name), " is ",
                                          to_string({program.outputs[0].operand.dtype, scores}), ": expected scores [",
                                          g->samples_, ", up to ", g->width_, ", vocabulary]"));
  g->predictor_ = std::move(predictor);
  return g;
}

absl::Status Generator::stage(const std::vector<std::vector<int64_t>>& texts) const {
  const runtime::Operand& operand = predictor_->program().inputs[tokens_].operand;
  std::vector<int64_t> window(static_cast<size_t>(samples_ * width_), 0);
  for (size_t row = 0; row < texts.size(); ++row) {
    const int64_t count = std::min<int64_t>(positions_, static_cast<int64_t>(texts[row].size()));
    std::copy(texts[row].end() - count, texts[row].end(), window.begin() + static_cast<int64_t>(row) * width_);
  }
  PARTITA_ASSIGN_OR_RETURN(const runtime::ConvertFunction convert,
                           runtime::find_conversion(DType::kI64, operand.dtype));
  const int64_t bad = convert(reinterpret_cast<const std::byte*>(window.data()),
                              predictor_->executor().memory(operand).data(), samples_ * width_);
  if (bad >= 0)
    return absl::InvalidArgumentError(
        cat("token ", window[static_cast<size_t>(bad)], " is no ", dtype_name(operand.dtype)));
  return absl::OkStatus();
}

absl::Status Generator::extend(std::vector<std::vector<int64_t>>& texts, const SamplerOptions& options) {
  for (const std::vector<int64_t>& text : texts) {
    for (int64_t id : text) {
      if (id < 0 || id >= vocabulary_)
        return absl::InvalidArgumentError(cat("token ", id, ": the model knows ids of 0 to ", vocabulary_ - 1));
    }
  }
  PARTITA_RETURN_IF_ERROR(predictor_->run([&] { return stage(texts); }));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<float> scores, predictor_->output(0));
  for (size_t row = 0; row < texts.size(); ++row) {
    const int64_t last = std::min<int64_t>(positions_, static_cast<int64_t>(texts[row].size())) - 1;
    const int64_t at = (static_cast<int64_t>(row) * positions_ + last) * vocabulary_;
    texts[row].push_back(
        draw_token(std::span(scores).subspan(static_cast<size_t>(at), static_cast<size_t>(vocabulary_)), options, row,
                   texts[row].size()));
  }
  return absl::OkStatus();
}

}  // namespace partita
