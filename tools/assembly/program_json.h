// A rank program as JSON, all of it. Keys are the field names of runtime/program/program.h (program_fields.h lists
// them), values:
//
//   integers and texts           as they are
//   enumerations                 by name: "forward", "f32"; an absent operand's dtype is "invalid"
//   reals                        numbers with a fraction or exponent; {"real": "nan"}, "inf" and "-inf" where there is
//                                no such number
//   params                       an object: 1, 1.0, "text", [1, 2], {"reals": [1.0, 2.0]}
//   kernels, constants           in base64
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/program/program.h"

namespace partita {

// InvalidArgument where a name is no UTF-8, which JSON cannot hold.
absl::StatusOr<nlohmann::ordered_json> program_json(const runtime::Program& program);
// InvalidArgument "PLACE.segments[0].steps[3].units: expected …, found …" where a field is absent, unknown, or holds
// what it cannot hold. Whether the program makes sense is not looked at.
absl::StatusOr<runtime::Program> parse_program_json(const nlohmann::ordered_json& json, const std::string& place);

// JSON with a line for each step, state, or entry of another list of records.
std::string indented(const nlohmann::ordered_json& json);

}  // namespace partita
