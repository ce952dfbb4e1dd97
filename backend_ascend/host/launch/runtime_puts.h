// Tasks that move rows: puts to the owners of experts, relays, and puts home.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_PUTS_H_
#define BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_PUTS_H_

#include "backend_ascend/host/launch/runtime_tasks.h"

namespace hpmoe {

// Reads the row headers that puts home and relays go by.  Their signals count
// rows by these headers too, also rows that this launch does not make.
void ReadHeaders(const TaskDesc& task, const Layer& layer, Kernels* kernels);

// Puts rows of tokens and their row headers to the owner of their expert.
void PutRows(const TaskDesc& task, const Layer& layer, Kernels* kernels);

// Puts rows of tokens once to the rank of their experts, with the list of
// copies to make there.
void PutOnce(const TaskDesc& task, const Layer& layer, Kernels* kernels);

// Copies relayed rows to the rows of each expert that they are for.
void RelayRows(const TaskDesc& task, const Layer& layer, Kernels* kernels);

// Puts rows of an expert into the slots of their tokens on the source ranks.
void PutHome(const TaskDesc& task, const Layer& layer, Kernels* kernels);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_PUTS_H_
