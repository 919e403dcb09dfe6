// partita predict | generate
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ir/recipe/read_recipe.h"
#include "runtime/data/data_config_json.h"
#include "runtime/execute/input_stage.h"
#include "runtime/files/safetensors.h"
#include "runtime/run_flags.h"
#include "tools/cli/command.h"
#include "tools/flow/data_settings.h"
#include "tools/predict/generator.h"

namespace partita {
namespace {

// What both verbs need to know: the model, its recipe, and where its weights are.
struct PredictFlags {
  std::string model, train_file, weights;
  std::vector<std::string> sets;
  int threads = 0;

  void add(CLI::App& app) {
    app.add_option("model", model, "the ONNX file that was trained, or its folder")->required();
    app.add_option("--train", train_file, "its train.yaml");
    app.add_option("--set", sets, "a key of the recipe said over again: data.dtype=u16");
    app.add_option(
        "--weights", weights,
        "trained weights: what --save wrote, or a folder of checkpoints or one of them; without: the model's own");
    app.add_option("--threads", threads, "threads; without: all cores")->check(CLI::Range(1, 4096));
  }
  absl::StatusOr<Recipe> recipe() const {
    if (train_file.empty() && sets.empty()) return Recipe{};
    PARTITA_ASSIGN_OR_RETURN(Recipe recipe, load_recipe(train_file, sets));
    for (LossRecipe& loss : recipe.loss) loss.teacher.clear();  // what is asked for is of the model alone
    return recipe;
  }
};

// The data's settings as a run of the model has them.
absl::StatusOr<runtime::DataConfig> data_of(ModelSource& source, int64_t samples) {
  PARTITA_ASSIGN_OR_RETURN(const auto model, source.import(samples, /*training=*/false));
  return runtime::data_config_from_json(run_settings(source.recipe(), model->graph)["data"]);
}

struct GenerateFlags : PredictFlags {
  std::string prompt, prompt_ids, value;
  int64_t tokens = 100, samples = 1;
  SamplerOptions sampler;
};

absl::StatusOr<std::vector<int64_t>> ids_of(const std::string& text) {
  std::vector<int64_t> ids;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find(',', at);
    if (end == text.npos) end = text.size();
    int64_t id = 0;
    const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc{} || rest != text.data() + end)
      return absl::InvalidArgumentError(
          cat("--prompt-ids ", quote(text), ": expected ids with commas between them, as 464,3290"));
    ids.push_back(id);
    at = end + 1;
  }
  return ids;
}

// A byte that a terminal should not see is shown as it would be in C.
std::string shown(int64_t byte) {
  if (byte > 0xff) return cat("<", byte, ">");
  if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7f)) return std::string(1, static_cast<char>(byte));
  return fmt::format("\\x{:02x}", byte);
}

absl::StatusOr<std::vector<int64_t>> prompt_of(const GenerateFlags& flags, const Recipe& recipe, int64_t vocabulary) {
  if (flags.prompt.empty() == flags.prompt_ids.empty())
    return absl::InvalidArgumentError("expected --prompt TEXT, or --prompt-ids with ids of the model's tokenizer");
  if (!flags.prompt_ids.empty()) return ids_of(flags.prompt_ids);
  const bool bytes = vocabulary <= 256 || (recipe.data && recipe.data->dtype == DType::kU8);
  if (!bytes)
    return absl::InvalidArgumentError(cat("--prompt: the model knows ", vocabulary,
                                          " tokens and none of them by their text: give it the ids that its "
                                          "tokenizer makes of the text, --prompt-ids 464,3290; a model whose tokens "
                                          "are bytes takes text (data: dtype: u8)"));
  std::vector<int64_t> ids;
  for (char c : flags.prompt) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

void print(const std::vector<int64_t>& text, bool bytes) {
  std::string line;
  for (size_t k = 0; k < text.size(); ++k) {
    if (bytes) {
      line += shown(text[k]);
    } else {
      append(line, k > 0 ? "," : "", text[k]);
    }
  }
  std::printf("%s\n", line.c_str());
}

absl::Status generate(const GenerateFlags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const Recipe recipe, flags.recipe());
  ModelSource source(flags.model, recipe);
  std::vector<std::string> values;
  if (!flags.value.empty()) values.push_back(flags.value);
  PARTITA_ASSIGN_OR_RETURN(ForwardProgram prediction, compile_prediction(source, flags.samples, values));
  PARTITA_ASSIGN_OR_RETURN(auto predictor, Predictor::create(std::move(prediction), flags.weights, flags.threads));
  PARTITA_ASSIGN_OR_RETURN(const runtime::DataConfig columns, data_of(source, flags.samples));
  PARTITA_ASSIGN_OR_RETURN(const auto generator, Generator::open(std::move(predictor), columns));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> prompt, prompt_of(flags, recipe, generator->vocabulary()));
  std::vector<std::vector<int64_t>> texts(static_cast<size_t>(flags.samples), prompt);
  for (int64_t k = 0; k < flags.tokens; ++k) PARTITA_RETURN_IF_ERROR(generator->extend(texts, flags.sampler));
  for (size_t k = 0; k < texts.size(); ++k) {
    if (k > 0) std::printf("---\n");
    print(texts[k], flags.prompt_ids.empty());
  }
  return absl::OkStatus();
}

struct ValueFlags : PredictFlags {
  std::string data, output;
  std::vector<std::string> values;
  int64_t batch = 0, batches = -1;
};

// Whether a sample's pictures are others in each epoch.
bool draws(const ImageSettings& images) {
  return images.crop == ImageCrop::kRandom || images.crop == ImageCrop::kRandomResized || images.flip > 0;
}

// One file of every value, the samples of all batches one after the other.
absl::Status predict(const ValueFlags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const Recipe recipe, flags.recipe());
  ModelSource source(flags.model, recipe);
  const int64_t samples = flags.batch > 0 ? flags.batch : recipe.batch.global.value_or(1);
  PARTITA_ASSIGN_OR_RETURN(ForwardProgram prediction, compile_prediction(source, samples, flags.values));
  PARTITA_ASSIGN_OR_RETURN(const auto predictor,
                           Predictor::create(std::move(prediction), flags.weights, flags.threads));
  PARTITA_ASSIGN_OR_RETURN(runtime::DataConfig data, data_of(source, samples));
  data.shuffle = false;
  if (!flags.data.empty()) PARTITA_RETURN_IF_ERROR(runtime::take_data_flag(flags.data, data));
  if (!(recipe.data && recipe.data->kind)) data.kind = runtime::guess_data_kind(data.path);
  PARTITA_ASSIGN_OR_RETURN(const auto inputs, runtime::InputStage::open(data, predictor->executor()));
  const int64_t all = inputs->source().samples_per_epoch(), whole = all / samples;
  const int64_t batches = flags.batches >= 0 ? flags.batches : whole;
  if (batches < 1)
    return absl::InvalidArgumentError(cat("expected at least ", samples, " samples, a batch, found ",
                                          inputs->source().samples_per_epoch(), "; say --batch for smaller ones"));
  if (draws(data.images))
    std::fprintf(stderr,
                 "warning: pictures are cropped or flipped at random, as data: images says for training; say what an "
                 "evaluation does with them: --set 'data.images={crop: center, …}'\n");
  std::vector<runtime::TensorInfo> infos;
  for (const runtime::ProgramOutput& o : predictor->program().outputs) {
    std::vector<int64_t> shape = o.operand.shape;
    if (shape.empty() || shape[0] % samples != 0) {
      shape.insert(shape.begin(), batches);  // one a batch
    } else {
      shape[0] *= batches;
    }
    infos.push_back({o.name, o.operand.dtype, std::move(shape)});
  }
  PARTITA_ASSIGN_OR_RETURN(auto file, runtime::SafetensorsWriter::create(flags.output, infos, {{"format", "pt"}}));
  PARTITA_RETURN_IF_ERROR(inputs->start(0, batches));
  for (int64_t k = 0; k < batches; ++k) {
    PARTITA_ASSIGN_OR_RETURN(runtime::Batch batch, inputs->take(k));
    PARTITA_RETURN_IF_ERROR(predictor->run([&] { return inputs->stage(batch, 0, 0); }));
    inputs->give_back(std::move(batch));
    for (size_t o = 0; o < infos.size(); ++o) {
      std::vector<int64_t> offset(infos[o].shape.size(), 0), extent = infos[o].shape;
      extent[0] /= batches, offset[0] = k * extent[0];
      PARTITA_RETURN_IF_ERROR(file->write(infos[o].name, offset, extent,
                                          predictor->executor().memory(predictor->program().outputs[o].operand)));
    }
  }
  PARTITA_RETURN_IF_ERROR(file->finish());
  if (flags.batches < 0 && all % samples != 0)
    std::fprintf(stderr, "warning: the last %s of %s samples do not fill a batch of %s and are left out; say --batch\n",
                 std::to_string(all % samples).c_str(), std::to_string(all).c_str(), std::to_string(samples).c_str());
  std::printf("%s: %s samples\n", flags.output.c_str(), std::to_string(batches * samples).c_str());
  for (const runtime::TensorInfo& info : infos)
    std::printf("  %s %s%s\n", quote(info.name).c_str(), std::string(dtype_name(info.dtype)).c_str(),
                runtime::shape_text(info.shape).c_str());
  return absl::OkStatus();
}

}  // namespace

void add_predict(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<ValueFlags>();
  CLI::App* verb =
      app.add_subcommand("predict", "compute values of a trained model for samples, and write them to a file");
  flags->add(*verb);
  verb->add_option("--data", flags->data, "samples, as `run` takes them");
  verb->add_option(
      "--value", flags->values,
      "an output of the model or a value within it, by its ONNX name; may be said several times; without: the "
      "scores that the loss compares with the labels");
  verb->add_option("--batch", flags->batch, "samples at a time; without: the recipe's batch")
      ->check(CLI::Range(1, 1 << 30));
  verb->add_option("--batches", flags->batches, "how many; without: all whole ones")->check(CLI::Range(1, 1 << 30));
  verb->add_option("-o,--output", flags->output, "NAME.safetensors")->required();
  verb->callback([flags, &result] { result = predict(*flags); });
}

void add_generate(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* verb = app.add_subcommand("generate", "go on with a text by a trained model");
  flags->add(*verb);
  verb->add_option("--prompt", flags->prompt, "the text to go on with, of a model whose tokens are bytes");
  verb->add_option("--prompt-ids", flags->prompt_ids, "its ids by the model's tokenizer, as 464,3290; ids are printed");
  verb->add_option("--tokens", flags->tokens, "how many more")->check(CLI::Range(1, 1 << 20));
  verb->add_option("--samples", flags->samples, "texts that go on from the prompt")->check(CLI::Range(1, 1 << 16));
  verb->add_option("--temperature", flags->sampler.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--top-k", flags->sampler.top_k, "draw from the so many likeliest alone")
      ->check(CLI::Range(1, 1 << 30));
  verb->add_option("--top-p", flags->sampler.top_p, "draw from the likeliest that have this share together")
      ->check(CLI::Range(1e-6, 1.0));
  verb->add_option("--seed", flags->sampler.seed, "of the draws");
  verb->add_option("--value", flags->value, "the model's value with the scores of the next token, by its ONNX name");
  verb->callback([flags, &result] { result = generate(*flags); });
}

}  // namespace partita
