#include "tools/manual/completions.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/cat.h"

namespace partita {
namespace {

std::string header(const Command& root, const char* shell) {
  return cat("# Completion of ", root.path[0], " for ", shell, ", made by `", root.path[0], " completion ", shell,
             "`.\n");
}

// 'text' in single quotes for bash and zsh, and for fish.
std::string shell_quoted(const std::string& text) { return cat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'"); }
std::string fish_quoted(const std::string& text) {
  return cat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// The paths of all commands below the first, each quoted, as the pattern of a case.
std::string command_pattern(const Command& root, const char* separator) {
  std::vector<std::string> paths;
  for (const Command* c : all_commands(root))
    if (c->path.size() > 1) paths.push_back(shell_quoted(path_text(*c, " ")));
  return absl::StrJoin(paths, separator);
}

std::string names_of(const std::vector<Command>& commands) {
  return absl::StrJoin(commands, " ", [](std::string* out, const Command& c) { *out += c.path.back(); });
}

std::string names_of(const std::vector<Argument>& options) {
  return absl::StrJoin(options, " ",
                       [](std::string* out, const Argument& a) { append(*out, absl::StrJoin(a.names, " ")); });
}

std::string words_of(const std::vector<Argument>& positionals) {
  return positionals.empty() ? "" : absl::StrJoin(positionals.front().words, " ");
}

// Text within the brackets of a specification of zsh's _arguments.
std::string zsh_escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string zsh_values(const Argument& a) {
  return a.words.empty() ? "_files" : cat("(", absl::StrJoin(a.words, " "), ")");
}

void add_zsh_options(std::string& out, const Command& c) {
  for (const Argument& a : c.options) {
    for (const std::string& name : a.names) {
      std::string spec = a.repeated ? "*" : a.names.size() > 1 ? cat("(", absl::StrJoin(a.names, " "), ")") : "";
      append(spec, name, "[", zsh_escaped(a.description), "]");
      if (!a.value.empty()) append(spec, a.optional_value ? "::" : ":", zsh_escaped(a.value), ":", zsh_values(a));
      append(out, " \\\n    ", shell_quoted(spec));
    }
  }
}

// One function a command, named by its path; those with commands below call the functions of these.
void add_zsh_function(std::string& out, const Command& c) {
  append(out, "_", path_text(c, "_"), "() {\n");
  if (!c.commands.empty()) out += "  local context state state_descr line\n  typeset -A opt_args\n";
  append(out, "  _arguments", c.commands.empty() ? "" : " -C");
  add_zsh_options(out, c);
  for (const Argument& a : c.positionals)
    append(out, " \\\n    ",
           shell_quoted(cat(a.repeated   ? "*"
                            : a.required ? ""
                                         : ":",
                            ":", a.names.front(), ":", zsh_values(a))));
  if (!c.commands.empty()) {
    append(out, " \\\n    '1:command:->command' '*::argument:->argument'\n  case $state in\n    command)\n",
           "      local -a commands=(");
    for (const Command& below : c.commands)
      append(out, "\n        ", shell_quoted(cat(below.path.back(), ":", below.description)));
    out += ")\n      _describe command commands ;;\n    argument)\n      case $line[1] in\n";
    for (const Command& below : c.commands)
      append(out, "        ", below.path.back(), ") _", path_text(below, "_"), " ;;\n");
    out += "      esac ;;\n  esac";
  }
  out += "\n}\n";
}

}  // namespace

std::string bash_completion(const Command& root) {
  const std::string& name = root.path[0];
  std::string out =
      cat(header(root, "bash"), "_", name, "() {\n",
          "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path=", name, " k words=\n",
          "  COMPREPLY=()\n  for ((k = 1; k < COMP_CWORD; ++k)); do\n",
          "    case \"$path ${COMP_WORDS[k]}\" in\n      ", command_pattern(root, "|"),
          ") path+=\" ${COMP_WORDS[k]}\" ;;\n      *) break ;;\n    esac\n  done\n", "  case \"$path:$before\" in\n");
  for (const Command* c : all_commands(root)) {
    for (const Argument& a : c->options) {
      if (a.value.empty() || a.optional_value) continue;
      const std::string pattern = absl::StrJoin(a.names, "|", [&](std::string* to, const std::string& option) {
        *to += shell_quoted(cat(path_text(*c, " "), ":", option));
      });
      append(out, "    ", pattern, ") words=", shell_quoted(cat(" ", absl::StrJoin(a.words, " "))), " ;;\n");
    }
  }
  // No words: `complete -o default` completes file names.
  out += "  esac\n  if [[ -z $words ]]; then\n    case $path in\n";
  for (const Command* c : all_commands(root)) {
    append(out, "      ", shell_quoted(path_text(*c, " ")),
           ")\n        if [[ $word == -* ]]; then words=", shell_quoted(names_of(c->options)),
           "; else words=", shell_quoted(c->commands.empty() ? words_of(c->positionals) : names_of(c->commands)),
           "; fi ;;\n");
  }
  append(
      out,
      "    esac\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\ncomplete -o bashdefault -o default -F _",
      name, " ", name, "\n");
  return out;
}

std::string zsh_completion(const Command& root) {
  const std::string& name = root.path[0];
  std::string out = cat("#compdef ", name, "\n", header(root, "zsh"));
  for (const Command* c : all_commands(root)) add_zsh_function(out, *c);
  // Called by the completion system as a file of that name, or sourced.
  append(out, "if [[ $funcstack[1] == _", name, " ]]; then\n  _", name, " \"$@\"\nelse\n  compdef _", name, " ", name,
         "\nfi\n");
  return out;
}

std::string fish_completion(const Command& root) {
  const std::string& name = root.path[0];
  std::string out = cat(
      header(root, "fish"), "function __", name, "_path\n  set -l path ", name,
      "\n  for word in (commandline -opc)[2..]\n    switch \"$path $word\"\n      case ", command_pattern(root, " "),
      "\n        set path \"$path $word\"\n      case '*'\n        break\n    end\n  end\n  echo $path\nend\n");
  for (const Command* c : all_commands(root)) {
    const std::string start =
        cat("complete -c ", name, " -n ", fish_quoted(cat("test (__", name, "_path) = \"", path_text(*c, " "), "\"")));
    for (const Command& below : c->commands)
      append(out, start, " -f -a ", below.path.back(), " -d ", fish_quoted(below.description), "\n");
    if (const std::string words = words_of(c->positionals); !words.empty())
      append(out, start, " -f -a ", fish_quoted(words), "\n");
    for (const Argument& a : c->options) {
      out += start;
      for (const std::string& option : a.names)
        append(out, option.starts_with("--") ? " -l " : " -s ", option.substr(option.starts_with("--") ? 2 : 1));
      if (!a.words.empty()) {
        append(out, " -x -a ", fish_quoted(absl::StrJoin(a.words, " ")));
      } else if (!a.value.empty() && !a.optional_value) {
        out += " -r -F";
      }
      append(out, " -d ", fish_quoted(a.description), "\n");
    }
  }
  return out;
}

}  // namespace partita
