// The `pin` section of train.yaml, and presets: named lists of pins.
#pragma once

#include <string>
#include <string_view>

#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

absl::Status parse_pins(const YamlNode& node, const std::string& path, PinRecipe& out);
// Sets the pin `entry`, over an earlier one of the same key.
absl::Status parse_pin(const YamlEntry& entry, const std::string& path, PinRecipe& out);

// `--pin KEY=VALUE`: one entry of the `pin` section, which it replaces; VALUE is YAML: "tensor=8", "layers.*.up={out:
// tensor}". InvalidArgument as the recipe's reader has it.
absl::Status apply_pin(Recipe& recipe, std::string_view key_value);

// `--like NAME[:ARGUMENTS]`: ddp, fsdp, hsdp, zero1, zero2, zero3, zero3-offload, megatron, gpipe, pipedream; arguments
// as "tp8,pp4" (tp, pp, cp, ep, dp, vpp, mb, zero). Overwrites the pins that the preset names and leaves the others.
// InvalidArgument lists the presets or the arguments.
absl::Status apply_preset(Recipe& recipe, std::string_view preset);

// Takes the cuts of `before` out of `pin` where it has another number of stages or chunks: they are those of others.
void drop_other_cuts(const PinRecipe& before, PinRecipe& pin);

}  // namespace partita
