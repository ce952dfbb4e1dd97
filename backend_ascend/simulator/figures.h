// What the engine knows of a machine.  SI units; rates and sizes are per rank,
// which is one die.

#ifndef BACKEND_ASCEND_SIMULATOR_FIGURES_H_
#define BACKEND_ASCEND_SIMULATOR_FIGURES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hpmoe::sim {

// X(name, unit): the one table of a machine's figures; Python reads it.
#define HPMOE_FIGURES(X)                                                       \
  X(aic, "cores")              /* AIC of a rank */                             \
  X(aiv, "cores")              /* AIV of a rank */                             \
  X(cube_bf16, "flop/s")       /* of one AIC; float16 is as fast */            \
  X(cube_f32, "flop/s")        /* of one AIC */                                \
  X(cube_int8, "flop/s")       /* of one AIC */                                \
  X(cube_efficiency, "1")      /* of the peak that a long GEMM reaches */      \
  X(operator_efficiency, "1")  /* the same, with barriers: a kernel for it */  \
  X(cube_tile_rows, "rows")    /* of one accumulator tile; a larger */         \
  X(cube_tile_cols, "columns") /* task takes several passes */                 \
  X(hbm, "B/s")                /* shared by AIC, AIV and what arrives */       \
  X(l2, "B/s")                 /* shared by AIC and AIV */                     \
  X(l2_bytes, "B")             /* size of the L2 cache */                      \
  X(aic_read, "B/s")           /* of one AIC, from memory */                   \
  X(aic_write, "B/s")          /* of one AIC; no matrix product meanwhile */   \
  X(aiv_read, "B/s")           /* of one AIV, from memory */                   \
  X(aiv_write, "B/s")          /* of one AIV, to memory of its rank */         \
  X(vector, "op/s")            /* elementary operations of one AIV */          \
  X(activation_ops, "op")      /* for an element that it writes */             \
  X(activation_grad_ops, "op") /* likewise */                                  \
  X(sum_ops, "op")             /* for an element of a slot that it adds */     \
  X(aic_task, "s")             /* to fetch a task */                           \
  X(aiv_task, "s")             /* likewise */                                  \
  X(poll, "s")                 /* from an event until others see it */         \
  X(poll_miss, "s")            /* from a poll that misses to the next: half */ \
  /* of it passes on average, besides `poll` */                                \
  X(signal, "s")        /* for each signal of a task */                        \
  X(put_head, "s")      /* for each put task with rows */                      \
  X(aiv_link, "B/s")    /* that one AIV pushes to other ranks */               \
  X(launch, "s")        /* an operator's start, with barriers */               \
  X(collective, "1")    /* share of a link's rate, with barriers */            \
  X(threads, "threads") /* that drive all workers of all ranks, which share */ \
  /* a memory; 0: each worker is a core, each rank has a memory */             \
  X(pack, "s/B") /* of the right side of an AIC product, before it; */         \
  /* 0: while it runs */                                                       \
  X(product, "s") /* for each product with rows, besides */                    \
  X(aiv_add, "s") /* of an AIV to add a word to an event, in place of */       \
  /* `signal`; 0: that is its price */                                         \
  X(add_trip, "s")      /* of such a word, until the AIV knows it is there */  \
  X(add_waits, "words") /* on their trip while an AIV goes on; 0: it waits */  \
  /* for each */                                                               \
  X(put_row, "s")    /* of an AIV to issue the moves of a row that it puts */  \
  X(aiv_window, "B") /* of one AIV, sent and not yet there; 0: any number */   \
  X(put_trip, "s")   /* of a dispatch's window through a link alone, which */  \
  X(home_trip, "s")  /* then is a queue in order; and of what goes home. */    \
  /* One of them 0: links share max-min fairly */                              \
  X(aic_home, "B/s") /* of one AIC that stores what goes home from its */      \
  /* accumulators, which are held until then; 0: puts send it */               \
  X(home_beside, "1") /* of an AIC's rate, that each AIV beside it takes */    \
  /* while it sends rows home to other ranks */                                \
  X(write_beside, "depth") /* of a product that runs beside a write-out: */    \
  /* the end of its own tile and the start of the next */

struct Figures {
#define HPMOE_FIGURE(name, unit) double name = 0;
  HPMOE_FIGURES(HPMOE_FIGURE)
#undef HPMOE_FIGURE
};

inline Figures FiguresOf(const std::map<std::string, double>& numbers) {
  Figures figures;
#define HPMOE_FIGURE(name, unit) figures.name = numbers.at(#name);
  HPMOE_FIGURES(HPMOE_FIGURE)
#undef HPMOE_FIGURE
  return figures;
}

// Links and routes as flat tables.
struct FabricTables {
  std::vector<double> capacity;      // [links] B/s
  std::vector<double> factor;        // [links] bytes on it for one of payload
  std::vector<int32_t> route_begin;  // [R * R + 1] into route_links
  std::vector<int32_t> route_links;  // of (source, destination)
  std::vector<double> latency;       // [R * R] s
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FIGURES_H_
