// partita factors MODEL…: which splits of a model's parts go through with the textbook's communication.
#include <filesystem>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/recipe/read_recipe.h"
#include "tools/cli/command.h"
#include "tools/flow/factor_report.h"

namespace partita {
namespace {

constexpr const char* kPage =
    "# Which splits go through\n\n"
    "Made by `partita factors --markdown MODEL…`. Each row is a part of a model found by structure; each column a way "
    "to "
    "split it. The one transformation\n"
    "(`partitioner/localize/localize.h`) is run on the training graph with just that split pinned, over 2 ranks or the "
    "smallest "
    "number that divides the factor, and every\n"
    "collective that it inserts is counted: all-reduce, all-gather, reduce-scatter, all-to-all of activations as "
    "forward "
    "+ backward; `rows`: all-reduces of one number\n"
    "per row; `gradients`: reductions of parameters' gradients; `update`: gathers before the update. \"yes\": no more "
    "than the textbook has (`partitioner/audit/factor_table.h`).\n"
    "A dash: the split does not apply. Blocks that repeat are analysed once; `times` says how many there are. \"rest "
    "of "
    "the model\" is all that stands in no row above.\n\n";

// The recipe that belongs to a model: `given`, else train.yaml beside it, else none.
absl::StatusOr<Recipe> recipe_of(const std::string& model, const std::string& given) {
  namespace fs = std::filesystem;
  if (!given.empty()) return load_recipe(given);
  std::error_code ec;
  fs::path folder = fs::is_directory(model, ec) ? fs::path(model) : fs::path(model).parent_path();
  fs::path beside = folder / "train.yaml";
  return fs::exists(beside, ec) ? load_recipe(beside.string()) : parse_recipe("", "no recipe");
}

}  // namespace

void add_factors(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::vector<std::string> models;
    std::string train_file;
    bool markdown = false, json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand(
      "factors",
      "which batch, sequence, head, feature and vocabulary splits of a model go through, and what they cost");
  verb->add_option("models", flags->models, "ONNX files, or folders with one")->required();
  verb->add_option("--train", flags->train_file, "the recipe; default: train.yaml beside each model, if there is one");
  verb->add_flag("--markdown", flags->markdown, "as the page docs/factors.md");
  verb->add_flag("--json", flags->json, "one JSON object per line and model");
  verb->callback([flags, &result] {
    auto run = [&]() -> absl::Status {
      std::string page = flags->markdown ? kPage : "";
      for (const std::string& model : flags->models) {
        PARTITA_ASSIGN_OR_RETURN(Recipe recipe, recipe_of(model, flags->train_file));
        auto report = factor_report(model, recipe);
        if (!report.ok()) return with_context(report.status(), quote(model));
        if (flags->markdown) {
          page += to_markdown(*report);
        } else {
          std::printf("%s", flags->json ? cat(to_json(*report), "\n").c_str() : to_text(*report).c_str());
          std::fflush(stdout);
        }
      }
      std::fwrite(page.data(), 1, page.size(), stdout);
      return absl::OkStatus();
    };
    result = run();
  });
}

}  // namespace partita
