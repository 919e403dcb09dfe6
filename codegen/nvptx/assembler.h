// ptxas as a program of its own: PTX in, machine code out.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/nvptx/device_code.h"

namespace partita {

struct Assembled {
  std::vector<uint8_t> cubin;
  std::vector<DeviceKernel> kernels;
};
// FailedPrecondition where the assembler cannot be run or refuses; ResourceExhausted where the disk is full.
absl::StatusOr<Assembled> assemble_ptx(const std::string& ptx, const DeviceTarget& target);

// PTX in which the kernels that spilled ask for one block a multiprocessor. Where nothing is asked, ptxas spills a few
// registers so that one more block fits; these then have what 65536 registers leave each thread of a block.
std::string ask_for_one_block(std::string ptx, const std::vector<DeviceKernel>& kernels);

// What `ptxas -v` wrote of registers and spills.
std::vector<DeviceKernel> parse_assembler_report(const std::string& report);

}  // namespace partita
