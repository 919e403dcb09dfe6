#include "codegen/llvm/optimize_module.h"

#include "base/cat.h"
#include "base/status.h"
#include "llvm/Analysis/CGSCCPassManager.h"
#include "llvm/Analysis/LoopAnalysisManager.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Target/TargetMachine.h"

namespace partita {

void optimize_module(llvm::Module& module, llvm::TargetMachine& machine, std::string_view last) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  llvm::ModulePassManager passes;
  auto fault = builder.parsePassPipeline(
      passes,
      cat("function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(loop-rotate,licm),gvn,"
          "instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(licm),",
          last, ")"));
  PARTITA_CHECK(!fault, "the pass pipeline");
  passes.run(module, modules);
}

}  // namespace partita
