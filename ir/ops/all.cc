// The list of ops: one line each.
#include "ir/op/op_def.h"

namespace partita {

extern const OpDef kAdd, kMul;
extern const OpDef kSub, kDiv, kMod, kPow, kMax, kMin, kNeg, kAbs, kSign, kFloor, kCeil, kRound, kPowerOfTwo, kSelect,
    kCast;
extern const OpDef kExp, kExpm1, kLog, kLog1p, kSqrt, kRsqrt, kSin, kCos, kTan, kAsin, kAcos, kAtan, kSinh, kCosh,
    kTanh, kErf;
extern const OpDef kSigmoid, kSilu, kSiluGrad, kSoftplus, kRelu, kReluGrad;
extern const OpDef kEq, kNe, kLt, kLe, kAnd, kOr, kXor, kNot, kShl, kShr, kIsNan, kIsInf, kUniform, kNormal;
extern const OpDef kGelu, kGeluGrad;
extern const OpDef kReshape;
extern const OpDef kTranspose, kBroadcast, kSlice, kPad, kConcat, kReverse, kIota;
extern const OpDef kReduceSum, kReduceMax, kReduceMin, kReduceProd, kArgmax, kCumsum, kTopk;
extern const OpDef kDispatch, kCombine;
extern const OpDef kGather, kGatherGrad, kGatherRows, kGatherRowsGrad, kTakeAlong, kTakeAlongGrad, kGatherNd,
    kGatherNdGrad, kScatterNd, kScatterElements;
extern const OpDef kFp8MatMul, kMatMul, kGroupedMatMul, kGroupedMatMulGrad;
extern const OpDef kConv, kConvGradData, kConvGradWeight, kMaxPool, kMaxPoolGrad, kAvgPool, kAvgPoolGrad;
extern const OpDef kRoundToFp8;
extern const OpDef kSoftmax, kLogSoftmax, kLayerNorm, kRmsNorm, kBatchNorm, kCrossEntropy, kCrossEntropyGrad,
    kAttention, kAttentionGrad, kRotary;
extern const OpDef kOptSgd, kOptMomentum, kOptAdagrad, kOptAdam, kOptLambDirection, kOptLion, kOptRmsprop, kOptOnnxAdam,
    kOptOnnxAdagrad, kOptOnnxMomentum, kOptOrtAdamW;
extern const OpDef kDynamicCode, kDynamicValue;
extern const OpDef kAllReduce, kAllGather, kReduceScatter, kAllToAll, kSend, kRecv, kCrossMeshReshard, kShardSlice;
extern const OpDef kAccumulate, kAccumulateTree, kSumTree, kBlockSquares, kStash, kStopGradient;

namespace {
const OpDef* const kOps[] = {
    &kAdd,
    &kMul,
    &kSub,
    &kDiv,
    &kMod,
    &kPow,
    &kMax,
    &kMin,
    &kNeg,
    &kAbs,
    &kSign,
    &kFloor,
    &kCeil,
    &kRound,
    &kPowerOfTwo,
    &kSelect,
    &kCast,
    &kExp,
    &kExpm1,
    &kLog,
    &kLog1p,
    &kSqrt,
    &kRsqrt,
    &kSin,
    &kCos,
    &kTan,
    &kAsin,
    &kAcos,
    &kAtan,
    &kSinh,
    &kCosh,
    &kTanh,
    &kErf,
    &kSigmoid,
    &kSilu,
    &kSiluGrad,
    &kSoftplus,
    &kRelu,
    &kReluGrad,
    &kEq,
    &kNe,
    &kLt,
    &kLe,
    &kAnd,
    &kOr,
    &kXor,
    &kNot,
    &kShl,
    &kShr,
    &kIsNan,
    &kIsInf,
    &kUniform,
    &kNormal,
    &kGelu,
    &kGeluGrad,
    &kReshape,
    &kTranspose,
    &kBroadcast,
    &kSlice,
    &kPad,
    &kConcat,
    &kReverse,
    &kIota,
    &kReduceSum,
    &kReduceMax,
    &kReduceMin,
    &kReduceProd,
    &kArgmax,
    &kCumsum,
    &kTopk,
    &kGather,
    &kGatherGrad,
    &kDispatch,
    &kCombine,
    &kGatherRows,
    &kGatherRowsGrad,
    &kTakeAlong,
    &kTakeAlongGrad,
    &kGatherNd,
    &kGatherNdGrad,
    &kScatterNd,
    &kScatterElements,
    &kMatMul,
    &kFp8MatMul,
    &kRoundToFp8,
    &kGroupedMatMul,
    &kGroupedMatMulGrad,
    &kConv,
    &kConvGradData,
    &kConvGradWeight,
    &kMaxPool,
    &kMaxPoolGrad,
    &kAvgPool,
    &kAvgPoolGrad,
    &kSoftmax,
    &kLogSoftmax,
    &kLayerNorm,
    &kRmsNorm,
    &kBatchNorm,
    &kCrossEntropy,
    &kCrossEntropyGrad,
    &kAttention,
    &kAttentionGrad,
    &kRotary,
    &kOptSgd,
    &kOptMomentum,
    &kOptAdagrad,
    &kOptAdam,
    &kOptLambDirection,
    &kOptLion,
    &kOptRmsprop,
    &kOptOnnxAdam,
    &kOptOnnxAdagrad,
    &kOptOnnxMomentum,
    &kOptOrtAdamW,
    &kDynamicCode,
    &kDynamicValue,
    &kAllReduce,
    &kAllGather,
    &kReduceScatter,
    &kAllToAll,
    &kSend,
    &kRecv,
    &kCrossMeshReshard,
    &kShardSlice,
    &kAccumulate,
    &kAccumulateTree,
    &kSumTree,
    &kBlockSquares,
    &kStash,
    &kStopGradient,
};
}  // namespace

std::span<const OpDef* const> all_ops() { return kOps; }

}  // namespace partita
