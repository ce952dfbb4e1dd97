#include "backend_ascend/compiler/proofs/proofs.h"
#include "backend_ascend/host/binding.h"

namespace hpmoe {
namespace {

nb::object RegionDict(const Violation& violation) {
  if (!violation.has_region) return nb::none();
  const RegionDesc& r = violation.region;
  nb::dict region;
  region["buffer"] = BufferName(r.buffer);
  region["view"] = r.view == kSender ? "sender" : "rows";
  region["rank"] = r.rank;
  region["group"] = r.group;
  region["rows"] = nb::make_tuple(r.row_begin, r.row_end);
  region["cols"] = nb::make_tuple(r.col_begin, r.col_end);
  return region;
}

nb::dict ProveImage(const LoadedImage& image, int max_violations) {
  const ImageView& view = image.view();
  ProofResult result;
  {
    nb::gil_scoped_release release;
    result = Prove(view, max_violations);
  }
  nb::list rules, violations;
  for (int32_t rule = 0; rule < kNumRules; ++rule) {
    rules.append(nb::make_tuple(RuleName(rule), result.checked[rule],
                                result.refused[rule] ? "refused" : "proved"));
  }
  for (const Violation& violation : result.violations) {
    nb::dict d;
    d["rule"] = RuleName(violation.rule);
    d["task_a"] = violation.task_a;
    d["task_b"] = violation.task_b;
    d["event"] = violation.event;
    d["region"] = RegionDict(violation);
    d["text"] = violation.text;
    violations.append(d);
  }
  nb::dict out;
  out["tasks"] = view.num_tasks;
  out["events"] = view.num_events;
  out["regions"] = view.num_regions;
  out["waits"] = view.num_waits;
  out["rules"] = rules;
  out["violations"] = violations;
  return out;
}

}  // namespace

void BindProofs(nb::module_& m) {
  m.def("prove", &ProveImage, nb::arg("image"), nb::arg("max_violations") = 8,
        "Proves an image; a dict of counts, rules and violations.");
}

}  // namespace hpmoe
