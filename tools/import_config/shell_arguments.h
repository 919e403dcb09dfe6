// The `--name value` arguments in a shell script, or in a plain list of them, as a tree with positions. What a script's
// own lines set (`TP=8`, `ARGS="--fp16"`, `ARGS=( … )`) is put where `$TP` or `${ARGS[@]}` stands; nothing is run.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// A mapping from names, without their dashes and with '-' for '_', to what follows: nothing ("true"), one word, or a
// list of words. Of a name that is there twice the last holds. Variables that no line sets stay as they are written.
// InvalidArgument, "line:column: …", where a quote does not end.
absl::StatusOr<std::shared_ptr<const YamlNode>> parse_shell_arguments(std::string_view text);

}  // namespace partita
