#include "tools/manual/man_page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/cat.h"

namespace partita {
namespace {

// Text that roff shows as it is: hyphens that can be copied, no escapes, no requests at the start of a line.
std::string plain(const std::string& text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

std::string bold(const std::string& text) { return cat("\\fB", plain(text), "\\fR"); }
std::string italic(const std::string& text) { return cat("\\fI", plain(text), "\\fR"); }

std::string value_text(const Argument& a) {
  return a.words.empty()
             ? italic(a.value)
             : absl::StrJoin(a.words, "|", [](std::string* out, const std::string& word) { *out += bold(word); });
}

void add_paragraph(std::string& page, const std::string& head, const std::string& text) {
  append(page, ".TP\n", head, "\n", text.empty() ? "\\&" : plain(text), "\n");
}

std::string details(const Argument& a) {
  std::string text = a.description;
  if (!a.default_value.empty()) append(text, text.empty() ? "" : "; ", "default: ", a.default_value);
  if (a.required) append(text, text.empty() ? "" : "; ", "required");
  return text;
}

std::string synopsis(const Command& c) {
  std::string line = bold(path_text(c, " "));
  for (const Argument& a : c.options)
    if (a.required) append(line, " ", bold(a.names.back()), " ", value_text(a));
  if (!c.options.empty()) append(line, " [", italic("option"), " ...]");
  for (const Argument& a : c.positionals) {
    const std::string name = cat(italic(a.names.front()), a.repeated ? " ..." : "");
    append(line, " ", a.required ? name : cat("[", name, "]"));
  }
  if (!c.commands.empty()) append(line, " ", italic("command"), " ...");
  return line;
}

}  // namespace

std::string man_page(const Command& c, const std::string& version) {
  const std::string name = path_text(c, "-");
  std::string page = cat(".TH \"", plain(absl::AsciiStrToUpper(name)), "\" \"1\" \"\" \"", plain(version),
                         "\" \"Partita\"\n.SH NAME\n", plain(name), " \\- ", plain(c.description), "\n.SH SYNOPSIS\n",
                         synopsis(c), "\n");
  if (!c.positionals.empty()) page += ".SH ARGUMENTS\n";
  for (const Argument& a : c.positionals)
    add_paragraph(page, a.words.empty() ? italic(a.names.front()) : value_text(a), a.description);
  if (!c.options.empty()) page += ".SH OPTIONS\n";
  for (const Argument& a : c.options) {
    std::string head = absl::StrJoin(a.names, ", ", [](std::string* out, const std::string& n) { *out += bold(n); });
    if (!a.value.empty()) append(head, " ", a.optional_value ? cat("[", value_text(a), "]") : value_text(a));
    add_paragraph(page, cat(head, a.repeated ? " ..." : ""), details(a));
  }
  if (!c.commands.empty()) page += ".SH COMMANDS\n";
  for (const Command& below : c.commands)
    add_paragraph(page, cat(bold(path_text(below, "-")), "(1)"), below.description);
  if (!c.footer.empty()) append(page, ".SH NOTES\n", plain(c.footer), "\n");
  if (c.path.size() > 1) {
    const std::string above = absl::StrJoin(c.path.begin(), c.path.end() - 1, "-");
    append(page, ".SH SEE ALSO\n", bold(above), "(1)\n");
  }
  return page;
}

}  // namespace partita
