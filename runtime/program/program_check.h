// Whether a Program is consistent: every index, enumeration, offset and size in range, so that the executor may trust
// it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// DataLoss, naming the step (id, name, ONNX origin), state, input or output. It does not look into generated code or
// the params of library kernels.
absl::Status check_program(const Program& program);
// The programs of a pipeline's stages (else one): each, and that they are as many as the mesh has, of one run.
absl::Status check_programs(const std::vector<Program>& programs);

// "step 12 matmul ('MatMul /h.0/attn')": for messages.
std::string describe_step(const Program& program, const Step& step);

// Bytes of an operand, or -1 where a dimension is negative or the product too large; 0 for an absent one.
int64_t operand_bytes(const Operand& operand);
// Whether an operand is there, and begins within another one's bytes.
bool begins_in(const Operand& operand, const Operand& whole);

}  // namespace partita::runtime
