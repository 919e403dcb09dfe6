#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

std::string KernelRequest::types() const {
  std::string text;
  for (size_t i = 0; i < step_.operands.size(); ++i) {
    if (i == inputs())
      text += " -> ";
    else if (i > 0)
      text += ", ";
    const Operand& operand = step_.operands[i];
    append(text, operand.dtype == DType::kInvalid ? "none" : dtype_name(operand.dtype), shape_text(operand.shape));
  }
  return text;
}

absl::Status KernelRequest::error(std::string_view expected) const {
  return absl::InvalidArgumentError(cat("kernel '", step_.name, "' expects ", expected, ", found ", types()));
}
absl::Status KernelRequest::unsupported() const {
  return absl::UnimplementedError(cat("kernel '", step_.name, "' does not support ", types()));
}

absl::Status KernelRequest::expect_operands(size_t least_inputs, size_t most_inputs, size_t count,
                                            int optional_from) const {
  const size_t first_optional = optional_from < 0 ? least_inputs : static_cast<size_t>(optional_from);
  bool good = inputs() >= least_inputs && inputs() <= most_inputs && outputs() == count;
  for (size_t i = 0; good && i < step_.operands.size(); ++i) {
    const bool optional = i >= first_optional && i < inputs();
    good =
        (optional || step_.operands[i].dtype != DType::kInvalid) && element_count(step_.operands[i].shape).has_value();
  }
  return good ? absl::OkStatus()
              : error(cat(least_inputs, least_inputs == most_inputs ? "" : cat(" to ", most_inputs), " inputs and ",
                          count, " outputs"));
}

}  // namespace partita::runtime
