// Rows on their way between ranks: from tokens to the owner of their expert,
// there from one of its experts to another, and home.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_PUTS_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_PUTS_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/symmetric_memory.h"
#include "backend_ascend/device/megakernel/vector_codes.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/device/megakernel/vector_rows.h"

namespace hpmoe {

// Copies a row through UB.
template <typename T>
HPMOE_FUNCTION void CopyRow(HPMOE_GM T* to, HPMOE_GM T* from, int32_t cols,
                            Sets* sets) {
  const Pass pass = PassOf<T>(cols, sizeof(T));
  for (int32_t col = 0; col < cols; col += pass.cols) {
    const Box box = {1, Least(pass.cols, cols - col), cols};
    sets->Load();
    const AscendC::LocalTensor<T> row = sets->Take<T>(WidthOf<T>(box.cols));
    MoveIn(row, from + col, box);
    sets->StoreLoaded();
    MoveOut(to + col, row, box);
    sets->End();
  }
}

// Copies rows, as many at once as a set holds.  With one row in each set, an
// AIV that sends rows of 2 kB would wait for its link's latency.
template <typename T>
class RowCopies {
 public:
  HPMOE_FUNCTION RowCopies(int32_t cols, Sets* sets)
      : cols_(cols),
        pass_(PassOf<T>(cols, sizeof(T))),
        most_(Least(pass_.rows, kMostRows)),
        sets_(sets) {}

  // Stores the row at the next Flush or before it; until then nobody else may
  // load into a set.
  HPMOE_FUNCTION void Copy(HPMOE_GM T* to, HPMOE_GM T* from) {
    if (pass_.cols < cols_) return CopyRow(to, from, cols_, sets_);
    const int32_t width = WidthOf<T>(cols_);
    if (count_ == 0) {
      sets_->Load();
      rows_ = sets_->Take<T>(most_ * width);
    }
    MoveIn(rows_[count_ * width], from, {1, cols_, cols_});
    to_[count_] = to;
    ++count_;
    if (count_ == most_) Flush();
  }

  HPMOE_FUNCTION void Flush() {
    if (count_ == 0) return;
    const int32_t width = WidthOf<T>(cols_);
    sets_->StoreLoaded();
    for (int32_t i = 0; i < count_; ++i) {
      MoveOut(to_[i], rows_[i * width], {1, cols_, cols_});
    }
    sets_->End();
    count_ = 0;
  }

 private:
  static constexpr int32_t kMostRows = 32;

  const int32_t cols_;
  const Pass pass_;
  const int32_t most_;
  Sets* const sets_;
  int32_t count_ = 0;  // rows that are loaded and not yet stored
  AscendC::LocalTensor<T> rows_;
  HPMOE_GM T* to_[kMostRows];
};

// The same, times a weight.
template <typename T>
HPMOE_FUNCTION void CopyScaledRow(HPMOE_GM T* to, HPMOE_GM T* from,
                                  int32_t cols, float weight, Sets* sets) {
  const Pass pass = PassOf<T>(cols, kRowsBytes<T>);
  for (int32_t col = 0; col < cols; col += pass.cols) {
    const Box box = {1, Least(pass.cols, cols - col), cols};
    const int32_t width = WidthOf<T>(box.cols);
    sets->Load();
    const Rows32<T> row = TakeRows<T>(width, sets);
    MoveIn(row.stored, from + col, box);
    sets->Compute();
    Widen(row, width);
    CastBarrier<T>();
    AscendC::Muls(row.values, row.values, weight, width);
    CastBarrier<T>();
    Narrow(row, width);
    sets->StoreComputed();
    MoveOut(to + col, row.stored, box);
    sets->End();
  }
}

// Puts a task's rows to the owner of its expert, where they lie side by side,
// and their headers with them.  `U` is what is sent: T, or int8_t, codes with
// their scales.
template <typename T, typename U>
class RowPut : VectorTile {
 public:
  HPMOE_FUNCTION RowPut(const TaskDesc& task, const RankTensors& rank,
                        Sets* sets)
      : VectorTile(task, rank, sets),
        owner_(rank.OwnerOf(task.expert)),
        slice_(rank.plan.slice_begin[SliceOf(task, task.rank, rank.plan)] +
               task.row_begin) {}

  HPMOE_FUNCTION void Run() { RunWindows(0, rows_, kWindowRows, this); }

  // Rows [begin, begin + count) of the task.
  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    const Box slots_box = {1, count, count};
    // By the signals of the task before.
    AwaitReads();
    MoveIn(slots_, SliceSlots() + begin, slots_box);
    AwaitMoveIn();
    for (int32_t i = 0; i < count; ++i) {
      MoveIn(weights_[i * kBlockFloats],
             const_cast<HPMOE_GM float*>(rank_.args.topk_weights) +
                 slots_.GetValue(i),
             {1, 1, 1});
    }
    if (rank_.IsWeighted(kind_)) AwaitMoveIn();
    for (int32_t i = 0; i < count; ++i) SendRow(begin + i, i);
    copies_.Flush();
    // Behind the rows: what they waited for has brought in the headers too.
    MoveOut(Landing(rank_.args.header_slot, begin), slots_, slots_box);
    MoveOut(Landing(rank_.args.header_weight, begin), weights_, {count, 1, 1});
    if constexpr (kIsCode<U>) {
      StoreScales(Landing(rank_.args.scales[kind_.written], begin), scales_,
                  count);
    }
  }

 private:
  HPMOE_FUNCTION void SendRow(int32_t row, int32_t i) {
    const int32_t cols = rank_.Cols(kind_.written);
    const int64_t token = slots_.GetValue(i) / rank_.image.top_k;
    HPMOE_GM T* const from = rank_.At<T>(kind_.left, token, 0);
    HPMOE_GM U* const to =
        rank_.heap.At(rank_.At<U>(kind_.written, row_ + row, 0), owner_);
    if constexpr (kIsCode<U>) {
      scales_.SetValue(i, QuantiseRow(StoredRow<T>{from}, cols, to, sets_));
    } else if (rank_.IsWeighted(kind_)) {
      const float weight = weights_.GetValue(i * kBlockFloats);
      CopyScaledRow(to, from, cols, weight, sets_);
    } else {
      copies_.Copy(to, from);
    }
  }

  HPMOE_FUNCTION HPMOE_GM int32_t* SliceSlots() const {
    return const_cast<HPMOE_GM int32_t*>(rank_.plan.slice_slots) + slice_;
  }
  // Of the owner's row headers, that of a row of the task.
  template <typename V>
  HPMOE_FUNCTION HPMOE_GM V* Landing(HPMOE_GM V* headers, int32_t row) const {
    return rank_.heap.At(headers + row_ + row, owner_);
  }

  const int32_t owner_;
  const int64_t slice_;  // into slice_slots
  RowCopies<T> copies_{rank_.Cols(kind_.written), sets_};
  const AscendC::LocalTensor<int32_t> slots_ =
      UbTensor<int32_t>(kUbSlots, kWindowRows);
  const AscendC::LocalTensor<float> scales_ =
      UbTensor<float>(kUbMadeScales, kWindowRows);
};

// Puts a task's rows to the rank of its expert, each once, and beside them what
// they are to be copied to there.
template <typename T, typename U>
class OncePut : VectorTile {
 public:
  HPMOE_FUNCTION OncePut(const TaskDesc& task, const RankTensors& rank,
                         Sets* sets)
      : VectorTile(task, rank, sets),
        owner_(rank.OwnerOf(task.expert)),
        per_(CopiesOf(rank.image)),
        sent_(SentAt(task, rank.plan, 0)) {}

  HPMOE_FUNCTION void Run() { RunWindows(0, rows_, kWindowRows / per_, this); }

  // Rows [begin, begin + count) of the task.
  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    const int32_t copies = count * per_;
    const int64_t from = (sent_ + begin) * per_;
    // By the signals of the task before.
    AwaitReads();
    const Box box = {1, copies, copies};
    MoveIn(slots_, const_cast<HPMOE_GM int32_t*>(rank_.plan.copy_slots) + from,
           box);
    MoveIn(places_, const_cast<HPMOE_GM int32_t*>(rank_.plan.copy_rows) + from,
           box);
    AwaitMoveIn();
    for (int32_t i = 0; i < copies; ++i) {
      const int32_t slot = slots_.GetValue(i);
      MoveIn(weights_[i * kBlockFloats],
             const_cast<HPMOE_GM float*>(rank_.args.topk_weights) +
                 (slot < 0 ? 0 : slot),
             {1, 1, 1});
    }
    for (int32_t i = 0; i < count; ++i) {
      // A row has one copy at least, its first.
      const int64_t token = slots_.GetValue(i * per_) / rank_.image.top_k;
      HPMOE_GM T* const from = rank_.At<T>(kind_.left, token, 0);
      HPMOE_GM U* const to = rank_.heap.At(
          rank_.At<U>(kind_.written, row_ + begin + i, 0), owner_);
      if constexpr (kIsCode<U>) {
        scales_.SetValue(i, QuantiseRow(StoredRow<T>{from},
                                        rank_.Cols(kind_.written), to, sets_));
      } else {
        copies_.Copy(to, from);
      }
    }
    copies_.Flush();
    // Behind the rows: what they waited for has brought in the rest too.
    const int64_t at = (row_ + begin) * per_;
    MoveOut(rank_.heap.At(rank_.args.copy_row + at, owner_), places_, box);
    MoveOut(rank_.heap.At(rank_.args.copy_slot + at, owner_), slots_, box);
    MoveOut(rank_.heap.At(rank_.args.copy_weight + at, owner_), weights_,
            {copies, 1, 1});
    if constexpr (kIsCode<U>) {
      StoreScales(
          rank_.heap.At(rank_.RowScale(kind_.written, row_ + begin), owner_),
          scales_, count);
    }
  }

 private:
  const int32_t owner_;
  const int32_t per_;
  const int64_t sent_;  // into the plan's relayed rows
  RowCopies<T> copies_{rank_.Cols(kind_.written), sets_};
  const AscendC::LocalTensor<int32_t> slots_ =
      UbTensor<int32_t>(kUbSlots, kWindowRows);
  const AscendC::LocalTensor<int32_t> places_ =
      UbTensor<int32_t>(kUbDots, kWindowRows);
  const AscendC::LocalTensor<float> scales_ =
      UbTensor<float>(kUbMadeScales, kWindowRows);
};

// Copies relayed rows to the rows of their experts, and writes their headers.
// `T` is what a row is made of: storage, or codes, whose scales go with them.
template <typename T>
class RowRelay : VectorTile {
 public:
  HPMOE_FUNCTION RowRelay(const TaskDesc& task, const RankTensors& rank,
                          Sets* sets)
      : VectorTile(task, rank, sets), per_(CopiesOf(rank.image)) {}

  HPMOE_FUNCTION void Run() { RunWindows(0, rows_, kWindowRows / per_, this); }

  // Rows [begin, begin + count) of the task.  Puts wrote what is beside them
  // during the launch, so it comes through UB.
  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    const int32_t copies = count * per_;
    const int64_t at = (row_ + begin) * per_;
    // By the signals of the task before.
    AwaitReads();
    MoveIn(places_, rank_.args.copy_row + at, {1, copies, copies});
    MoveIn(slots_, rank_.args.copy_slot + at, {copies, 1, 1});
    MoveIn(weights_, rank_.args.copy_weight + at, {copies, 1, 1});
    AwaitMoveIn();
    for (int32_t i = 0; i < copies; ++i) {
      const int32_t place = places_.GetValue(i);
      if (place >= 0) Copy(row_ + begin + i / per_, i, place);
    }
  }

 private:
  // The headers go behind the row, which waited for all that was moved in.
  HPMOE_FUNCTION void Copy(int64_t row, int32_t i, int32_t place) {
    const int32_t cols = rank_.Cols(kind_.written), beside = i * kBlockFloats;
    HPMOE_GM T* const from = rank_.At<T>(kind_.left, row, 0);
    HPMOE_GM T* const to = rank_.At<T>(kind_.written, place, 0);
    if constexpr (kIsCode<T>) {
      CopyRow(to, from, cols, sets_);
      CopyRow(rank_.RowScale(kind_.written, place),
              rank_.RowScale(kind_.left, row), 1, sets_);
    } else if (rank_.IsWeighted(kind_)) {
      CopyScaledRow(to, from, cols, weights_.GetValue(beside), sets_);
    } else {
      CopyRow(to, from, cols, sets_);
    }
    MoveOut(rank_.args.header_slot + place, slots_[beside], {1, 1, 1});
    MoveOut(rank_.args.header_weight + place, weights_[beside], {1, 1, 1});
  }

  const int32_t per_;
  const AscendC::LocalTensor<int32_t> places_ =
      UbTensor<int32_t>(kUbSlots, kWindowRows);
  const AscendC::LocalTensor<int32_t> slots_ =
      UbTensor<int32_t>(kUbDots, kWindowRows* kBlockFloats);
};

// Words beside the rank's rows, a window of them in UB at kPlace.  They are
// written during a launch, so the scalar unit must not read them where they
// lie.
template <typename T, uint32_t kPlace>
class RowWords {
 public:
  // Of rows before `end`; later ones may still be on their way.
  HPMOE_FUNCTION RowWords(HPMOE_GM T* words, int64_t end)
      : words_(words), end_(end) {}

  HPMOE_FUNCTION T operator[](int64_t row) {
    if (row < begin_ || row >= begin_ + count_) Load(row);
    return window_.GetValue(static_cast<int32_t>(row - begin_));
  }

 private:
  HPMOE_FUNCTION void Load(int64_t row) {
    begin_ = row;
    const int64_t left = end_ - row;
    count_ = left < kWindowRows ? static_cast<int32_t>(left) : kWindowRows;
    // The window that was there has been read.
    AwaitReads();
    MoveIn(window_, words_ + row, {1, count_, count_});
    AwaitMoveIn();
  }

  HPMOE_GM T* const words_;
  const int64_t end_;
  int64_t begin_ = 0;
  int32_t count_ = 0;
  const AscendC::LocalTensor<T> window_ = UbTensor<T>(kPlace, kWindowRows);
};
using HeaderSlots = RowWords<int32_t, kUbSlots>;  // slots, or rows of copies
using HeaderScales = RowWords<float, kUbScales>;

HPMOE_FUNCTION int64_t EndRow(const TaskDesc& task, const RankTensors& rank) {
  return FirstRow(task, rank.plan) + RealRows(task, rank.plan).count();
}

// What says where the rows of a task go.
HPMOE_FUNCTION HeaderSlots SlotsOf(const TaskDesc& task,
                                   const RankTensors& rank) {
  const int64_t end = EndRow(task, rank);
  if (FormOf(task) != Form::kRelayTile) {
    return HeaderSlots(rank.args.header_slot, end);
  }
  return HeaderSlots(rank.args.copy_row, end * CopiesOf(rank.image));
}

// Sends one row of an expert home, or the gradient of its weight.
template <typename T>
struct HomeRow {
  const RankTensors& rank;
  HPMOE_GM T* const from;  // row 0 of the rank's
  HPMOE_GM T* const to;    // slot 0 of a rank's
  const int32_t cols;
  RowCopies<T>* const copies;

  HPMOE_FUNCTION void operator()(int32_t row, int32_t source,
                                 int32_t slot) const {
    copies->Copy(rank.heap.At(to + int64_t{slot} * cols, source),
                 from + int64_t{row} * cols);
  }
};

template <typename T>
HPMOE_FUNCTION void SendHome(const TaskDesc& task, const RankTensors& rank,
                             HPMOE_GM T* from, HPMOE_GM T* to, int32_t cols,
                             Sets* sets) {
  HeaderSlots slots = SlotsOf(task, rank);
  RowCopies<T> copies(cols, sets);
  ForEachReturned(task, rank.plan, slots,
                  HomeRow<T>{rank, from, to, cols, &copies});
  copies.Flush();
}

// Sends what the sums of one row mean, as it is stored.
template <typename T>
struct HomeSums {
  const RankTensors& rank;
  const KindRow& kind;
  const int32_t expert;
  HeaderScales* const scales;
  Sets* const sets;

  HPMOE_FUNCTION void operator()(int32_t row, int32_t source,
                                 int32_t slot) const {
    HPMOE_GM T* const to =
        rank.heap.At(rank.At<T>(kind.written, slot, 0), source);
    HPMOE_GM int32_t* const from = rank.At<int32_t>(kind.left, row, 0);
    const float scale = (*scales)[row];
    const int32_t cols = rank.Cols(kind.left);
    const Pass pass = PassOf<T>(cols, 8 + sizeof(T));
    for (int32_t col = 0; col < cols; col += pass.cols) {
      Send(to + col, from + col, rank.ColScale(kWDown, expert, col), scale,
           Least(pass.cols, cols - col));
    }
  }

 private:
  HPMOE_FUNCTION void Send(HPMOE_GM T* to, HPMOE_GM int32_t* from,
                           HPMOE_GM float* col_scales, float scale,
                           int32_t cols) const {
    const int32_t width = WidthOf<T>(cols);
    const Box box = {1, cols, cols};
    sets->Load();
    const AscendC::LocalTensor<int32_t> sums = sets->Take<int32_t>(width);
    const AscendC::LocalTensor<float> of_cols = sets->Take<float>(width);
    MoveIn(sums, from, box);
    MoveIn(of_cols, col_scales, box);
    sets->Compute();
    const AscendC::LocalTensor<float> values =
        Dequantise(sums, scale, of_cols, WidthOf<float>(cols));
    const Rows32<T> row = {sets->Take<T>(width), values};
    if constexpr (kIsFloat<T>) {
      sets->StoreComputed();
      MoveOut(to, values, box);
    } else {
      Narrow(row, width);
      sets->StoreComputed();
      MoveOut(to, row.stored, box);
    }
    sets->End();
  }
};

template <typename T>
HPMOE_FUNCTION void PutSumsHome(const TaskDesc& task, const RankTensors& rank,
                                Sets* sets) {
  const KindRow kind = KindRowOf(task);
  HeaderSlots slots = SlotsOf(task, rank);
  HeaderScales scales(rank.args.scales[kActivation], EndRow(task, rank));
  ForEachReturned(task, rank.plan, slots,
                  HomeSums<T>{rank, kind, task.expert, &scales, sets});
  Fence();
}

template <typename T>
HPMOE_FUNCTION void PutHome(const TaskDesc& task, const RankTensors& rank,
                            Sets* sets) {
  const KindRow kind = KindRowOf(task);
  SendHome(task, rank, rank.At<T>(kind.left, 0, 0),
           rank.At<T>(kind.written, 0, 0), rank.Cols(kind.left), sets);
  if (rank.args.d_slot_weight != nullptr) {
    SendHome(task, rank, rank.args.d_row_weight, rank.args.d_slot_weight, 1,
             sets);
  }
  Fence();
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_PUTS_H_
