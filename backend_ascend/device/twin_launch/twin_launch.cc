#include "backend_ascend/device/twin_launch/twin_launch.h"

#include <dlfcn.h>

#include <algorithm>

#include "backend_ascend/device/launch/target.h"
#include "backend_ascend/device/npus/diagnose_cores.h"
#include "backend_ascend/device/twin_launch/changed_image.h"
#include "backend_ascend/device/twin_launch/device_memory.h"
#include "backend_ascend/image/rows.h"
#include "backend_ascend/twin/intrinsics/modules.h"

// The kernel of megakernel.cc.
extern "C" void hpmoe_megakernel(uint8_t* args);

namespace hpmoe {
namespace {

using ascend_twin::CoreType;
using Kernel = void (*)(uint8_t*);

// The device source over one kind of header.
class Code {
 public:
  Status Open(const TwinOptions& options) {
    if (options.vector.empty()) return Status{};
    std::string wrong =
        ascend_twin::Open(options.vector.c_str(), &modules_.vector);
    if (wrong.empty()) {
      wrong = ascend_twin::Open(options.cube.c_str(), &modules_.cube);
    }
    if (wrong.empty()) return Status{};
    return Refused(1, "include: %s", wrong.c_str());
  }

  void Enter(ascend_twin::LaunchSpec* spec) {
    if (modules_.vector.handle != nullptr) ascend_twin::Adapt(&modules_, spec);
  }

  // Of the core that runs.
  Kernel kernel() const {
    if (modules_.vector.handle == nullptr) return &hpmoe_megakernel;
    const bool cube = ascend_twin::ThisCoreType() == CoreType::kAic;
    return reinterpret_cast<Kernel>(dlsym(
        (cube ? modules_.cube : modules_.vector).handle, "hpmoe_megakernel"));
  }

 private:
  ascend_twin::Modules modules_;
};

class Session {
 public:
  Session(const ImageView& view, const Plan& plan, const LaunchTensors& tensors,
          const TwinOptions& options)
      : view_(view),
        options_(options),
        memory_(view, plan, tensors, options.deadline_us,
                FaultyImageSlack(*view.header)) {}

  // Appends what the launch of an image did to the report; whether all is well.
  bool Run(const std::vector<uint64_t>& image, bool first, TwinReport* report) {
    memory_.Begin(image);
    ascend_twin::LaunchSpec spec;
    spec.kernel = "hpmoe_megakernel";
    spec.entry = [this](int32_t rank) {
      code_.kernel()(reinterpret_cast<uint8_t*>(memory_.args(rank)));
    };
    code_.Enter(&spec);
    spec.ranks = view_.header->num_ranks;
    spec.blocks = BlocksOf(*view_.header);
    spec.globals = memory_.ranges();
    for (ascend_twin::GlobalRange& range : spec.globals) {
      // Launches before this one filled it.
      const bool empty = range.kind == ascend_twin::GlobalKind::kEmpty;
      if (empty && !first) range.kind = ascend_twin::GlobalKind::kFilled;
    }
    SetModes(options_, &spec);
    if (options_.fault.task >= 0 && !IsOrderFault(options_.fault.kind)) {
      spec.on_issue = [this](int64_t tag, ascend_twin::Instruction* issued) {
        if (tag == options_.fault.task) Spoil(issued);
      };
    }
    const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
    const auto append = [](const auto& from, auto* to) {
      to->insert(to->end(), from.begin(), from.end());
    };
    append(result.errors, &report->errors);
    append(result.counts, &report->counts);
    report->cycles += result.cycles;
    report->fault_changed |= fault_changed_;
    return result.ok();
  }

  Status Open() { return code_.Open(options_); }
  void CopyOut() const { memory_.CopyOut(); }

  // Why cores did not end, of the last launch.
  std::optional<Diagnosis> Why() const {
    const ImageHeader& header = *view_.header;
    std::vector<std::vector<CoreDiagnosis>> cores;
    for (int32_t rank = 0; rank < header.num_ranks; ++rank) {
      const CoreDiagnosis* const ends = memory_.args(rank)->diagnosis;
      cores.emplace_back(ends, ends + header.num_aic + header.num_aiv);
    }
    const std::optional<CoresEnd> end = DiagnoseCores(view_, 0, cores);
    return end ? std::optional<Diagnosis>(end->diagnosis) : std::nullopt;
  }

 private:
  // What the instruction writes of a tensor is what the tensors hold there.
  void Spoil(ascend_twin::Instruction* issued) {
    issued->run = [this, writes = issued->writes, run = issued->run] {
      run();
      for (const ascend_twin::Span& span : writes) {
        const bool global = span.memory == ascend_twin::Memory::kGm;
        for (uint64_t row = 0; global && row < span.rows; ++row) {
          fault_changed_ |=
              memory_.CopyIn(span.begin + row * span.pitch, span.bytes);
        }
      }
    };
  }

  const ImageView& view_;
  const TwinOptions& options_;
  DeviceMemory memory_;
  bool fault_changed_ = false;
  Code code_;
};

// What every launch does first: refuses the image, or plans.
Status Prepare(const ImageView& view, const LaunchTensors& tensors,
               Plan* plan) {
  const ImageHeader& header = *view.header;
  Status status = CheckTarget(view);
  if (status.code != 0) return status;
  status = MakePlan(header, tensors.topk_ids, plan);
  if (status.code != 0) return status;
  status = CheckPlan(header, 0, header.num_ranks, tensors.topk_ids, *plan);
  if (status.code != 0) return status;
  std::copy(plan->counts.begin(), plan->counts.end(), tensors.counts);
  std::copy(plan->row_base.begin(), plan->row_base.end(), tensors.row_base);
  std::copy(plan->row_of_slot.begin(), plan->row_of_slot.end(),
            tensors.row_of_slot);
  return status;
}

// Whether the image of an order fault is another.
bool ChangesOrder(const ImageView& view, const Plan& plan,
                  const FaultSpec& fault) {
  const TaskDesc& task = view.tasks[fault.task];
  if (fault.kind == FaultKind::kMissingSignal) return task.signal_count > 0;
  return task.wait_count > 0 &&
         RealRows(task, ViewOf(*view.header, plan)).count() > 0;
}

template <class Run>
Status Launched(const ImageView& view, const LaunchTensors& tensors,
                const TwinOptions& options, TwinReport* report, Run run) {
  *report = {};
  Plan plan;
  Status status = Prepare(view, tensors, &plan);
  if (status.code != 0) return status;
  Session session(view, plan, tensors, options);
  status = session.Open();
  if (status.code != 0) return status;
  run(plan, &session);
  session.CopyOut();
  return status;
}

}  // namespace

void SetModes(const TwinOptions& options, ascend_twin::LaunchSpec* spec) {
  if (options.rates) {
    spec->takes = [rates =
                       *options.rates](const ascend_twin::Instruction& work) {
      return ascend_twin::SecondsOf(rates, work);
    };
  }
  spec->mode = options.mode;
  spec->seed = options.seed;
  spec->hazards = options.hazards;
  spec->auto_sync = options.auto_sync;
  spec->no_aic_scalar_flags = true;  // no public source disputes the others
  spec->numerics = options.numerics;
}

Status LaunchTwin(const ImageView& view, const LaunchTensors& tensors,
                  const TwinOptions& options, TwinReport* report) {
  const auto run = [&](const Plan& plan, Session* session) {
    session->Run(FaultyImage(view, options.fault), /*first=*/true, report);
    if (IsOrderFault(options.fault.kind)) {
      report->fault_changed = ChangesOrder(view, plan, options.fault);
    }
    report->diagnosis = session->Why();
  };
  return Launched(view, tensors, options, report, run);
}

Status LaunchTwinSerial(const ImageView& view, const LaunchTensors& tensors,
                        const TwinOptions& options, TwinReport* report) {
  const auto run = [&](const Plan&, Session* session) {
    bool first = true;
    for (uint16_t kind = 0; kind < kNumTaskKinds; ++kind) {
      if (DirectionOf(kind) != Direction{view.header->direction}) continue;
      const int64_t links = NumLinks(*view.header, kind);
      for (int64_t link = 0; link < links && report->errors.empty(); ++link) {
        session->Run(ImageOfKind(view, kind, link), first, report);
        first = false;
      }
    }
  };
  return Launched(view, tensors, options, report, run);
}

}  // namespace hpmoe
