// Counted programs as tables for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "partitioner/planner/cluster/device_profile.h"
#include "tests/counts/counted_program.h"

namespace partita::counts {

// `shown`: rows at most, those that take longest on the first device.
std::string table(const CountedProgram& program, const std::vector<const DeviceProfile*>& devices, size_t shown);
// Launches and bytes of a step, and by device the sums of the kernels that are bound by memory, and of all.
std::string sums(const CountedProgram& program, const std::vector<const DeviceProfile*>& devices);
// A line for the sums, and one for each row.
std::string json(const CountedProgram& program, const std::vector<const DeviceProfile*>& devices);

}  // namespace partita::counts
