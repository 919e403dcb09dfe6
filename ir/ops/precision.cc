#include "ir/ops/precision.h"

namespace partita {
namespace {

struct Entry {
  std::string_view op;
  OperandPrecision precision;
};

// Contractions are kNarrow, all others kWidest.
constexpr Entry kEntries[] = {
    {"exp", OperandPrecision::kWide},           {"expm1", OperandPrecision::kWide},
    {"log", OperandPrecision::kWide},           {"log1p", OperandPrecision::kWide},
    {"pow", OperandPrecision::kWide},           {"rsqrt", OperandPrecision::kWide},
    {"softplus", OperandPrecision::kWide},      {"tan", OperandPrecision::kWide},
    {"asin", OperandPrecision::kWide},          {"acos", OperandPrecision::kWide},
    {"sinh", OperandPrecision::kWide},          {"cosh", OperandPrecision::kWide},
    {"reduce_sum", OperandPrecision::kWide},    {"reduce_prod", OperandPrecision::kWide},
    {"cumsum", OperandPrecision::kWide},        {"softmax", OperandPrecision::kWide},
    {"log_softmax", OperandPrecision::kWide},   {"layer_norm", OperandPrecision::kWide},
    {"rms_norm", OperandPrecision::kWide},      {"batch_norm", OperandPrecision::kAsIs},
    {"cross_entropy", OperandPrecision::kAsIs}, {"cast", OperandPrecision::kAsIs},
};

}  // namespace

OperandPrecision operand_precision(const OpDef& op) {
  for (const Entry& entry : kEntries) {
    if (entry.op == op.name) return entry.precision;
  }
  return op.work == WorkKind::kMemory ? OperandPrecision::kWidest : OperandPrecision::kNarrow;
}

}  // namespace partita
