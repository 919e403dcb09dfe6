// A bundle's programs as text for people: each step with its kernel, its operands by the ONNX names of their values,
// its group of ranks, the bytes that it moves, and the ONNX node that it comes from.
#pragma once

#include <string>

#include "tools/verify/bundle/bundle.h"

namespace partita {

std::string listing(const verifier::Bundle& bundle);

}  // namespace partita
