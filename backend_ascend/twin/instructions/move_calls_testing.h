// Calls that move between global memory and a core.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_MOVE_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_MOVE_CALLS_TESTING_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/call_jobs_testing.h"

namespace twin_calls {

inline void CopyRows(Image* m, int to, int from, int rows, int bytes,
                     int to_pitch, int from_pitch) {
  for (int row = 0; row < rows; ++row) {
    std::memmove(m->data() + to + row * to_pitch,
                 m->data() + from + row * from_pitch, bytes);
  }
}

template <typename T>
void AddMoves(bool cube, int each) {
  constexpr int kSize = sizeof(T);
  const auto add = [cube](const char* name, auto issue, auto plain,
                          std::vector<std::string> words = {}) {
    AddJob(name, kType<T>, issue, plain, words);
    jobs.back().cube = cube;
  };
  for (int i = 0; i < each; ++i) {
    const int on = Pick(0, 9) * kBlock;
    const int off = Pick(0, 40) * kSize;
    const int count = Pick(0, 200);
    const int kept = count * kSize / kBlock * kBlock;
    const int rows = Pick(0, 6), blocks = Pick(0, 5);
    const int gap = Pick(0, 3), more = Pick(0, 3);
    const DataCopyParams params(U16(rows), U16(blocks), U16(gap), U16(more));
    const auto copies = [&](const char* name, auto issue, int to, int from,
                            int count_of, int bytes, int to_pitch,
                            int from_pitch) {
      add(name, issue, [=](Image* m) {
        CopyRows(m, to, from, count_of, bytes, to_pitch, from_pitch);
      });
    };
    const int size = blocks * 32, to_pitch = size + more * 32;
    const int from_pitch = size + gap * 32;
    const auto chip = [=] { return OnChip<T>(cube, on); };
    copies(
        "DataCopy", [=] { DataCopy(chip(), Global<T>(off), uint32_t(count)); },
        on, kImage + off, 1, kept, 0, 0);
    copies(
        "DataCopy", [=] { DataCopy(Global<T>(off), chip(), uint32_t(count)); },
        kImage + off, on, 1, kept, 0, 0);
    copies(
        "DataCopy", [=] { DataCopy(chip(), Global<T>(off), params); }, on,
        kImage + off, rows, size, to_pitch, from_pitch);
    copies(
        "DataCopy", [=] { DataCopy(Global<T>(off), chip(), params); },
        kImage + off, on, rows, size, to_pitch, from_pitch);
    if (i % 4 == 0) {
      const int wrong = Pick(1, 31);
      add("DataCopy",
          [=] { DataCopy(OnChip<T>(cube, on + wrong), Global<T>(off), 64u); },
          nullptr, {"dst:", "of 32 B"});
      add("DataCopy",
          [=] { DataCopy(Global<T>(off), OnChip<T>(cube, on + wrong), 64u); },
          nullptr, {"src:", "of 32 B"});
    }
    if (cube) continue;
    copies(
        "DataCopy",
        [=] { DataCopy(chip(), OnChip<T>(cube, kRegion + on), params); }, on,
        kRegion + on, rows, size, to_pitch, from_pitch);
    const int bytes = Pick(0, 50) * kSize;
    const int left = Pick(0, 32 / kSize), right = Pick(0, 32 / kSize);
    const int row = (left * kSize + bytes + right * kSize + 31) / 32 * 32;
    add(
        "DataCopyPad",
        [=] {
          DataCopyPad(
              Local<T>(on), Global<T>(off),
              {U16(rows), uint32_t(bytes), uint32_t(gap), uint32_t(more), 0},
              {true, uint8_t(left), uint8_t(right), Scalar<T>()});
        },
        [=](Image* m) {
          for (int r = 0; r < rows && bytes > 0; ++r) {
            char* const at = m->data() + on + r * (row + more * 32);
            const char* const from =
                m->data() + kImage + off + r * (bytes + gap);
            for (int k = 0; k < row; k += kSize) {
              if (left + right > 0) {
                Encode(at + k, kType<T>, 3);
              } else {
                std::memcpy(at + k, from, kSize);
              }
            }
            std::memcpy(at + left * kSize, from, bytes);
          }
        });
    copies(
        "DataCopyPad",
        [=] {
          DataCopyPad(
              Global<T>(off), Local<T>(on),
              {U16(rows), uint32_t(bytes), uint32_t(gap), uint32_t(more), 0});
        },
        kImage + off, on, rows, bytes, bytes + more,
        (bytes + 31) / 32 * 32 + gap * 32);
    const auto pad = [=](int dst, uint32_t length, int before) {
      return [=] {
        DataCopyPad(Local<T>(dst), Global<T>(off), {1, length, 0, 0, 0},
                    {true, uint8_t(before), 0, Scalar<T>()});
      };
    };
    if (i % 4 > 0) continue;
    add("DataCopyPad", pad(on + 16, 32, 0), nullptr, {"dst:", "of 32 B"});
    add("DataCopyPad", pad(on, 32, 33), nullptr,
        {"bytes of leftPadding:", "0 to 32"});
    add("DataCopyPad", pad(on, 2097152, 0), nullptr,
        {"blockLen:", "0 to 2097151"});
    add("DataCopyPad",
        [=] {
          DataCopyPad(Global<T>(off), Local<T>(on + 8), {1, 32, 0, 0, 0});
        },
        nullptr, {"src:", "of 32 B"});
    if (kSize > 1) {
      add("DataCopyPad", pad(on, kSize + 1, 0), nullptr,
          {"blockLen:", "a multiple of"});
      add("DataCopy",
          [=] {
            DataCopy(Local<T>(on), Global<T>(0)[off / kSize],
                     DataCopyParams(4096, 1, 0, 0));
          },
          nullptr, {"blockCount:", "0 to 4095"});
    }
  }
}

template <typename T>
void AddAtomics(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < each; ++i) {
    const int on = Pick(0, 9) * kBlock;
    const int off = Pick(0, 40) * kSize;
    const int count = Pick(1, 60);
    AddJob(
        "SetAtomicAdd", kType<T>,
        [=] {
          SetAtomicAdd<T>();
          DataCopyPad(Global<T>(off), Local<T>(on),
                      {1, uint32_t(count * kSize), 0, 0, 0});
          DisableDmaAtomic();
        },
        [=](Image* m) {
          for (int k = 0; k < count; ++k) {
            char* const to = m->data() + kImage + off + k * kSize;
            Encode(to, kType<T>,
                   Decode(to, kType<T>) +
                       Decode(m->data() + on + k * kSize, kType<T>));
          }
        });
  }
}

template <typename T>
void AddFractals(int each) {
  constexpr int kSize = sizeof(T);
  constexpr int kC0 = kBlock / kSize;
  for (int i = 0; i < each; ++i) {
    const int on = Pick(0, 9) * kBlock;
    const int off = Pick(0, 40) * kSize;
    const int rows = Pick(0, 20), columns = Pick(0, 40);
    const int pitch = columns + Pick(1, 5);
    const int row_stride = Pick(1, 2);
    const int stride = std::max(1, rows * row_stride + Pick(0, 3));
    const auto issue = [=](int dst, int source_pitch, int c0_stride) {
      return [=] {
        DataCopy(
            OnChip<T>(true, dst), Global<T>(off),
            Nd2NzParams(1, U16(rows + (dst != on)), U16(columns + 1), 0,
                        U16(source_pitch), U16(c0_stride), U16(row_stride), 0));
      };
    };
    AddJob("DataCopy", kType<T>, issue(on, pitch, stride), [=](Image* m) {
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < (columns + kC0) / kC0 * kC0; ++c) {
          char* const to = m->data() + on +
                           (c / kC0 * stride + r * row_stride) * 32 +
                           c % kC0 * kSize;
          if (c > columns) {
            std::memset(to, 0, kSize);
          } else {
            std::memcpy(to, m->data() + kImage + off + (r * pitch + c) * kSize,
                        kSize);
          }
        }
      }
    });
    jobs.back().cube = true;
    if (i > 2) continue;
    AddJob("DataCopy", kType<T>, issue(on + 8, pitch, stride), nullptr,
           {"dst:", "of 32 B"});
    jobs.back().cube = true;
  }
}

}  // namespace twin_calls

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_MOVE_CALLS_TESTING_H_
