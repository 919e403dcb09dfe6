#include "tests/ir/op_cases.h"

namespace partita {

std::vector<OpCase> nn_op_cases() { return {}; }

}  // namespace partita
