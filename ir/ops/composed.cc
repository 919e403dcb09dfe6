#include "ir/ops/composed.h"

namespace partita {

bool is_composed(const OpDef& op) { return op.name == "rms_norm" || op.name == "rotary"; }

}  // namespace partita
