#include "tools/manual/command_tree.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace partita {
namespace {

// CLI11 writes the values of IsMember as "TEXT:{a,b}" and ranges as "INT:INT in [1 - 8]".
void set_value(const std::string& type, Argument& argument) {
  argument.value = type.substr(0, type.find(':'));
  const size_t begin = type.find(":{"), end = type.find('}');
  if (begin != std::string::npos && end != std::string::npos)
    argument.words = absl::StrSplit(type.substr(begin + 2, end - begin - 2), ',');
}

Argument describe(const CLI::Option& option) {
  Argument a;
  for (const std::string& name : option.get_snames()) a.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) a.names.push_back("--" + name);
  if (a.names.empty()) a.names.push_back(option.get_name(/*positional=*/true));
  if (option.get_items_expected_max() != 0) set_value(option.get_type_name(), a);
  a.description = option.get_description();
  a.default_value = option.get_default_str();
  a.required = option.get_required();
  a.repeated = option.get_expected_max() > 1;
  a.optional_value = !a.value.empty() && option.get_items_expected_min() == 0;
  return a;
}

}  // namespace

Command describe(const CLI::App& app) {
  Command c;
  for (const CLI::App* a = &app; a != nullptr; a = a->get_parent()) c.path.insert(c.path.begin(), a->get_name());
  c.description = app.get_description();
  c.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->nonpositional() ? c.options : c.positionals).push_back(describe(*option));
  }
  for (const CLI::App* below : app.get_subcommands({})) {
    if (!below->get_group().empty()) c.commands.push_back(describe(*below));
  }
  return c;
}

std::vector<const Command*> all_commands(const Command& command) {
  std::vector<const Command*> all = {&command};
  for (size_t k = 0; k < all.size(); ++k) {
    std::vector<const Command*> below;
    for (const Command& c : all[k]->commands) below.push_back(&c);
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(k) + 1, below.begin(), below.end());
  }
  return all;
}

std::string path_text(const Command& command, const char* separator) { return absl::StrJoin(command.path, separator); }

}  // namespace partita
