// partita model NAME: writes the ONNX graph of a well-known architecture at any size.
#include <filesystem>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/generate/bert.h"
#include "frontend/generate/gpt.h"
#include "frontend/generate/mlp.h"
#include "frontend/generate/resnet.h"
#include "frontend/generate/vit.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

struct OutputFlags {
  std::string output;
  std::optional<int64_t> batch;
  int64_t seed = 0;
  bool with_weights = false, quiet = false;

  void add(CLI::App& verb) {
    verb.add_option("-o,--output", output, "model to write; its weights are FILE.weights")->required();
    verb.add_option("--batch", batch, "size of the batch dimension (default: symbolic, \"batch\")");
    verb.add_flag("--with-weights", with_weights,
                  "write random first weights, too: without them a model can be planned, but not trained");
    verb.add_option("--seed", seed, "of the weights")->capture_default_str();
    verb.add_flag("--quiet", quiet, "say nothing but errors");
  }

  // -1 means a symbolic batch to the generators, not to the user.
  absl::StatusOr<int64_t> batch_size() const {
    if (batch) PARTITA_RETURN_IF_ERROR(check_sizes({{"--batch", *batch}}));
    return batch.value_or(kBatchSymbol);
  }

  absl::Status write(absl::StatusOr<GraphWriter> model) const {
    PARTITA_RETURN_IF_ERROR(model.status());
    if (seed < 0) return absl::InvalidArgumentError(cat("--seed: expected an integer of at least 0, found ", seed));
    PARTITA_RETURN_IF_ERROR(
        write_generated(*model, output, with_weights ? std::optional<int64_t>(seed) : std::nullopt));
    if (!quiet) {
      std::printf("%s: %lld parameters, %lld nodes; %.1f MB of weights %s %s.weights\n", quote(output).c_str(),
                  static_cast<long long>(model->parameters()), static_cast<long long>(model->nodes()),
                  static_cast<double>(model->weight_bytes()) / 1e6, with_weights ? "in" : "would be in",
                  output.c_str());
    }
    return absl::OkStatus();
  }
};

// 0 in a spec stands for "as the model has it", so a 0 that the user gives is refused here.
absl::Status set(int64_t& to, const char* flag, const std::optional<int64_t>& value) {
  if (!value) return absl::OkStatus();
  to = *value;
  return check_sizes({{flag, *value}});
}

void add_gpt(CLI::App& models, absl::Status& result, bool moe) {
  struct Flags {
    GptSpec spec;
    MoeSpec moe;
    OutputFlags out;
    std::string norm = "layernorm", positions = "learned";
    std::optional<int64_t> kv_heads, ffn, moe_ffn;
  };
  auto f = std::make_shared<Flags>();
  CLI::App* verb = moe ? models.add_subcommand("moe",
                                               "decoder-only transformer with a mixture of experts in every layer "
                                               "(GShard's capacity form), loss inside")
                       : models.add_subcommand("gpt", "decoder-only transformer from GPT-2 to Llama, loss inside");
  verb->add_option("--layers", f->spec.layers)->capture_default_str();
  verb->add_option("--hidden", f->spec.hidden)->capture_default_str();
  verb->add_option("--heads", f->spec.heads)->capture_default_str();
  verb->add_option("--kv-heads", f->kv_heads, "heads of keys and values (default: as --heads)");
  verb->add_option("--ffn", f->ffn,
                   "width of the MLP (default: 4 hidden; with a gate 8/3 hidden, rounded up to a multiple of 256)");
  verb->add_option("--vocab", f->spec.vocab)->capture_default_str();
  verb->add_option("--seq", f->spec.sequence)->capture_default_str();
  if (!moe)
    verb->add_flag("--any-seq", f->spec.any_sequence,
                   "leave the length open: a symbolic dimension \"sequence\", to be bound up to --seq");
  verb->add_flag("--gated-mlp,!--no-gated-mlp", f->spec.gated_mlp,
                 "SiLU gate, as in Llama (default: GELU without a gate)");
  verb->add_flag("--bias,!--no-bias", f->spec.bias, "biases in linear layers and layer norms (default: yes)");
  verb->add_flag("--tied,!--no-tied", f->spec.tied, "output head shares the embedding (default: yes)");
  verb->add_option("--norm", f->norm)->check(CLI::IsMember({"layernorm", "rmsnorm"}))->capture_default_str();
  verb->add_option("--positions", f->positions)
      ->check(CLI::IsMember({"learned", "rotary", "none"}))
      ->capture_default_str();
  if (moe) {
    verb->add_option("--experts", f->moe.experts)->capture_default_str();
    verb->add_option("--top-k", f->moe.top_k, "experts for a token")->capture_default_str();
    verb->add_option("--moe-ffn", f->moe_ffn, "width of an expert (default: --ffn)");
  }
  f->out.add(*verb);
  verb->callback([f, moe, &result] {
    auto run = [&]() -> absl::Status {
      GptSpec& s = f->spec;
      PARTITA_RETURN_IF_ERROR(set(s.kv_heads, "--kv-heads", f->kv_heads));
      PARTITA_RETURN_IF_ERROR(set(s.ffn, "--ffn", f->ffn));
      PARTITA_RETURN_IF_ERROR(set(f->moe.ffn, "--moe-ffn", f->moe_ffn));
      PARTITA_ASSIGN_OR_RETURN(s.batch, f->out.batch_size());
      if (moe) s.moe = f->moe;
      s.norm = f->norm == "rmsnorm" ? GptSpec::Norm::kRmsNorm : GptSpec::Norm::kLayerNorm;
      s.positions = f->positions == "learned"  ? GptSpec::Positions::kLearned
                    : f->positions == "rotary" ? GptSpec::Positions::kRotary
                                               : GptSpec::Positions::kNone;
      return f->out.write(generate_gpt(s));
    };
    result = run();
  });
}

// A generator whose flags are its spec's sizes.
template <typename Spec, typename AddFlags, typename Generate>
void add_simple(CLI::App& models, absl::Status& result, const char* name, const char* what, AddFlags add_flags,
                Generate generate) {
  struct Flags {
    Spec spec;
    OutputFlags out;
  };
  auto f = std::make_shared<Flags>();
  CLI::App* verb = models.add_subcommand(name, what);
  add_flags(*verb, f->spec);
  f->out.add(*verb);
  verb->callback([f, generate, &result] {
    auto run = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(f->spec.batch, f->out.batch_size());
      return f->out.write(generate(f->spec));
    };
    result = run();
  });
}

}  // namespace

void add_model(CLI::App& app, absl::Status& result) {
  CLI::App* models = app.add_subcommand("model", "write the ONNX graph of a well-known architecture at any size");
  models->require_subcommand(1);
  add_gpt(*models, result, false);
  add_gpt(*models, result, true);
  add_simple<ResnetSpec>(
      *models, result, "resnet", "torchvision's ResNet, logits out",
      [](CLI::App& verb, ResnetSpec& s) {
        verb.add_option("--depth", s.depth, "18, 34 or 50")->capture_default_str();
        verb.add_option("--classes", s.classes)->capture_default_str();
        verb.add_option("--image", s.image, "height and width")->capture_default_str();
      },
      generate_resnet);
  add_simple<VitSpec>(
      *models, result, "vit", "torchvision's vision transformer, logits out",
      [](CLI::App& verb, VitSpec& s) {
        verb.add_option("--layers", s.layers)->capture_default_str();
        verb.add_option("--hidden", s.hidden)->capture_default_str();
        verb.add_option("--heads", s.heads)->capture_default_str();
        verb.add_option("--patch", s.patch)->capture_default_str();
        verb.add_option("--image", s.image, "height and width")->capture_default_str();
        verb.add_option("--classes", s.classes)->capture_default_str();
      },
      generate_vit);
  struct BertFlags : BertSpec {
    std::optional<int64_t> given_ffn;
  };
  add_simple<BertFlags>(
      *models, result, "bert", "Hugging Face's BERT for masked language modelling, loss inside",
      [](CLI::App& verb, BertFlags& s) {
        verb.add_option("--layers", s.layers)->capture_default_str();
        verb.add_option("--hidden", s.hidden)->capture_default_str();
        verb.add_option("--heads", s.heads)->capture_default_str();
        verb.add_option("--ffn", s.given_ffn, "width of the MLP (default: 4 hidden)");
        verb.add_option("--vocab", s.vocab)->capture_default_str();
        verb.add_option("--seq", s.sequence)->capture_default_str();
      },
      [](BertFlags s) -> absl::StatusOr<GraphWriter> {
        PARTITA_RETURN_IF_ERROR(set(s.ffn, "--ffn", s.given_ffn));
        return generate_bert(s);
      });
  add_simple<MlpSpec>(
      *models, result, "mlp", "linear layers with ReLU between them, logits out",
      [](CLI::App& verb, MlpSpec& s) {
        verb.add_option("--layers", s.sizes, "sizes, first the input's: 784,128,64,10")
            ->delimiter(',')
            ->capture_default_str();
      },
      generate_mlp);
}

}  // namespace partita
