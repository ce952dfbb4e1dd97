// Which bytes a vector instruction's destination may have in common with its
// sources: the published rules, as data.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_OVERLAPS_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_OVERLAPS_H_

#include <cstdint>

namespace ascend_twin {

enum class Overlap : uint8_t {
  kLegal,
  kRefused,
  kUnpublished,  // refused if Numerics::strict
  kSums,  // legal for src1 of half, int32_t or float, with a repeat stride of 0
  kNever  // the instruction has one repeat
};

// Instructions of one rule.
enum class Family : uint8_t {
  kArithmetic,
  kLanewise,
  kToDst,
  kToWiderDst,
  kConversion,
  kNarrowing,
  kWidening,
  kReduction,
  kCopy,
  kBroadcast,
  kGather,
  kGatherOffset,
  kGatherMask,
  kSort,
  kMerge,
  kTranspose,
  kTransData,
  kSelect,
  kSelectMask,
  kCompare,
  kMove
};
constexpr int kNumFamilies = 21;

// What is published of one family.
struct OverlapRule {
  Family family;
  const char* calls;
  // In a repeat: at the same address, and elsewhere in part.
  Overlap one_same;
  Overlap one_part;
  // Of several repeats: each at the same address, and one that writes what a
  // later one reads.  What an earlier one has read may be written.
  Overlap several_same;
  Overlap several_later;
  // A repeat writes fewer or more bytes than it reads: at the same address
  // means that both begin there, else that both are the same bytes.
  bool resizes;
  // Of docs/zh/api/SIMD-API in asc-devkit 82b89a15f.  Most refer to the general
  // rule of that folder's page of constraints: in a repeat the same bytes, none
  // that a later repeat reads, but for kSums.
  const char* page;
};

// In the order of the families.
constexpr OverlapRule kOverlapRules[] = {
    {Family::kArithmetic, "Add, Sub, Mul, Max, Min, AddRelu, SubRelu",
     Overlap::kLegal, Overlap::kRefused, Overlap::kLegal, Overlap::kSums, false,
     "Add.md"},
    {Family::kLanewise, "Div, And, Or, and calls with one source",
     Overlap::kLegal, Overlap::kRefused, Overlap::kLegal, Overlap::kRefused,
     false, "Div.md, Exp.md, Adds.md"},
    {Family::kToDst, "Axpy, MulAddDst, FusedMulAdd", Overlap::kLegal,
     Overlap::kRefused, Overlap::kLegal, Overlap::kRefused, false,
     "Axpy.md, MulAddDst.md"},
    {Family::kToWiderDst, "Axpy, MulAddDst of half in float", Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, Overlap::kRefused, true,
     "Axpy.md, MulAddDst.md"},
    {Family::kConversion, "Cast between elements of one size", Overlap::kLegal,
     Overlap::kRefused, Overlap::kLegal, Overlap::kRefused, false, "Cast.md"},
    // The page warns of longer elements alone.
    {Family::kNarrowing, "Cast to shorter elements, CastDequant",
     Overlap::kLegal, Overlap::kRefused, Overlap::kLegal, Overlap::kRefused,
     true, "Cast.md"},
    {Family::kWidening, "Cast to longer elements", Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, Overlap::kRefused, true, "Cast.md"},
    // The page has the scratch, where repeats write, take the source's place.
    {Family::kReduction, "ReduceRepeat, ReduceDataBlock, ReducePairElem",
     Overlap::kLegal, Overlap::kRefused, Overlap::kLegal, Overlap::kRefused,
     true, "ReduceRepeat.md, ReduceMax.md"},
    {Family::kCopy, "Copy", Overlap::kLegal, Overlap::kRefused, Overlap::kLegal,
     Overlap::kRefused, false, "Copy.md"},
    {Family::kBroadcast, "Brcb", Overlap::kRefused, Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, true, "Brcb.md"},
    {Family::kGather, "Gather", Overlap::kRefused, Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, true, "Gather.md"},
    // Of offsets it says nothing; asc_gather.md has the general rule.
    {Family::kGatherOffset, "Gather, its srcOffset", Overlap::kUnpublished,
     Overlap::kRefused, Overlap::kUnpublished, Overlap::kRefused, true,
     "Gather.md"},
    // An example has the destination take the source's place, of which it is
    // but a part: of other parts nothing is said, and vllm-ascend writes some.
    {Family::kGatherMask, "GatherMask", Overlap::kLegal, Overlap::kUnpublished,
     Overlap::kLegal, Overlap::kRefused, true, "GatherMask.md"},
    // Sort32.md says nothing, this page the general rule.
    {Family::kSort, "Sort32", Overlap::kUnpublished, Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, true, "asc_bitsort.md"},
    {Family::kMerge, "MrgSort", Overlap::kRefused, Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, true, "MrgSort.md"},
    {Family::kTranspose, "Transpose", Overlap::kLegal, Overlap::kRefused,
     Overlap::kNever, Overlap::kNever, false, "Transpose.md"},
    {Family::kTransData, "TransDataTo5HD", Overlap::kLegal, Overlap::kRefused,
     Overlap::kLegal, Overlap::kRefused, false, "TransDataTo5HD.md"},
    {Family::kSelect, "Select", Overlap::kLegal, Overlap::kRefused,
     Overlap::kLegal, Overlap::kRefused, false, "Select.md"},
    // A mask is never all that a repeat writes.
    {Family::kSelectMask, "Select, its selMask", Overlap::kRefused,
     Overlap::kRefused, Overlap::kRefused, Overlap::kRefused, true,
     "Select.md"},
    // Compare.md says nothing, this page the general rule.
    {Family::kCompare, "Compare, Compares", Overlap::kUnpublished,
     Overlap::kRefused, Overlap::kUnpublished, Overlap::kRefused, true,
     "asc_lt.md"},
    // Of one call pages say nothing.
    {Family::kMove, "DataCopy within UB", Overlap::kUnpublished,
     Overlap::kUnpublished, Overlap::kUnpublished, Overlap::kUnpublished, false,
     "DataCopy.md"},
};
static_assert(sizeof(kOverlapRules) / sizeof(kOverlapRules[0]) == kNumFamilies);

constexpr const OverlapRule& RuleOf(Family family) {
  return kOverlapRules[static_cast<int>(family)];
}

constexpr const char* NameOf(Overlap overlap) {
  constexpr const char* kNames[] = {"legal", "refused", "unpublished", "sums",
                                    "never"};
  return kNames[static_cast<int>(overlap)];
}

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_OVERLAPS_H_
