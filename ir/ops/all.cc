// The list of ops: one line each.
#include "ir/op_def.h"

namespace partita {

extern const OpDef kAdd, kMul;
extern const OpDef kGelu, kGeluGrad;
extern const OpDef kReshape;
extern const OpDef kMatMul;

namespace {
const OpDef* const kOps[] = {
    &kAdd, &kMul,
    &kGelu, &kGeluGrad,
    &kReshape,
    &kMatMul,
};
}  // namespace

std::span<const OpDef* const> all_ops() { return kOps; }

}  // namespace partita
