// Proofs about a task image, on the bytes that will run.
//
// Assumed of the runtime: a core runs its queue strictly in order, a task at a
// time; a task signals after everything it wrote is visible where it was
// written, and a met wait makes visible what every signal counted by it, and
// all that precedes those, made visible.  A put is complete only at the event
// its signal adds to: its core goes on before, so that the core's order says
// that it was sent and not that it has arrived.  A task touches what its
// descriptor says (RunTask's contract); the launch plan
// is a bijection between sender view and row view, within one (buffer, rank,
// group) (checked at launch).
//
// Claim: if all six rules hold, no schedule of the cores deadlocks or races
// and every output element is written exactly once.
//
//  unit      A queue holds tasks of its unit only, and a kind runs on the unit
//            that can run it.
//  regions   What a task declares is what its kind and tile say it touches:
//            one write, exactly; reads, inputs too, at least.  A kind whose
//            kernel writes whole rows has tasks of whole rows.  So the other
//            rules speak of the kernels and not of a claim about them.
//  once      Writes tile the space of every buffer that the image's direction
//            writes: disjoint and complete.  With the bijection, each element
//            of the row view is written by exactly one task.  Hence there is
//            no write-write pair, and a read-write pair is ordered iff the
//            read comes after the write.
//  event     An event is a partition of a row view.  Counting tasks: every
//            task that may write into the partition signals it, and the
//            threshold is the sum of all signals, so it is met only after ALL
//            signallers (amounts are positive: one missing leaves it short).
//            Counting rows: the threshold is the partition's rows; every task
//            that may write there signals per row, just once, over all
//            partitions of that group, and only such tasks do; their boxes
//            have full rows, and tile by `once`.  So each real row is counted
//            once, after it was put, by its one writer; the padding counts
//            just the rows that do not exist.  The counter is full only when
//            every row of the partition has landed.  It says NOTHING of
//            signallers whose rows landed elsewhere.
//            Every wait asks for the event's own threshold, and for a counter
//            of the task's own rank: another's memory cannot be polled.
//            Hence: wait for e met => all of e's partition is written (*).
//  progress  With each event met as late as its signals allow (a row event:
//            after all tasks that count into it) all queues run to their end.
//            Counters only grow, so the order of the simulation is immaterial,
//            and earlier events only free tasks earlier.
//  order     For every read, inputs apart, and every partition it overlaps,
//  some wait for the
//            partition's event precedes the reader (its own, or of a task that
//            happens before it): by (*) all writers are done.  Or each
//            overlapping writer itself is done before the reader: it happens
//            before it or, if it is a put, the reader or a task that happens
//            before it waits for an event that the put adds to.  Happens
//            before is: queue order, and signaller -> waiter for events that
//            count tasks.  Row events give no such edge: see `event`.
//
// Links of a weight gradient's chain are groups of their own to these rules,
// but share one place in memory.  That is sound, and sums rows in row order:
// link j > 0 reads of link j - 1 just the box that it writes (`regions`), and
// nothing else reads a link, so by `once` and `order` link 0 writes an element
// first, zero or not, and each link touches it once, after the link before.
//
// Queue order plus these edges is acyclic by `progress`, so "happens before"
// is an order, and (*) holds in every execution that respects it.

#ifndef BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_H_
#define BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_H_

#include "backend_ascend/compiler/proofs/proof_result.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

const char* RuleName(int32_t rule);

// `view` must come from LoadImage.  Reports at most `max_violations` per rule.
// Cost: O(tasks + waits + signals + regions + events), times a logarithm for
// writes; reads that lean on another task's wait cost more.
ProofResult Prove(const ImageView& view, int max_violations);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_H_
