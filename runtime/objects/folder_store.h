// An object store that is a folder.
#pragma once

#include "runtime/objects/object_store.h"

namespace partita::runtime {

absl::StatusOr<std::unique_ptr<ObjectStore>> open_folder_store(const std::string& folder, Transfers* transfers);

}  // namespace partita::runtime
