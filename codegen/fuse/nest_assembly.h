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

// What is computed at the points of a box.
struct NestPart {
  LoopNest nest;               // sizes and nodes
  std::vector<ValueId> loads;  // operands of its loads
  std::vector<bool> column;    // by loop
  std::vector<NamedStore> stores;
  std::vector<NamedFold> folds;
};

// Computes `other` beside `part` where both have the same loops, reduce nothing, and read something large in the same
// places; at most `most` operands. False: both are as they were.
bool join(NestPart& part, const NestPart& other, size_t most);

// Appends a nest to `into`, and after it those that add up what its folds leave.
void assemble(const CodeGraph& code, NestPart part, GroupCode& into);

// A group without points computes nothing, but for a reduction of nothing, which has a value all the same.
std::optional<GroupCode> empty_group(const GroupView& group, std::string& why);

}  // namespace partita
