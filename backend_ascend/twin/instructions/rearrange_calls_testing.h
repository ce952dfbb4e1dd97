// Calls that move elements within UB: broadcasts, copies, gathers, choices.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_REARRANGE_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_REARRANGE_CALLS_TESTING_H_

#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/call_jobs_testing.h"

namespace twin_calls {

template <typename T>
void AddBroadcasts(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < 2 * each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int from = kRegion + Pick(0, 9) * kBlock;
    const int repeat = Pick(0, 12);
    const int block = Pick(1, 3);
    const int next = PickOf({8 * block, 8 * block + 1, 0});
    const auto issue = [=](int dst, int src, int times, int stride) {
      return [=] {
        Brcb(Local<T>(dst), Local<T>(src), times,
             BrcbRepeatParams(U16(stride), U16(next)));
      };
    };
    AddJob("Brcb", kType<T>, issue(to, from, repeat, block), [=](Image* m) {
      for (int k = 0; k < 8 * repeat; ++k) {
        char* const at = m->data() + to + (k / 8 * next + k % 8 * block) * 32;
        for (int b = 0; b < kBlock; ++b) {
          at[b] = (*m)[from + k * kSize + b % kSize];
        }
      }
    });
    if (i > 0) continue;
    AddRefused("Brcb", kType<T>,
               {{issue(to, from + 16, 1, 1), {"src:", "of 32 B"}},
                {issue(to + 4, from, 1, 1), {"dst:", "of 32 B"}},
                {issue(to, to, 1, 1), {"dst and src:", "none in common"}},
                {issue(to, from, 1, 0), {"dstBlkStride:", "1 to 65535"}},
                {issue(to, from, 256, 1), {"repeatTime:", "0 to 255"}}});
  }
}

// SetMaskCount's number is of each repeat, here alone, and blocks go on.
template <typename T>
void AddCountedCopies(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int from = kRegion + Pick(0, 9) * kBlock;
    const int repeat = Pick(0, 4), count = Pick(1, 300);
    const int step = Pick(1, 2), gap = Pick(0, 3);
    const int blocks = (count * kSize + 31) / 32;
    const auto issue = [=](int longest) {
      return [=] {
        SetMaskCount();
        SetVectorMask<T, MaskMode::COUNTER>(count);
        Copy<T, false>(Local<T>(to), Local<T>(from), MASK_PLACEHOLDER, repeat,
                       {1, U16(step), U16(blocks), U16(longest)});
        SetMaskNorm();
        ResetMask();
      };
    };
    AddJob("Copy", kType<T>, issue(gap), [=](Image* m) {
      for (int k = 0; k < repeat * count; ++k) {
        const int byte = k % count * kSize;
        std::memcpy(m->data() + to + k / count * blocks * 32 + byte,
                    m->data() + from +
                        (k / count * gap + byte / 32 * step) * 32 + byte % 32,
                    kSize);
      }
    });
    if (i > 0) continue;
    AddJob("Copy", kType<T>, issue(4096), nullptr,
           {"srcRepeatSize:", "0 to 4095"});
    AddJob("Copy", kType<T>,
           [] {
             SetMaskCount();
             SetVectorMask<T, MaskMode::COUNTER>(kBlock / kSize);
             Copy<T, false>(Local<T>(2 * kBlock), Local<T>(0), MASK_PLACEHOLDER,
                            3, {1, 1, 1, 1});
           },
           nullptr, {"dst: expected no source of a later repeat, got src"});
  }
}

template <typename T>
void AddGathers(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int from = kRegion + Pick(0, 9) * kBlock;
    const int list = 2 * kRegion + Pick(0, 9) * kBlock;
    const int count = Pick(0, 70);
    const uint32_t base = Pick(0, 5) * kSize;
    // The job's offsets are what the image has where the call finds them.
    const auto index = [](int k) { return uint32_t(k * 37 % 101) * kSize; };
    const auto issue = [=](int dst, int src, int offsets, uint32_t first) {
      return [=] {
        for (int k = 0; k < count; ++k) {
          Local<uint32_t>(list).SetValue(k, index(k));
        }
        SetFlag<HardEvent::S_V>(0);
        WaitFlag<HardEvent::S_V>(0);
        Gather(Local<T>(dst), Local<T>(src), Local<uint32_t>(offsets), first,
               uint32_t(count));
      };
    };
    AddJob("Gather", kType<T>, issue(to, from, list, base), [=](Image* m) {
      for (int k = 0; k < count; ++k) Put(m->data() + list + 4 * k, index(k));
      for (int k = 0; k < count; ++k) {
        std::memcpy(m->data() + to + k * kSize,
                    m->data() + from + base + index(k), kSize);
      }
    });
    if (i > 0) continue;
    AddRefused("Gather", kType<T>,
               {{issue(to + 8, from, list, base), {"dst:", "of 32 B"}},
                {issue(to, from + 2, list, base), {"src:", "of 32 B"}},
                {issue(to, from, list + 4, base), {"srcOffset:", "of 32 B"}},
                {issue(to, from, list, kSize + 1),
                 {"srcBaseOffset:", "a multiple of"}}});
  }
}

template <typename T>
void AddChoices(int each) {
  constexpr int kSize = sizeof(T);
  constexpr int kLanes = 256 / kSize;
  constexpr int kBits = 20 << 10;  // of dst's region
  for (int i = 0; i < each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int a = kRegion + Pick(0, 9) * kBlock;
    const int b = 2 * kRegion + Pick(0, 9) * kBlock;
    const auto mode = static_cast<CMPMODE>(Pick(0, 5));
    const int count = Pick(0, 5) * kLanes;
    const auto compare = [=](int dst, int x, int y, int n) {
      return [=] {
        Compare(Local<uint8_t>(dst), Local<T>(x), Local<T>(y), mode,
                uint32_t(n));
      };
    };
    AddJob("Compare", kType<T>, compare(to, a, b, count), [=](Image* m) {
      for (int k = 0; k < count; ++k) {
        const double x = Decode(m->data() + a + k * kSize, kType<T>);
        const double y = Decode(m->data() + b + k * kSize, kType<T>);
        const bool holds[] = {x<y, x> y, x == y, x <= y, x >= y, x != y};
        char& byte = (*m)[to + k / 8];
        if (k % 8 == 0) byte = 0;
        byte |= static_cast<char>(holds[static_cast<int>(mode)] << (k % 8));
      }
    });
    const auto selmode = static_cast<SELMODE>(i % 3);
    const bool scalar = selmode == SELMODE::VSEL_TENSOR_SCALAR_MODE;
    const int chosen = Pick(0, 300);
    const auto select = [=](int dst, int bits, int x, int y, bool number) {
      return [=] {
        const auto with = [=](auto other) {
          Select(Local<T>(dst), Local<uint8_t>(bits), Local<T>(x), other,
                 selmode, uint32_t(chosen));
        };
        number ? with(Scalar<T>()) : with(Local<T>(y));
      };
    };
    AddJob("Select", kType<T>, select(to, kBits, a, b, scalar), [=](Image* m) {
      for (int k = 0; k < chosen; ++k) {
        const int bit = selmode == SELMODE::VSEL_CMPMASK_SPR ? k % kLanes : k;
        const bool first = (*m)[kBits + bit / 8] >> (bit % 8) & 1;
        char* const at = m->data() + to + k * kSize;
        if (!first && scalar) Encode(at, kType<T>, 3);
        if (!first && scalar) continue;
        std::memcpy(at, m->data() + (first ? a : b) + k * kSize, kSize);
      }
    });
    if (i > 2) continue;
    AddRefused(
        "Compare", kType<T>,
        {{compare(to + 8, a, b, kLanes), {"dst:", "of 32 B"}},
         {compare(to, a + 4, b, kLanes), {"src0:", "of 32 B"}},
         {compare(to, a, b + 4, kLanes), {"src1:", "of 32 B"}},
         {compare(to, a, b, kLanes + 1),
          {"bytes of count:", "a multiple of 256"}},
         {compare(a, a, b, kLanes), {"dst and src0:", "not published"}}});
    AddRefused("Select", kType<T>,
               {{select(to + 2, kBits, a, b, scalar), {"dst:", "of 32 B"}},
                {select(to, kBits + 1, a, b, scalar), {"selMask:", "of 32 B"}},
                {select(to, kBits, a + 16, b, scalar), {"src0:", "of 32 B"}},
                {select(to, kBits, a, b, !scalar),
                 {"src1:", scalar ? "a scalar" : "a tensor"}}});
  }
}

}  // namespace twin_calls

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_REARRANGE_CALLS_TESTING_H_
