// make witness WITNESS_FLAGS=--witness_store
module {
  func.func @p0(%arg0: memref<1600xi32, #hivm.address_space<gm>>, %arg1: memref<1024xi32, #hivm.address_space<gm>>, %arg2: memref<512xi16, #hivm.address_space<gm>>, %arg3: memref<1024xf16, #hivm.address_space<gm>>, %arg4: memref<128xf16, #hivm.address_space<gm>>, %arg5: memref<128xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c7_i32 = arith.constant 7 : i32
    %c1_i32 = arith.constant 1 : i32
    %c-3_i16 = arith.constant -3 : i16
    %c2720_i64 = arith.constant 2720 : i64
    %c3744_i64 = arith.constant 3744 : i64
    %c2944_i64 = arith.constant 2944 : i64
    %c2528_i64 = arith.constant 2528 : i64
    %c3008_i64 = arith.constant 3008 : i64
    %c768_i64 = arith.constant 768 : i64
    %0 = hivm.hir.pointer_cast(%c768_i64) : memref<200xi32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c3008_i64) : memref<128xi32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c2528_i64) : memref<64xi16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c2944_i64) : memref<64xi16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c3744_i64) : memref<128xf16, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c2720_i64) : memref<16xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[200] [200] [1] : memref<1600xi32, #hivm.address_space<gm>> to memref<200xi32, strided<[1], offset: 200>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<200xi32, strided<[1], offset: 200>, #hivm.address_space<gm>>) outs(%0 : memref<200xi32, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[384] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<128xi32, strided<[1], offset: 384>, #hivm.address_space<gm>>) outs(%1 : memref<128xi32, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg2[128] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%2 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vadd ins(%2, %c-3_i16 : memref<64xi16, #hivm.address_space<ub>>, i16) outs(%3 : memref<64xi16, #hivm.address_space<ub>>)
    %subview_2 = memref.subview %arg3[384] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_2 : memref<128xf16, strided<[1], offset: 384>, #hivm.address_space<gm>>) outs(%4 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vadd ins(%4, %4 : memref<128xf16, #hivm.address_space<ub>>, memref<128xf16, #hivm.address_space<ub>>) outs(%4 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vnot ins(%2 : memref<64xi16, #hivm.address_space<ub>>) outs(%2 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.vbrc ins(%c1_i32 : i32) outs(%1 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%1, %c7_i32 : memref<128xi32, #hivm.address_space<ub>>, i32) outs(%1 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg4[32] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1], offset: 32>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_3 : memref<16xf16, strided<[1], offset: 32>, #hivm.address_space<gm>>) outs(%5 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_4 = memref.subview %arg1[384] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%1 : memref<128xi32, #hivm.address_space<ub>>) outs(%subview_4 : memref<128xi32, strided<[1], offset: 384>, #hivm.address_space<gm>>)
    %subview_5 = memref.subview %arg5[0] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%5 : memref<16xf16, #hivm.address_space<ub>>) outs(%subview_5 : memref<16xf16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p1(%arg0: memref<128xf16, #hivm.address_space<gm>>, %arg1: memref<1024xf16, #hivm.address_space<gm>>, %arg2: memref<1024xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c1024_i64 = arith.constant 1024 : i64
    %c2016_i64 = arith.constant 2016 : i64
    %c5664_i64 = arith.constant 5664 : i64
    %0 = hivm.hir.pointer_cast(%c5664_i64) : memref<16xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c2016_i64) : memref<16xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c1024_i64) : memref<128xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[0] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<16xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmul ins(%0, %0 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vrec ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vdiv ins(%0, %0 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vsub ins(%0, %0 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%1 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_0 = memref.subview %arg1[128] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%2 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg0[0] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%1 : memref<16xf16, #hivm.address_space<ub>>) outs(%subview_1 : memref<16xf16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg2[0] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%2 : memref<128xf16, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xf16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p2(%arg0: memref<64xf32, #hivm.address_space<gm>>, %arg1: memref<1024xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c2112_i64 = arith.constant 2112 : i64
    %c448_i64 = arith.constant 448 : i64
    %c2464_i64 = arith.constant 2464 : i64
    %0 = hivm.hir.pointer_cast(%c2464_i64) : memref<8xf32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c448_i64) : memref<8xf32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c2112_i64) : memref<128xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[24] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1], offset: 24>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<8xf32, strided<[1], offset: 24>, #hivm.address_space<gm>>) outs(%0 : memref<8xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vrsqrt ins(%0 : memref<8xf32, #hivm.address_space<ub>>) outs(%0 : memref<8xf32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vln ins(%0 : memref<8xf32, #hivm.address_space<ub>>) outs(%1 : memref<8xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_0 = memref.subview %arg1[0] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<128xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%2 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg0[0] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%1 : memref<8xf32, #hivm.address_space<ub>>) outs(%subview_1 : memref<8xf32, strided<[1]>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg1[128] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%2 : memref<128xf16, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p3(%arg0: memref<512xi16, #hivm.address_space<gm>>, %arg1: memref<2048xi16, #hivm.address_space<gm>>, %arg2: memref<2048xi16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c3 = arith.constant 3 : index
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %c3232_i64 = arith.constant 3232 : i64
    %c1568_i64 = arith.constant 1568 : i64
    %c1696_i64 = arith.constant 1696 : i64
    %c5888_i64 = arith.constant 5888 : i64
    %0 = hivm.hir.pointer_cast(%c5888_i64) : memref<64xi16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c1696_i64) : memref<64xi16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c1568_i64) : memref<64xi16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c3232_i64) : memref<256xi16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[128] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%0 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    scf.for %arg3 = %c0 to %c3 step %c1 {
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vnot ins(%0 : memref<64xi16, #hivm.address_space<ub>>) outs(%1 : memref<64xi16, #hivm.address_space<ub>>)
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vor ins(%1, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%1 : memref<64xi16, #hivm.address_space<ub>>)
      hivm.hir.vand ins(%0, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%2 : memref<64xi16, #hivm.address_space<ub>>)
    }
    %subview_0 = memref.subview %arg1[768] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1], offset: 768>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<256xi16, strided<[1], offset: 768>, #hivm.address_space<gm>>) outs(%3 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vnot ins(%3 : memref<256xi16, #hivm.address_space<ub>>) outs(%3 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vor ins(%1, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%0 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg2[512] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1], offset: 512>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%3 : memref<256xi16, #hivm.address_space<ub>>) outs(%subview_1 : memref<256xi16, strided<[1], offset: 512>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg0[0] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%0 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<64xi16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p4(%arg0: memref<512xf16, #hivm.address_space<gm>>, %arg1: memref<128xi16, #hivm.address_space<gm>>, %arg2: memref<128xi16, #hivm.address_space<gm>>, %arg3: memref<512xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.250000e-01 : f16
    %cst_0 = arith.constant 0.000000e+00 : f16
    %c4192_i64 = arith.constant 4192 : i64
    %c480_i64 = arith.constant 480 : i64
    %c3456_i64 = arith.constant 3456 : i64
    %c2112_i64 = arith.constant 2112 : i64
    %c5568_i64 = arith.constant 5568 : i64
    %0 = hivm.hir.pointer_cast(%c5568_i64) : memref<64xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c2112_i64) : memref<64xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c3456_i64) : memref<64xf16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c480_i64) : memref<64xf16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c4192_i64) : memref<16xi16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[64] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>) outs(%0 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmax ins(%0, %cst_0 : memref<64xf16, #hivm.address_space<ub>>, f16) outs(%1 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vrec ins(%1 : memref<64xf16, #hivm.address_space<ub>>) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.vsub ins(%0, %0 : memref<64xf16, #hivm.address_space<ub>>, memref<64xf16, #hivm.address_space<ub>>) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg1[32] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>) outs(%4 : memref<16xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg1[0] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%4 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<16xi16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%3, %cst : memref<64xf16, #hivm.address_space<ub>>, f16) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg2[0] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.store ins(%4 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_3 : memref<16xi16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_4 = memref.subview %arg3[192] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%3 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_4 : memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p5(%arg0: memref<512xf16, #hivm.address_space<gm>>, %arg1: memref<576xf32, #hivm.address_space<gm>>, %arg2: memref<2048xf16, #hivm.address_space<gm>>, %arg3: memref<512xi16, #hivm.address_space<gm>>, %arg4: memref<128xf16, #hivm.address_space<gm>>, %arg5: memref<1024xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c64 = arith.constant 64 : index
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 1.000000e+00 : f32
    %c2 = arith.constant 2 : index
    %c3 = arith.constant 3 : index
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %c2304_i64 = arith.constant 2304 : i64
    %c2784_i64 = arith.constant 2784 : i64
    %c4128_i64 = arith.constant 4128 : i64
    %c4736_i64 = arith.constant 4736 : i64
    %c2272_i64 = arith.constant 2272 : i64
    %c384_i64 = arith.constant 384 : i64
    %c992_i64 = arith.constant 992 : i64
    %c704_i64 = arith.constant 704 : i64
    %c1824_i64 = arith.constant 1824 : i64
    %c864_i64 = arith.constant 864 : i64
    %c416_i64 = arith.constant 416 : i64
    %0 = hivm.hir.pointer_cast(%c416_i64) : memref<64xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c864_i64) : memref<64xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c1824_i64) : memref<72xf32, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c704_i64) : memref<256xf16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c992_i64) : memref<64xi16, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c384_i64) : memref<64xf32, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c2272_i64) : memref<64xi16, #hivm.address_space<ub>>
    %7 = hivm.hir.pointer_cast(%c4736_i64) : memref<16xf16, #hivm.address_space<ub>>
    %8 = hivm.hir.pointer_cast(%c4128_i64) : memref<128xf16, #hivm.address_space<ub>>
    %9 = hivm.hir.pointer_cast(%c2784_i64) : memref<64xi32, #hivm.address_space<ub>>
    %10 = hivm.hir.pointer_cast(%c2304_i64) : memref<64xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[128] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<64xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%0 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.copy ins(%0 : memref<64xf16, #hivm.address_space<ub>>) outs(%1 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg1[216] [72] [1] : memref<576xf32, #hivm.address_space<gm>> to memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>) outs(%2 : memref<72xf32, #hivm.address_space<ub>>)
    %subview_2 = memref.subview %arg2[256] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.load ins(%subview_2 : memref<256xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%3 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vcast ins(%1 : memref<64xf16, #hivm.address_space<ub>>) outs(%4 : memref<64xi16, #hivm.address_space<ub>>)
    scf.for %arg6 = %c0 to %c3 step %c1 {
      hivm.hir.pipe_barrier[<PIPE_V>]
      scf.for %arg7 = %c0 to %c2 step %c1 {
        hivm.hir.pipe_barrier[<PIPE_V>]
        hivm.hir.vbrc ins(%cst_0 : f32) outs(%5 : memref<64xf32, #hivm.address_space<ub>>)
        hivm.hir.pipe_barrier[<PIPE_V>]
        hivm.hir.vadd ins(%5, %cst : memref<64xf32, #hivm.address_space<ub>>, f32) outs(%5 : memref<64xf32, #hivm.address_space<ub>>)
      }
      %11 = arith.muli %arg6, %c64 : index
      %12 = arith.addi %11, %c0 : index
      %subview_6 = memref.subview %arg3[%12] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: ?>, #hivm.address_space<gm>>
      hivm.hir.pipe_barrier[<PIPE_MTE2>]
      hivm.hir.load ins(%subview_6 : memref<64xi16, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%6 : memref<64xi16, #hivm.address_space<ub>>)
      %subview_7 = memref.subview %arg4[32] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1], offset: 32>, #hivm.address_space<gm>>
      hivm.hir.load ins(%subview_7 : memref<16xf16, strided<[1], offset: 32>, #hivm.address_space<gm>>) outs(%7 : memref<16xf16, #hivm.address_space<ub>>)
      %subview_8 = memref.subview %arg5[128] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
      hivm.hir.load ins(%subview_8 : memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%8 : memref<128xf16, #hivm.address_space<ub>>)
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vcast ins(%5 : memref<64xf32, #hivm.address_space<ub>>) outs(%9 : memref<64xi32, #hivm.address_space<ub>>) round_mode = <ceil>
    }
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg0[64] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>
    hivm.hir.pipe_barrier[<PIPE_MTE2>]
    hivm.hir.load ins(%subview_3 : memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>) outs(%10 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vsub ins(%8, %8 : memref<128xf16, #hivm.address_space<ub>>, memref<128xf16, #hivm.address_space<ub>>) outs(%8 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_4 = memref.subview %arg0[0] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%10 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_4 : memref<64xf16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_5 = memref.subview %arg5[0] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%8 : memref<128xf16, #hivm.address_space<ub>>) outs(%subview_5 : memref<128xf16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p6(%arg0: memref<576xf32, #hivm.address_space<gm>>, %arg1: memref<512xf16, #hivm.address_space<gm>>, %arg2: memref<1024xf32, #hivm.address_space<gm>>, %arg3: memref<576xf32, #hivm.address_space<gm>>, %arg4: memref<1024xf32, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.000000e+00 : f32
    %cst_0 = arith.constant 0.000000e+00 : f16
    %cst_1 = arith.constant 1.250000e-01 : f16
    %c5600_i64 = arith.constant 5600 : i64
    %c1120_i64 = arith.constant 1120 : i64
    %c2368_i64 = arith.constant 2368 : i64
    %c3776_i64 = arith.constant 3776 : i64
    %c3936_i64 = arith.constant 3936 : i64
    %c1920_i64 = arith.constant 1920 : i64
    %c4064_i64 = arith.constant 4064 : i64
    %c5248_i64 = arith.constant 5248 : i64
    %c4832_i64 = arith.constant 4832 : i64
    %c1216_i64 = arith.constant 1216 : i64
    %c4000_i64 = arith.constant 4000 : i64
    %0 = hivm.hir.pointer_cast(%c4000_i64) : memref<72xf32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c1216_i64) : memref<128xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c4832_i64) : memref<128xf16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c5248_i64) : memref<72xf32, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c4064_i64) : memref<128xf32, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c1920_i64) : memref<72xf32, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c3936_i64) : memref<64xf16, #hivm.address_space<ub>>
    %7 = hivm.hir.pointer_cast(%c3776_i64) : memref<128xf32, #hivm.address_space<ub>>
    %8 = hivm.hir.pointer_cast(%c2368_i64) : memref<128xf16, #hivm.address_space<ub>>
    %9 = hivm.hir.pointer_cast(%c1120_i64) : memref<128xf32, #hivm.address_space<ub>>
    %10 = hivm.hir.pointer_cast(%c5600_i64) : memref<128xf32, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[216] [72] [1] : memref<576xf32, #hivm.address_space<gm>> to memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>) outs(%0 : memref<72xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vbrc ins(%cst_1 : f16) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%1, %cst_0 : memref<128xf16, #hivm.address_space<ub>>, f16) outs(%2 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmin ins(%0, %cst : memref<72xf32, #hivm.address_space<ub>>, f32) outs(%3 : memref<72xf32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vln ins(%0 : memref<72xf32, #hivm.address_space<ub>>) outs(%0 : memref<72xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vcast ins(%1 : memref<128xf16, #hivm.address_space<ub>>) outs(%4 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.vabs ins(%3 : memref<72xf32, #hivm.address_space<ub>>) outs(%5 : memref<72xf32, #hivm.address_space<ub>>)
    %subview_2 = memref.subview %arg1[0] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    hivm.hir.load ins(%subview_2 : memref<64xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%6 : memref<64xf16, #hivm.address_space<ub>>)
    %subview_3 = memref.subview %arg2[256] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.pipe_barrier[<PIPE_MTE2>]
    hivm.hir.load ins(%subview_3 : memref<128xf32, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%7 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vcast ins(%4 : memref<128xf32, #hivm.address_space<ub>>) outs(%8 : memref<128xf16, #hivm.address_space<ub>>) round_mode = <ceil>
    hivm.hir.vsqrt ins(%4 : memref<128xf32, #hivm.address_space<ub>>) outs(%9 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vexp ins(%3 : memref<72xf32, #hivm.address_space<ub>>) outs(%3 : memref<72xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.vexp ins(%4 : memref<128xf32, #hivm.address_space<ub>>) outs(%10 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_4 = memref.subview %arg3[216] [72] [1] : memref<576xf32, #hivm.address_space<gm>> to memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%3 : memref<72xf32, #hivm.address_space<ub>>) outs(%subview_4 : memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>)
    %subview_5 = memref.subview %arg4[128] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%10 : memref<128xf32, #hivm.address_space<ub>>) outs(%subview_5 : memref<128xf32, strided<[1], offset: 128>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p7(%arg0: memref<1024xi32, #hivm.address_space<gm>>, %arg1: memref<1024xf32, #hivm.address_space<gm>>, %arg2: memref<2048xi16, #hivm.address_space<gm>>, %arg3: memref<1024xi32, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant -2.500000e+00 : f32
    %c768 = arith.constant 768 : index
    %c256 = arith.constant 256 : index
    %cst_0 = arith.constant 1.250000e-01 : f32
    %c128 = arith.constant 128 : index
    %c3 = arith.constant 3 : index
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %c5344_i64 = arith.constant 5344 : i64
    %c928_i64 = arith.constant 928 : i64
    %c5440_i64 = arith.constant 5440 : i64
    %c4000_i64 = arith.constant 4000 : i64
    %c4640_i64 = arith.constant 4640 : i64
    %c3296_i64 = arith.constant 3296 : i64
    %c2496_i64 = arith.constant 2496 : i64
    %0 = hivm.hir.pointer_cast(%c2496_i64) : memref<128xi32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c3296_i64) : memref<128xf32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c4640_i64) : memref<128xf32, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c4000_i64) : memref<128xf32, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c5440_i64) : memref<256xi16, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c928_i64) : memref<256xi16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c5344_i64) : memref<128xf32, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[0] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<128xi32, strided<[1]>, #hivm.address_space<gm>>) outs(%0 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    scf.for %arg4 = %c0 to %c3 step %c1 {
      scf.for %arg5 = %c0 to %c1 step %c1 {
        %9 = arith.muli %arg5, %c128 : index
        %10 = arith.addi %9, %c128 : index
        %subview_4 = memref.subview %arg1[%10] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
        hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
        hivm.hir.load ins(%subview_4 : memref<128xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%1 : memref<128xf32, #hivm.address_space<ub>>)
        hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
        hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
        hivm.hir.vmul ins(%1, %cst_0 : memref<128xf32, #hivm.address_space<ub>>, f32) outs(%2 : memref<128xf32, #hivm.address_space<ub>>)
        hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
      }
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vln ins(%2 : memref<128xf32, #hivm.address_space<ub>>) outs(%3 : memref<128xf32, #hivm.address_space<ub>>)
      %7 = arith.muli %arg4, %c256 : index
      %8 = arith.addi %7, %c768 : index
      %subview_3 = memref.subview %arg2[%8] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1], offset: ?>, #hivm.address_space<gm>>
      hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
      hivm.hir.load ins(%subview_3 : memref<256xi16, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%4 : memref<256xi16, #hivm.address_space<ub>>)
      hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
      hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
      hivm.hir.vand ins(%4, %4 : memref<256xi16, #hivm.address_space<ub>>, memref<256xi16, #hivm.address_space<ub>>) outs(%5 : memref<256xi16, #hivm.address_space<ub>>)
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vor ins(%4, %5 : memref<256xi16, #hivm.address_space<ub>>, memref<256xi16, #hivm.address_space<ub>>) outs(%4 : memref<256xi16, #hivm.address_space<ub>>)
      hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    }
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.copy ins(%0 : memref<128xi32, #hivm.address_space<ub>>) outs(%0 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%3, %cst : memref<128xf32, #hivm.address_space<ub>>, f32) outs(%6 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg3[128] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%0 : memref<128xi32, #hivm.address_space<ub>>) outs(%subview_1 : memref<128xi32, strided<[1], offset: 128>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg1[384] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<128xf32, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xf32, strided<[1], offset: 384>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p8(%arg0: memref<2048xf16, #hivm.address_space<gm>>, %arg1: memref<2048xf32, #hivm.address_space<gm>>, %arg2: memref<64xf32, #hivm.address_space<gm>>, %arg3: memref<512xi16, #hivm.address_space<gm>>, %arg4: memref<512xi16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c320_i64 = arith.constant 320 : i64
    %c1344_i64 = arith.constant 1344 : i64
    %c2752_i64 = arith.constant 2752 : i64
    %c5952_i64 = arith.constant 5952 : i64
    %c5024_i64 = arith.constant 5024 : i64
    %c2720_i64 = arith.constant 2720 : i64
    %c1888_i64 = arith.constant 1888 : i64
    %0 = hivm.hir.pointer_cast(%c1888_i64) : memref<256xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c2720_i64) : memref<256xf32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c5024_i64) : memref<256xi16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c5952_i64) : memref<8xf32, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c2752_i64) : memref<8xi32, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c1344_i64) : memref<256xf16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c320_i64) : memref<64xi16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[768] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>) outs(%0 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    %subview_0 = memref.subview %arg1[256] [256] [1] : memref<2048xf32, #hivm.address_space<gm>> to memref<256xf32, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<256xf32, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%1 : memref<256xf32, #hivm.address_space<ub>>)
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vcast ins(%0 : memref<256xf16, #hivm.address_space<ub>>) outs(%2 : memref<256xi16, #hivm.address_space<ub>>) round_mode = <round>
    %subview_1 = memref.subview %arg2[8] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1], offset: 8>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<8xf32, strided<[1], offset: 8>, #hivm.address_space<gm>>) outs(%3 : memref<8xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vcast ins(%3 : memref<8xf32, #hivm.address_space<ub>>) outs(%4 : memref<8xi32, #hivm.address_space<ub>>) round_mode = <ceil>
    hivm.hir.vadd ins(%0, %0 : memref<256xf16, #hivm.address_space<ub>>, memref<256xf16, #hivm.address_space<ub>>) outs(%5 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg3[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_2 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>) outs(%6 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg0[0] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%5 : memref<256xf16, #hivm.address_space<ub>>) outs(%subview_3 : memref<256xf16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_4 = memref.subview %arg4[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_4 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p9(%arg0: memref<2048xi16, #hivm.address_space<gm>>, %arg1: memref<1024xi16, #hivm.address_space<gm>>, %arg2: memref<1600xf32, #hivm.address_space<gm>>, %arg3: memref<128xi16, #hivm.address_space<gm>>, %arg4: memref<1024xi16, #hivm.address_space<gm>>, %arg5: memref<1024xi16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c128 = arith.constant 128 : index
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %c-3_i16 = arith.constant -3 : i16
    %c4192_i64 = arith.constant 4192 : i64
    %c3424_i64 = arith.constant 3424 : i64
    %c5184_i64 = arith.constant 5184 : i64
    %c2016_i64 = arith.constant 2016 : i64
    %c3840_i64 = arith.constant 3840 : i64
    %c320_i64 = arith.constant 320 : i64
    %c2848_i64 = arith.constant 2848 : i64
    %0 = hivm.hir.pointer_cast(%c2848_i64) : memref<16xi16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c320_i64) : memref<256xi16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c3840_i64) : memref<128xi16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c2016_i64) : memref<200xf32, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c5184_i64) : memref<200xf32, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c3424_i64) : memref<16xi16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c4192_i64) : memref<200xf32, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%c-3_i16 : i16) outs(%0 : memref<16xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview = memref.subview %arg0[0] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<256xi16, strided<[1]>, #hivm.address_space<gm>>) outs(%1 : memref<256xi16, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[128] [128] [1] : memref<1024xi16, #hivm.address_space<gm>> to memref<128xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<128xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%2 : memref<128xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    scf.for %arg6 = %c0 to %c1 step %c1 {
      %subview_4 = memref.subview %arg2[0] [200] [1] : memref<1600xf32, #hivm.address_space<gm>> to memref<200xf32, strided<[1]>, #hivm.address_space<gm>>
      hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
      hivm.hir.load ins(%subview_4 : memref<200xf32, strided<[1]>, #hivm.address_space<gm>>) outs(%3 : memref<200xf32, #hivm.address_space<ub>>)
      hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
      hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
      hivm.hir.vabs ins(%3 : memref<200xf32, #hivm.address_space<ub>>) outs(%4 : memref<200xf32, #hivm.address_space<ub>>)
      hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vmax ins(%0, %0 : memref<16xi16, #hivm.address_space<ub>>, memref<16xi16, #hivm.address_space<ub>>) outs(%5 : memref<16xi16, #hivm.address_space<ub>>)
    }
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    scf.for %arg6 = %c0 to %c1 step %c1 {
      %subview_4 = memref.subview %arg3[32] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>
      hivm.hir.pipe_barrier[<PIPE_MTE3>]
      hivm.hir.store ins(%0 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_4 : memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>)
      %7 = arith.muli %arg6, %c128 : index
      %8 = arith.addi %7, %c0 : index
      %subview_5 = memref.subview %arg4[%8] [128] [1] : memref<1024xi16, #hivm.address_space<gm>> to memref<128xi16, strided<[1], offset: ?>, #hivm.address_space<gm>>
      hivm.hir.store ins(%2 : memref<128xi16, #hivm.address_space<ub>>) outs(%subview_5 : memref<128xi16, strided<[1], offset: ?>, #hivm.address_space<gm>>)
    }
    hivm.hir.set_flag[<PIPE_MTE3>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE3>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmul ins(%2, %2 : memref<128xi16, #hivm.address_space<ub>>, memref<128xi16, #hivm.address_space<ub>>) outs(%2 : memref<128xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_1 = memref.subview %arg3[32] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>
    hivm.hir.pipe_barrier[<PIPE_MTE3>]
    hivm.hir.store ins(%0 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_1 : memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>)
    hivm.hir.vexp ins(%4 : memref<200xf32, #hivm.address_space<ub>>) outs(%6 : memref<200xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg5[256] [128] [1] : memref<1024xi16, #hivm.address_space<gm>> to memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%2 : memref<128xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>)
    %subview_3 = memref.subview %arg2[200] [200] [1] : memref<1600xf32, #hivm.address_space<gm>> to memref<200xf32, strided<[1], offset: 200>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<200xf32, #hivm.address_space<ub>>) outs(%subview_3 : memref<200xf32, strided<[1], offset: 200>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p10(%arg0: memref<1024xf16, #hivm.address_space<gm>>, %arg1: memref<2048xi16, #hivm.address_space<gm>>, %arg2: memref<1024xi16, #hivm.address_space<gm>>, %arg3: memref<1024xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c736_i64 = arith.constant 736 : i64
    %c3136_i64 = arith.constant 3136 : i64
    %c4928_i64 = arith.constant 4928 : i64
    %c4800_i64 = arith.constant 4800 : i64
    %c2784_i64 = arith.constant 2784 : i64
    %c1536_i64 = arith.constant 1536 : i64
    %c2048_i64 = arith.constant 2048 : i64
    %0 = hivm.hir.pointer_cast(%c2048_i64) : memref<128xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c1536_i64) : memref<128xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c2784_i64) : memref<256xi16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c4800_i64) : memref<256xi16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c4928_i64) : memref<128xf32, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c3136_i64) : memref<128xi16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c736_i64) : memref<128xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[128] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%0 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vsqrt ins(%0 : memref<128xf16, #hivm.address_space<ub>>) outs(%0 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vsub ins(%0, %0 : memref<128xf16, #hivm.address_space<ub>>, memref<128xf16, #hivm.address_space<ub>>) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vrec ins(%0 : memref<128xf16, #hivm.address_space<ub>>) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[768] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1], offset: 768>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<256xi16, strided<[1], offset: 768>, #hivm.address_space<gm>>) outs(%2 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vrelu ins(%1 : memref<128xf16, #hivm.address_space<ub>>) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vexp ins(%1 : memref<128xf16, #hivm.address_space<ub>>) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vor ins(%2, %2 : memref<256xi16, #hivm.address_space<ub>>, memref<256xi16, #hivm.address_space<ub>>) outs(%3 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vsub ins(%1, %1 : memref<128xf16, #hivm.address_space<ub>>, memref<128xf16, #hivm.address_space<ub>>) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vcast ins(%1 : memref<128xf16, #hivm.address_space<ub>>) outs(%4 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.vadd ins(%2, %2 : memref<256xi16, #hivm.address_space<ub>>, memref<256xi16, #hivm.address_space<ub>>) outs(%2 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg2[256] [128] [1] : memref<1024xi16, #hivm.address_space<gm>> to memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.load ins(%subview_1 : memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%5 : memref<128xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.vmin ins(%1, %1 : memref<128xf16, #hivm.address_space<ub>>, memref<128xf16, #hivm.address_space<ub>>) outs(%6 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg2[256] [128] [1] : memref<1024xi16, #hivm.address_space<gm>> to memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%5 : memref<128xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>)
    %subview_3 = memref.subview %arg3[256] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<128xf16, #hivm.address_space<ub>>) outs(%subview_3 : memref<128xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p11(%arg0: memref<512xi16, #hivm.address_space<gm>>, %arg1: memref<1024xf32, #hivm.address_space<gm>>, %arg2: memref<64xf32, #hivm.address_space<gm>>, %arg3: memref<1024xi16, #hivm.address_space<gm>>, %arg4: memref<512xf16, #hivm.address_space<gm>>, %arg5: memref<2048xf16, #hivm.address_space<gm>>, %arg6: memref<128xf16, #hivm.address_space<gm>>, %arg7: memref<2048xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant -2.500000e+00 : f16
    %cst_0 = arith.constant 0.000000e+00 : f32
    %c8 = arith.constant 8 : index
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %c832_i64 = arith.constant 832 : i64
    %c576_i64 = arith.constant 576 : i64
    %c5920_i64 = arith.constant 5920 : i64
    %c5152_i64 = arith.constant 5152 : i64
    %c5472_i64 = arith.constant 5472 : i64
    %c2240_i64 = arith.constant 2240 : i64
    %c128_i64 = arith.constant 128 : i64
    %c3744_i64 = arith.constant 3744 : i64
    %0 = hivm.hir.pointer_cast(%c3744_i64) : memref<64xi16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c128_i64) : memref<128xf32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c2240_i64) : memref<8xf32, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c5472_i64) : memref<128xi16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c5152_i64) : memref<64xf16, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c5920_i64) : memref<64xi16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c576_i64) : memref<16xf16, #hivm.address_space<ub>>
    %7 = hivm.hir.pointer_cast(%c832_i64) : memref<256xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[128] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%0 : memref<64xi16, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg1[128] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<128xf32, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%1 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    scf.for %arg8 = %c0 to %c1 step %c1 {
      %8 = arith.muli %arg8, %c8 : index
      %9 = arith.addi %8, %c8 : index
      %subview_4 = memref.subview %arg2[%9] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
      hivm.hir.pipe_barrier[<PIPE_MTE2>]
      hivm.hir.load ins(%subview_4 : memref<8xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%2 : memref<8xf32, #hivm.address_space<ub>>)
      %subview_5 = memref.subview %arg3[256] [128] [1] : memref<1024xi16, #hivm.address_space<gm>> to memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>
      hivm.hir.load ins(%subview_5 : memref<128xi16, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%3 : memref<128xi16, #hivm.address_space<ub>>)
      scf.for %arg9 = %c0 to %c1 step %c1 {
        %subview_6 = memref.subview %arg4[128] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
        hivm.hir.pipe_barrier[<PIPE_MTE2>]
        hivm.hir.load ins(%subview_6 : memref<64xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%4 : memref<64xf16, #hivm.address_space<ub>>)
        hivm.hir.pipe_barrier[<PIPE_V>]
        hivm.hir.vsub ins(%0, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%0 : memref<64xi16, #hivm.address_space<ub>>)
        hivm.hir.vadd ins(%1, %1 : memref<128xf32, #hivm.address_space<ub>>, memref<128xf32, #hivm.address_space<ub>>) outs(%1 : memref<128xf32, #hivm.address_space<ub>>)
      }
    }
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmax ins(%1, %cst_0 : memref<128xf32, #hivm.address_space<ub>>, f32) outs(%1 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    scf.for %arg8 = %c0 to %c1 step %c1 {
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vadd ins(%0, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%5 : memref<64xi16, #hivm.address_space<ub>>)
      hivm.hir.vbrc ins(%cst : f16) outs(%6 : memref<16xf16, #hivm.address_space<ub>>)
      %subview_4 = memref.subview %arg5[768] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>
      hivm.hir.pipe_barrier[<PIPE_MTE2>]
      hivm.hir.load ins(%subview_4 : memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>) outs(%7 : memref<256xf16, #hivm.address_space<ub>>)
    }
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg6[16] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1], offset: 16>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<16xf16, #hivm.address_space<ub>>) outs(%subview_2 : memref<16xf16, strided<[1], offset: 16>, #hivm.address_space<gm>>)
    %subview_3 = memref.subview %arg7[256] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%7 : memref<256xf16, #hivm.address_space<ub>>) outs(%subview_3 : memref<256xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
}

