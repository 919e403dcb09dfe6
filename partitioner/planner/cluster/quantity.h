// Numbers of a settings file with their unit: 200Gb/s, 80GB, 5us, 312TFLOP/s.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {

enum class Unit { kBytes, kBytesPerSecond, kSeconds, kFlops };

struct Quantity {
  double value = 0;   // bytes, bytes/s, seconds or FLOP/s
  bool said = false;  // with a unit, and not as a number alone
};

// A number alone is in the base unit. k, M, G, T and P are powers of 1000, Ki, Mi, Gi and Ti of 1024; b are bits, B
// bytes; "ps" may stand for "/s". InvalidArgument "line:column: path: expected …, found …".
absl::StatusOr<Quantity> read_quantity(const YamlNode& node, const std::string& path, Unit unit,
                                       const NumberRange& range);

template <typename T, typename Member>
FieldParser<T> quantity(Member T::*member, Unit unit, NumberRange range) {
  return [=](const YamlNode& node, const std::string& path, T& out) -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(const Quantity q, read_quantity(node, path, unit, range));
    out.*member = q.value;
    return absl::OkStatus();
  };
}

}  // namespace partita
