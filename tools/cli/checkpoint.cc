// partita checkpoint inspect | convert | export
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "frontend/onnx/export_weights.h"
#include "ir/recipe/read_recipe.h"
#include "nlohmann/json.hpp"
#include "passes/training/build_optimizer.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/module_files.h"
#include "runtime/checkpoint/module_names.h"
#include "runtime/data/convert.h"
#include "runtime/files/module_weights.h"
#include "runtime/files/safetensors.h"
#include "runtime/files/tensor_checksum.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

using runtime::CheckpointManifest;
using runtime::CheckpointReader;
using runtime::CheckpointTensor;
using runtime::ModuleWeights;
using runtime::SafetensorsWriter;
using runtime::TensorInfo;
using Bytes = std::vector<std::byte>;

absl::StatusOr<CheckpointReader> open_checkpoint(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(std::string folder, runtime::find_checkpoint(path));
  return CheckpointReader::open(folder);
}

int64_t bytes_of(const CheckpointTensor& t) { return *runtime::element_count(t.shape) * dtype_size(t.dtype); }

absl::StatusOr<Bytes> converted(const std::string& name, const Bytes& bytes, DType from, DType to) {
  if (from == to) return bytes;
  PARTITA_ASSIGN_OR_RETURN(runtime::ConvertFunction convert, runtime::find_conversion(from, to));
  const int64_t count = static_cast<int64_t>(bytes.size()) / dtype_size(from);
  Bytes out(static_cast<size_t>(count * dtype_size(to)));
  if (convert(bytes.data(), out.data(), count) >= 0)
    return absl::InvalidArgumentError(cat("tensor ", quote(name), " holds a value that ", dtype_name(to), " cannot"));
  return out;
}

nlohmann::json summary(const CheckpointReader& reader) {
  const CheckpointManifest& m = reader.manifest();
  nlohmann::json tensors = nlohmann::json::array();
  for (const CheckpointTensor& t : m.tensors) {
    tensors.push_back({{"name", t.name},
                       {"kind", enum_name(t.kind)},
                       {"dtype", dtype_name(t.dtype)},
                       {"shape", t.shape},
                       {"checksum", fmt::format("{:016x}", t.checksum)}});
  }
  return {{"folder", reader.folder()},
          {"model", m.model},
          {"fingerprint", runtime::model_fingerprint(m.tensors)},
          {"plan", m.plan},
          {"step", m.step},
          {"samples", m.samples},
          {"seed", m.seed},
          {"layout", m.shared ? "shared" : "boxes"},
          {"ranks", m.ranks},
          {"metrics", m.metrics},
          {"tensors", tensors}};
}

absl::Status inspect(const std::string& path, bool json, bool verify) {
  PARTITA_ASSIGN_OR_RETURN(CheckpointReader reader, open_checkpoint(path));
  const CheckpointManifest& m = reader.manifest();
  for (const CheckpointTensor& t : m.tensors) {
    if (verify) PARTITA_RETURN_IF_ERROR(reader.read_whole(t).status());
  }
  if (json) {
    std::printf("%s\n", summary(reader).dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return absl::OkStatus();
  }
  std::map<std::string_view, std::pair<int64_t, int64_t>> kinds;
  for (const CheckpointTensor& t : m.tensors) {
    kinds[enum_name(t.kind)].first += 1;
    kinds[enum_name(t.kind)].second += bytes_of(t);
  }
  std::printf("%s\nmodel %s, step %lld, %lld samples taken; written by %s%s\n", reader.folder().c_str(),
              quote(m.model).c_str(), static_cast<long long>(m.step), static_cast<long long>(m.samples), m.plan.c_str(),
              m.shared ? "" : cat(", a file for each of ", m.ranks, " ranks").c_str());
  for (const auto& [name, value] : m.metrics) std::printf("%s %.9g\n", name.c_str(), value);
  for (const auto& [kind, total] : kinds)
    std::printf("%-10s %6lld tensors %10.2f MB\n", std::string(kind).c_str(), static_cast<long long>(total.first),
                static_cast<double>(total.second) / 1e6);
  for (const CheckpointTensor& t : m.tensors) {
    std::printf("  %-10s %s %s%s\n", std::string(enum_name(t.kind)).c_str(), quote(t.name).c_str(),
                std::string(dtype_name(t.dtype)).c_str(), runtime::shape_text(t.shape).c_str());
  }
  std::printf("%s\n", verify ? "every tensor has its checksum" : "contents not checked");
  return absl::OkStatus();
}

// A folder that goes, with what is in it, unless it was renamed.
struct Unfinished {
  std::string path;
  ~Unfinished() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// One file of whole tensors from any layout; float parameters in another dtype where asked.
absl::Status convert(const std::string& from, const std::string& to, const std::string& dtype_text) {
  PARTITA_ASSIGN_OR_RETURN(CheckpointReader reader, open_checkpoint(from));
  CheckpointManifest m = reader.manifest();
  const DType dtype = dtype_text.empty() ? DType::kInvalid : parse_dtype(dtype_text);
  if (!dtype_text.empty() && !is_float(dtype))
    return absl::InvalidArgumentError(cat("--dtype ", quote(dtype_text), ": expected f32, f64, bf16 or f16"));
  std::error_code error;
  const std::string partial = cat(to, "/.", runtime::checkpoint_name(m.step), ".partial"),
                    final = cat(to, "/", runtime::checkpoint_name(m.step));
  if (std::filesystem::exists(final, error))
    return absl::FailedPreconditionError(cat(quote(final, 1000), " is there already"));
  const Unfinished unfinished{partial};
  std::filesystem::create_directories(partial, error);
  if (error) return absl::InvalidArgumentError(cat("cannot create ", quote(partial, 1000), ": ", error.message()));
  std::vector<TensorInfo> infos;
  auto wanted = [&](const CheckpointTensor& t) {
    return dtype != DType::kInvalid && t.kind == StateKind::kParameter && is_float(t.dtype) ? dtype : t.dtype;
  };
  for (const CheckpointTensor& t : m.tensors) infos.push_back({t.name, wanted(t), t.shape});
  PARTITA_ASSIGN_OR_RETURN(
      auto file, SafetensorsWriter::create(cat(partial, "/", runtime::kCheckpointStates), infos, {{"format", "pt"}}));
  for (CheckpointTensor& t : m.tensors) {
    PARTITA_ASSIGN_OR_RETURN(Bytes bytes, reader.read_whole(t));
    PARTITA_ASSIGN_OR_RETURN(bytes, converted(t.name, bytes, t.dtype, wanted(t)));
    PARTITA_RETURN_IF_ERROR(file->write(t.name, bytes));
    t.dtype = wanted(t);
    t.checksum =
        runtime::box_checksum(t.shape, std::vector<int64_t>(t.shape.size(), 0), t.shape, dtype_size(t.dtype), bytes);
  }
  PARTITA_RETURN_IF_ERROR(file->finish());
  m.shared = true;
  PARTITA_RETURN_IF_ERROR(
      write_file_atomically(cat(partial, "/", runtime::kCheckpointManifest), runtime::format_manifest(m)));
  std::filesystem::rename(partial, final, error);
  if (error) return absl::InvalidArgumentError(cat("cannot rename to ", quote(final, 1000), ": ", error.message()));
  std::printf("%s\n", final.c_str());
  return absl::OkStatus();
}

// What one tensor of the file to write is made of.
struct Exported {
  TensorInfo info;
  const CheckpointTensor* source = nullptr;         // of the checkpoint
  const runtime::SafetensorsEntry* kept = nullptr;  // or of the example, as it is
};

struct ExportFlags {
  std::string checkpoint, output, folder, like, model, train_file, optimizer;
  bool ema = false;
  runtime::Renaming renaming;
};

// What is written as `t`: of a trained weight its average, where that is asked for.
absl::StatusOr<const CheckpointTensor*> source_of(const CheckpointReader& reader, const CheckpointTensor& t, bool ema) {
  if (!ema || t.kind != StateKind::kParameter) return &t;
  if (const CheckpointTensor* average = reader.find(ema_name(t.name))) return average;
  return absl::InvalidArgumentError(
      cat("--ema: the checkpoint has no moving average of ", quote(t.name), "; train with `ema` in train.yaml"));
}

// Every trained parameter has its place in the example, the exporting module's own file; the rest of that stays as it
// is.
absl::StatusOr<std::vector<Exported>> as_example(const CheckpointReader& reader, const ModuleWeights& example,
                                                 const ExportFlags& flags) {
  const std::vector<CheckpointTensor>& tensors = reader.manifest().tensors;
  const runtime::ModulePlaces places = runtime::place_in_module(tensors, example, flags.renaming);
  PARTITA_RETURN_IF_ERROR(runtime::check_all_placed(tensors, example, flags.renaming, places));
  std::vector<Exported> out;
  std::vector<std::string> kept;
  for (size_t k = 0; k < places.sources.size(); ++k) {
    const auto& entry = example.entries()[k];
    const bool stays = places.sources[k] == nullptr;
    out.push_back({{entry.name, entry.dtype, entry.shape}, places.sources[k], stays ? &entry : nullptr});
    if (stays) kept.push_back(entry.name);
  }
  if (!kept.empty())
    std::fprintf(stderr, "note: not trained, %zu of %zu tensors stay as in %s: %s\n", kept.size(), out.size(),
                 flags.like.c_str(), quote_list(kept).c_str());
  for (const std::string& tie : places.tied)
    std::fprintf(stderr, "note: written as a tied weight, the only ones of their shape: %s\n", tie.c_str());
  return out;
}

// All of the file, which takes its name when it is finished.
absl::StatusOr<std::unique_ptr<SafetensorsWriter>> written(const CheckpointReader& reader,
                                                           std::span<const Exported> list, const ModuleWeights* example,
                                                           const std::string& output, bool ema) {
  std::vector<std::string> changed;
  std::vector<TensorInfo> infos;
  for (const Exported& e : list) infos.push_back(e.info);
  PARTITA_ASSIGN_OR_RETURN(auto file, SafetensorsWriter::create(output, infos, {{"format", "pt"}}));
  for (const Exported& e : list) {
    if (e.kept != nullptr) {
      PARTITA_RETURN_IF_ERROR(file->write(e.info.name, example->data(*e.kept)));
      continue;
    }
    PARTITA_ASSIGN_OR_RETURN(const CheckpointTensor* from, source_of(reader, *e.source, ema));
    PARTITA_ASSIGN_OR_RETURN(Bytes bytes, reader.read_whole(*from));
    if (example != nullptr && runtime::is_rounded_copy(e.source->kind, e.source->dtype, e.info.dtype)) {
      const auto own = example->data(*example->find(e.info.name));
      Bytes merged(own.begin(), own.end());
      PARTITA_ASSIGN_OR_RETURN(const int64_t taken,
                               runtime::take_rounded(e.source->dtype, bytes.data(), e.info.dtype, merged.data(),
                                                     *runtime::element_count(e.info.shape)));
      if (taken > 0) changed.push_back(e.info.name);
      bytes = std::move(merged);
    } else {
      PARTITA_ASSIGN_OR_RETURN(bytes, converted(e.info.name, bytes, e.source->dtype, e.info.dtype));
    }
    PARTITA_RETURN_IF_ERROR(file->write(e.info.name, bytes));
  }
  if (!changed.empty())
    std::fprintf(stderr, "note: frozen, other than in %s, and written as rounded to 16 bits for training: %s\n",
                 example->path().c_str(), quote_list(changed).c_str());
  return file;
}

absl::Status write_exported(const CheckpointReader& reader, std::span<const Exported> list,
                            const ModuleWeights* example, const std::string& output, bool ema) {
  PARTITA_ASSIGN_OR_RETURN(const auto file, written(reader, list, example, output, ema));
  return file->finish();
}

absl::Status export_safetensors(const CheckpointReader& reader, const ExportFlags& flags) {
  std::vector<Exported> list;
  std::optional<ModuleWeights> example;
  if (!flags.like.empty()) {
    PARTITA_ASSIGN_OR_RETURN(example, ModuleWeights::open(flags.like));
    PARTITA_ASSIGN_OR_RETURN(list, as_example(reader, *example, flags));
  } else {
    // Frozen values are the graph's constants as often as a module's buffers: only an example tells which.
    for (const CheckpointTensor& t : reader.manifest().tensors) {
      if (t.kind == StateKind::kParameter || t.kind == StateKind::kRunning)
        list.push_back({{flags.renaming(t.name), t.dtype, t.shape}, &t, nullptr});
    }
  }
  return write_exported(reader, list, example ? &*example : nullptr, flags.output, flags.ema);
}

// Into a folder like the example: the same shards and index, and what else lies beside them (config.json, the
// tokenizer's files), but for weights in other formats.
absl::Status export_folder(const CheckpointReader& reader, const ExportFlags& flags) {
  namespace fs = std::filesystem;
  if (!runtime::is_module_folder(flags.like))
    return absl::InvalidArgumentError(
        cat("--hf: expected --like FOLDER, which save_pretrained() wrote for this model: its config.json, names and "
            "dtypes are taken over; found ",
            flags.like.empty() ? "none" : quote(flags.like, 1000)));
  std::error_code error;
  if (fs::exists(flags.folder, error) && !fs::is_empty(flags.folder, error))
    return absl::FailedPreconditionError(cat("--hf ", quote(flags.folder, 1000), " is there already, and not empty"));
  PARTITA_ASSIGN_OR_RETURN(const ModuleWeights example, ModuleWeights::open(flags.like));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Exported> list, as_example(reader, example, flags));
  fs::create_directories(flags.folder, error);
  if (error) return absl::InvalidArgumentError(cat("cannot create ", quote(flags.folder, 1000), ": ", error.message()));
  for (size_t begin = 0, shard = 0; shard < example.shards().size(); ++shard) {
    size_t end = begin;  // entries lie shard by shard
    while (end < list.size() && example.shard_of(example.entries()[end]) == shard) ++end;
    PARTITA_RETURN_IF_ERROR(write_exported(reader, std::span(list).subspan(begin, end - begin), &example,
                                           cat(flags.folder, "/", example.shards()[shard]), flags.ema));
    begin = end;
  }
  constexpr std::string_view kOtherWeights[] = {".safetensors", ".bin", ".pt",      ".pth",  ".ckpt",
                                                ".gguf",        ".h5",  ".msgpack", ".onnx", ".bin.index.json"};
  for (const fs::directory_entry& e : fs::directory_iterator(flags.like, error)) {
    const std::string name = e.path().filename().string();
    const bool weights = std::any_of(std::begin(kOtherWeights), std::end(kOtherWeights),
                                     [&](std::string_view end) { return name.ends_with(end); });
    if (!weights && e.is_regular_file(error)) fs::copy_file(e.path(), cat(flags.folder, "/", name), error);
    if (error)
      return absl::InvalidArgumentError(cat("cannot copy ", quote(e.path().string(), 1000), " to ",
                                            quote(flags.folder, 1000), ": ", error.message()));
  }
  if (error) return absl::InvalidArgumentError(cat("cannot list ", quote(flags.like, 1000), ": ", error.message()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> written_optimizer(const CheckpointReader& reader,
                                                                     const ExportFlags& flags) {
  std::vector<Exported> list;
  for (const CheckpointTensor& t : reader.manifest().tensors) {
    if (t.kind == StateKind::kOptimizer)
      list.push_back(
          {{flags.renaming(runtime::module_name(t.name, t.kind, t.parameter)), t.dtype, t.shape}, &t, nullptr});
    if (t.kind == StateKind::kStep) list.push_back({{"step", t.dtype, t.shape}, &t, nullptr});
  }
  return written(reader, list, nullptr, flags.optimizer, false);
}

absl::Status export_onnx(const CheckpointReader& reader, const ExportFlags& flags) {
  if (flags.model.empty())
    return absl::InvalidArgumentError("to write ONNX, say --model FILE: the graph that the weights belong to");
  Recipe recipe;
  if (!flags.train_file.empty()) {
    PARTITA_ASSIGN_OR_RETURN(recipe, load_recipe(flags.train_file));
  }
  size_t wanted = 0;
  for (const CheckpointTensor& t : reader.manifest().tensors) wanted += t.kind == StateKind::kParameter;
  auto values = [&](const std::string& name, const TensorType& type) -> absl::StatusOr<std::optional<Bytes>> {
    auto renamed = recipe.names.find(name);
    const CheckpointTensor* t = reader.find(renamed == recipe.names.end() ? name : renamed->second);
    if (t == nullptr || (t->kind != StateKind::kParameter && t->kind != StateKind::kRunning))
      return std::optional<Bytes>();
    if (t->shape != type.shape) {
      return absl::InvalidArgumentError(cat("initializer ", quote(name), " is ", to_string(type), " in ",
                                            quote(flags.model), " and ", dtype_name(t->dtype),
                                            runtime::shape_text(t->shape), " in the checkpoint"));
    }
    PARTITA_ASSIGN_OR_RETURN(t, source_of(reader, *t, flags.ema));
    PARTITA_ASSIGN_OR_RETURN(Bytes bytes, reader.read_whole(*t));
    PARTITA_ASSIGN_OR_RETURN(bytes, converted(name, bytes, t->dtype, type.dtype));
    return std::optional<Bytes>(std::move(bytes));
  };
  PARTITA_ASSIGN_OR_RETURN(int64_t replaced, write_onnx_with_weights(flags.model, flags.output, values));
  if (replaced < static_cast<int64_t>(wanted)) {
    return absl::InvalidArgumentError(cat(quote(flags.model), " has ", replaced, " of the checkpoint's ", wanted,
                                          " parameters; is it the model that was trained?"));
  }
  return absl::OkStatus();
}

std::filesystem::path canonical(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
}

// That nothing is written over a checkpoint, nor one file over the other.
absl::Status check_outputs(const CheckpointReader& reader, const ExportFlags& flags) {
  if (flags.output.empty() == flags.folder.empty())
    return absl::InvalidArgumentError("say either -o NAME.safetensors, -o NAME.onnx, or --hf FOLDER");
  for (const auto& [flag, path] : {std::pair{"-o", flags.output}, {"--optimizer", flags.optimizer}}) {
    const std::filesystem::path folder = canonical(path).parent_path();
    if (!path.empty() && (folder == canonical(reader.folder()) || runtime::checkpoint_step(folder.filename().string())))
      return absl::InvalidArgumentError(
          cat(flag, " ", quote(path, 1000), " lies in a checkpoint; choose another place"));
  }
  if (!flags.optimizer.empty() && canonical(flags.output) == canonical(flags.optimizer))
    return absl::InvalidArgumentError(
        cat("-o and --optimizer are both ", quote(flags.output, 1000), "; choose two files"));
  return absl::OkStatus();
}

absl::Status export_checkpoint(const ExportFlags& flags) {
  PARTITA_ASSIGN_OR_RETURN(CheckpointReader reader, open_checkpoint(flags.checkpoint));
  PARTITA_RETURN_IF_ERROR(check_outputs(reader, flags));
  const std::string& strip = flags.renaming.strip;
  const std::vector<CheckpointTensor>& all = reader.manifest().tensors;
  if (std::none_of(all.begin(), all.end(), [&](const CheckpointTensor& t) { return t.name.starts_with(strip); }))
    std::fprintf(stderr, "warning: --strip-prefix %s: no name of the checkpoint begins so\n", quote(strip).c_str());
  // Before the weights take their name: where one of both cannot be written, neither is.
  std::unique_ptr<SafetensorsWriter> optimizer;
  if (!flags.optimizer.empty()) {
    PARTITA_ASSIGN_OR_RETURN(optimizer, written_optimizer(reader, flags));
  }
  if (!flags.folder.empty()) {
    PARTITA_RETURN_IF_ERROR(export_folder(reader, flags));
  } else if (flags.output.ends_with(".onnx")) {
    PARTITA_RETURN_IF_ERROR(export_onnx(reader, flags));
  } else if (flags.output.ends_with(".safetensors")) {
    PARTITA_RETURN_IF_ERROR(export_safetensors(reader, flags));
  } else {
    return absl::InvalidArgumentError(
        cat("--output ", quote(flags.output), ": expected a name ending in .safetensors or .onnx"));
  }
  return optimizer == nullptr ? absl::OkStatus() : optimizer->finish();
}

}  // namespace

void add_checkpoint(CLI::App& app, absl::Status& result) {
  CLI::App* verb = app.add_subcommand("checkpoint", "look into, convert and export checkpoints");
  verb->require_subcommand(1);
  struct InspectFlags {
    std::string path;
    bool json = false, quick = false;
  };
  auto look = std::make_shared<InspectFlags>();
  CLI::App* inspect_verb = verb->add_subcommand("inspect", "say what a checkpoint holds, and check its contents");
  inspect_verb->add_option("checkpoint", look->path, "a checkpoint, or a folder of them: the newest")->required();
  inspect_verb->add_flag("--json", look->json, "as JSON");
  inspect_verb->add_flag("--no-verify", look->quick, "read the manifest alone");
  inspect_verb->callback([look, &result] { result = inspect(look->path, look->json, !look->quick); });

  struct ConvertFlags {
    std::string from, to, dtype;
  };
  auto turn = std::make_shared<ConvertFlags>();
  CLI::App* convert_verb =
      verb->add_subcommand("convert", "gather ranks' files into one, or store parameters in another float format");
  convert_verb->add_option("checkpoint", turn->from, "a checkpoint, or a folder of them: the newest")->required();
  convert_verb->add_option("-o,--output", turn->to, "folder that gets the new one, under the same step")->required();
  convert_verb->add_option("--dtype", turn->dtype, "of parameters: f32, f64, bf16 or f16");
  convert_verb->callback([turn, &result] { result = convert(turn->from, turn->to, turn->dtype); });

  auto out = std::make_shared<ExportFlags>();
  CLI::App* export_verb =
      verb->add_subcommand("export", "write the weights for PyTorch (.safetensors) or as an ONNX model (.onnx)");
  export_verb->add_option("checkpoint", out->checkpoint, "a checkpoint, or a folder of them: the newest")->required();
  export_verb->add_option("-o,--output", out->output, "NAME.safetensors or NAME.onnx (weights in NAME.onnx.weights)");
  export_verb->add_option("--hf", out->folder,
                          "in place of -o: a folder that from_pretrained() loads, made like the folder of --like");
  export_verb->add_option("--like", out->like,
                          "a safetensors file of the module, or its folder: write its very names and dtypes");
  export_verb->add_option("--strip-prefix", out->renaming.strip,
                          "taken from the front of the checkpoint's names: what a wrapper of the module added");
  export_verb->add_option("--add-prefix", out->renaming.add, "put before the checkpoint's names");
  export_verb->add_option("--model", out->model, "the ONNX file that was trained (for .onnx)");
  export_verb->add_option("--train", out->train_file, "its train.yaml, where that has `names` (for .onnx)");
  export_verb->add_option("--optimizer", out->optimizer,
                          "also write the optimizer's states: NAME.safetensors with PARAMETER.exp_avg and the like");
  export_verb->add_flag("--ema", out->ema,
                        "the moving averages of the trained weights (`ema` in train.yaml) in place of the weights");
  export_verb->callback([out, &result] { result = export_checkpoint(*out); });
}

}  // namespace partita
