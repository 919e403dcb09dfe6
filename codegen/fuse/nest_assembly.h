// The last step of building: operations, stores and folds become scheduled nests with operands.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/fuse/nest_builder.h"
#include "codegen/fuse/nest_domain.h"

namespace partita {

struct NamedStore {
  ValueId value;
  NestStore store;  // its operand is still open
};
struct NamedFold {
  ValueId value;
  NestFold fold;
};

// Appends a nest to `into`, and after it those that add up what its folds leave.
void assemble(const CodeGraph& code, LoopNest nest, const std::vector<ValueId>& loads, const std::vector<bool>& column,
              const std::vector<NamedStore>& stores, const std::vector<NamedFold>& folds, GroupCode& into);

// A group without points computes nothing, but for a reduction of nothing, which has a value all the same.
std::optional<GroupCode> empty_group(const GroupView& group, std::string& why);

}  // namespace partita
