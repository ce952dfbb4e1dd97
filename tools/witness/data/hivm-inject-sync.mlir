// make witness WITNESS_FLAGS=--witness_store
module {
  func.func @p0(%arg0: memref<128xf16, #hivm.address_space<gm>>, %arg1: memref<192xi32, #hivm.address_space<gm>>, %arg2: memref<512xi16, #hivm.address_space<gm>>, %arg3: memref<512xi16, #hivm.address_space<gm>>, %arg4: memref<512xi16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c0_i16 = arith.constant 0 : i16
    %c1184_i64 = arith.constant 1184 : i64
    %c2944_i64 = arith.constant 2944 : i64
    %c736_i64 = arith.constant 736 : i64
    %c5952_i64 = arith.constant 5952 : i64
    %c544_i64 = arith.constant 544 : i64
    %0 = hivm.hir.pointer_cast(%c544_i64) : memref<16xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c5952_i64) : memref<24xi32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c736_i64) : memref<64xi16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c2944_i64) : memref<64xi16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c1184_i64) : memref<64xi16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[0] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<16xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmin ins(%0, %0 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vln ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[0] [24] [1] : memref<192xi32, #hivm.address_space<gm>> to memref<24xi32, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<24xi32, strided<[1]>, #hivm.address_space<gm>>) outs(%1 : memref<24xi32, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg2[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>) outs(%2 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.vadd ins(%2, %2 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%2 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmul ins(%0, %0 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.vmul ins(%2, %2 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%3 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.vmul ins(%2, %c0_i16 : memref<64xi16, #hivm.address_space<ub>>, i16) outs(%4 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID2>]
    %subview_2 = memref.subview %arg3[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%2 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    %subview_3 = memref.subview %arg2[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%3 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_3 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    %subview_4 = memref.subview %arg4[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID2>]
    hivm.hir.store ins(%4 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_4 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p1(%arg0: memref<128xf16, #hivm.address_space<gm>>, %arg1: memref<512xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.250000e-01 : f16
    %c2464_i64 = arith.constant 2464 : i64
    %c1024_i64 = arith.constant 1024 : i64
    %c5664_i64 = arith.constant 5664 : i64
    %0 = hivm.hir.pointer_cast(%c5664_i64) : memref<16xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c1024_i64) : memref<16xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c2464_i64) : memref<64xf16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[0] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<16xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vsub ins(%0, %0 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vln ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%0, %cst : memref<16xf16, #hivm.address_space<ub>>, f16) outs(%1 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vsqrt ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_0 = memref.subview %arg1[128] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<64xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg0[32] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1], offset: 32>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%subview_1 : memref<16xf16, strided<[1], offset: 32>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg1[64] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%2 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_2 : memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p2(%arg0: memref<2048xf16, #hivm.address_space<gm>>, %arg1: memref<576xf32, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.000000e+00 : f32
    %c2016_i64 = arith.constant 2016 : i64
    %c4160_i64 = arith.constant 4160 : i64
    %c2144_i64 = arith.constant 2144 : i64
    %0 = hivm.hir.pointer_cast(%c2144_i64) : memref<72xf32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c4160_i64) : memref<256xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c2016_i64) : memref<256xf16, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%cst : f32) outs(%0 : memref<72xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview = memref.subview %arg0[512] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 512>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<256xf16, strided<[1], offset: 512>, #hivm.address_space<gm>>) outs(%1 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_0 = memref.subview %arg1[216] [72] [1] : memref<576xf32, #hivm.address_space<gm>> to memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%0 : memref<72xf32, #hivm.address_space<ub>>) outs(%subview_0 : memref<72xf32, strided<[1], offset: 216>, #hivm.address_space<gm>>)
    hivm.hir.set_flag[<PIPE_MTE3>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE3>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmul ins(%1, %1 : memref<256xf16, #hivm.address_space<ub>>, memref<256xf16, #hivm.address_space<ub>>) outs(%2 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_1 = memref.subview %arg0[768] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%1 : memref<256xf16, #hivm.address_space<ub>>) outs(%subview_1 : memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg0[768] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>
    hivm.hir.pipe_barrier[<PIPE_MTE3>]
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%2 : memref<256xf16, #hivm.address_space<ub>>) outs(%subview_2 : memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>)
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
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.vnot ins(%3 : memref<256xi16, #hivm.address_space<ub>>) outs(%3 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vor ins(%1, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%0 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_1 = memref.subview %arg2[512] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1], offset: 512>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%3 : memref<256xi16, #hivm.address_space<ub>>) outs(%subview_1 : memref<256xi16, strided<[1], offset: 512>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg0[0] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%0 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<64xi16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p4(%arg0: memref<512xf16, #hivm.address_space<gm>>, %arg1: memref<128xf16, #hivm.address_space<gm>>, %arg2: memref<128xi16, #hivm.address_space<gm>>, %arg3: memref<128xi16, #hivm.address_space<gm>>, %arg4: memref<512xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.250000e-01 : f16
    %c4192_i64 = arith.constant 4192 : i64
    %c480_i64 = arith.constant 480 : i64
    %c3456_i64 = arith.constant 3456 : i64
    %c3712_i64 = arith.constant 3712 : i64
    %c5568_i64 = arith.constant 5568 : i64
    %0 = hivm.hir.pointer_cast(%c5568_i64) : memref<64xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c3712_i64) : memref<16xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c3456_i64) : memref<16xf16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c480_i64) : memref<64xf16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c4192_i64) : memref<16xi16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[64] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>) outs(%0 : memref<64xf16, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[16] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1], offset: 16>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<16xf16, strided<[1], offset: 16>, #hivm.address_space<gm>>) outs(%1 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vadd ins(%1, %1 : memref<16xf16, #hivm.address_space<ub>>, memref<16xf16, #hivm.address_space<ub>>) outs(%2 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.vadd ins(%0, %0 : memref<64xf16, #hivm.address_space<ub>>, memref<64xf16, #hivm.address_space<ub>>) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg2[32] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>) outs(%4 : memref<16xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg2[0] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%4 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<16xi16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vadd ins(%3, %cst : memref<64xf16, #hivm.address_space<ub>>, f16) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg3[0] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.store ins(%4 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_3 : memref<16xi16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_4 = memref.subview %arg4[192] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%3 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_4 : memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p5(%arg0: memref<1024xf16, #hivm.address_space<gm>>, %arg1: memref<512xf16, #hivm.address_space<gm>>, %arg2: memref<128xi16, #hivm.address_space<gm>>, %arg3: memref<1024xf16, #hivm.address_space<gm>>, %arg4: memref<128xi16, #hivm.address_space<gm>>, %arg5: memref<1024xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c128 = arith.constant 128 : index
    %cst = arith.constant 1.250000e-01 : f16
    %c2 = arith.constant 2 : index
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %cst_0 = arith.constant -2.500000e+00 : f16
    %c4480_i64 = arith.constant 4480 : i64
    %c4064_i64 = arith.constant 4064 : i64
    %c3744_i64 = arith.constant 3744 : i64
    %c4864_i64 = arith.constant 4864 : i64
    %c5088_i64 = arith.constant 5088 : i64
    %c4192_i64 = arith.constant 4192 : i64
    %0 = hivm.hir.pointer_cast(%c4192_i64) : memref<16xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c5088_i64) : memref<128xf16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c4864_i64) : memref<16xf16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c3744_i64) : memref<64xf16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c4864_i64) : memref<16xi16, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c4064_i64) : memref<64xf16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c4480_i64) : memref<128xf16, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%cst_0 : f16) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vrsqrt ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    %subview = memref.subview %arg0[384] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<128xf16, strided<[1], offset: 384>, #hivm.address_space<gm>>) outs(%1 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vln ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
    scf.for %arg6 = %c0 to %c2 step %c1 {
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vadd ins(%0, %cst : memref<16xf16, #hivm.address_space<ub>>, f16) outs(%2 : memref<16xf16, #hivm.address_space<ub>>)
      hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
      %subview_4 = memref.subview %arg1[192] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>
      hivm.hir.pipe_barrier[<PIPE_MTE2>]
      hivm.hir.load ins(%subview_4 : memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vrsqrt ins(%0 : memref<16xf16, #hivm.address_space<ub>>) outs(%0 : memref<16xf16, #hivm.address_space<ub>>)
      %subview_5 = memref.subview %arg2[32] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>
      hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
      hivm.hir.load ins(%subview_5 : memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>) outs(%4 : memref<16xi16, #hivm.address_space<ub>>)
      hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
      hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
      hivm.hir.vadd ins(%4, %4 : memref<16xi16, #hivm.address_space<ub>>, memref<16xi16, #hivm.address_space<ub>>) outs(%4 : memref<16xi16, #hivm.address_space<ub>>)
    }
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    scf.for %arg6 = %c0 to %c2 step %c1 {
      scf.for %arg7 = %c0 to %c1 step %c1 {
        hivm.hir.pipe_barrier[<PIPE_V>]
        hivm.hir.vsub ins(%3, %3 : memref<64xf16, #hivm.address_space<ub>>, memref<64xf16, #hivm.address_space<ub>>) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
        hivm.hir.pipe_barrier[<PIPE_V>]
        hivm.hir.vsqrt ins(%3 : memref<64xf16, #hivm.address_space<ub>>) outs(%5 : memref<64xf16, #hivm.address_space<ub>>)
        %7 = arith.muli %arg7, %c128 : index
        %8 = arith.addi %7, %c0 : index
        %subview_4 = memref.subview %arg3[%8] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: ?>, #hivm.address_space<gm>>
        hivm.hir.pipe_barrier[<PIPE_MTE2>]
        hivm.hir.load ins(%subview_4 : memref<128xf16, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%6 : memref<128xf16, #hivm.address_space<ub>>)
      }
    }
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_1 = memref.subview %arg4[0] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%4 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_1 : memref<16xi16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg1[64] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%5 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_2 : memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>)
    %subview_3 = memref.subview %arg5[128] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<128xf16, #hivm.address_space<ub>>) outs(%subview_3 : memref<128xf16, strided<[1], offset: 128>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p6(%arg0: memref<1024xi32, #hivm.address_space<gm>>, %arg1: memref<2048xi16, #hivm.address_space<gm>>, %arg2: memref<2048xi16, #hivm.address_space<gm>>, %arg3: memref<64xf32, #hivm.address_space<gm>>, %arg4: memref<128xi16, #hivm.address_space<gm>>, %arg5: memref<1024xf32, #hivm.address_space<gm>>, %arg6: memref<64xf32, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.250000e-01 : f32
    %c5856_i64 = arith.constant 5856 : i64
    %c2816_i64 = arith.constant 2816 : i64
    %c2144_i64 = arith.constant 2144 : i64
    %c3296_i64 = arith.constant 3296 : i64
    %c1376_i64 = arith.constant 1376 : i64
    %c2240_i64 = arith.constant 2240 : i64
    %c800_i64 = arith.constant 800 : i64
    %0 = hivm.hir.pointer_cast(%c800_i64) : memref<128xi32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c2240_i64) : memref<256xi16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c1376_i64) : memref<8xf32, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c3296_i64) : memref<16xi16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c2144_i64) : memref<128xf32, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c2816_i64) : memref<200xf32, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c5856_i64) : memref<8xf32, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[256] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<128xi32, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%0 : memref<128xi32, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[0] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<256xi16, strided<[1]>, #hivm.address_space<gm>>) outs(%1 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    %subview_1 = memref.subview %arg0[384] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.pipe_barrier[<PIPE_MTE2>]
    hivm.hir.load ins(%subview_1 : memref<128xi32, strided<[1], offset: 384>, #hivm.address_space<gm>>) outs(%0 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg0[128] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%0 : memref<128xi32, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xi32, strided<[1], offset: 128>, #hivm.address_space<gm>>)
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vor ins(%1, %1 : memref<256xi16, #hivm.address_space<ub>>, memref<256xi16, #hivm.address_space<ub>>) outs(%1 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vsub ins(%1, %1 : memref<256xi16, #hivm.address_space<ub>>, memref<256xi16, #hivm.address_space<ub>>) outs(%1 : memref<256xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg2[0] [256] [1] : memref<2048xi16, #hivm.address_space<gm>> to memref<256xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%1 : memref<256xi16, #hivm.address_space<ub>>) outs(%subview_3 : memref<256xi16, strided<[1]>, #hivm.address_space<gm>>)
    hivm.hir.set_flag[<PIPE_MTE3>, <PIPE_MTE2>, <EVENT_ID0>]
    %subview_4 = memref.subview %arg3[0] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_4 : memref<8xf32, strided<[1]>, #hivm.address_space<gm>>) outs(%2 : memref<8xf32, #hivm.address_space<ub>>)
    %subview_5 = memref.subview %arg4[16] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 16>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_5 : memref<16xi16, strided<[1], offset: 16>, #hivm.address_space<gm>>) outs(%3 : memref<16xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    %subview_6 = memref.subview %arg5[256] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE3>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.load ins(%subview_6 : memref<128xf32, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%4 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.vbrc ins(%cst : f32) outs(%5 : memref<200xf32, #hivm.address_space<ub>>)
    hivm.hir.vadd ins(%2, %2 : memref<8xf32, #hivm.address_space<ub>>, memref<8xf32, #hivm.address_space<ub>>) outs(%2 : memref<8xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vrec ins(%2 : memref<8xf32, #hivm.address_space<ub>>) outs(%6 : memref<8xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID2>]
    %subview_7 = memref.subview %arg3[24] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1], offset: 24>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%2 : memref<8xf32, #hivm.address_space<ub>>) outs(%subview_7 : memref<8xf32, strided<[1], offset: 24>, #hivm.address_space<gm>>)
    %subview_8 = memref.subview %arg6[24] [8] [1] : memref<64xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1], offset: 24>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID2>]
    hivm.hir.store ins(%6 : memref<8xf32, #hivm.address_space<ub>>) outs(%subview_8 : memref<8xf32, strided<[1], offset: 24>, #hivm.address_space<gm>>)
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
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    hivm.hir.load ins(%subview : memref<128xi32, strided<[1]>, #hivm.address_space<gm>>) outs(%0 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID2>]
    scf.for %arg4 = %c0 to %c3 step %c1 {
      scf.for %arg5 = %c0 to %c1 step %c1 {
        %9 = arith.muli %arg5, %c128 : index
        %10 = arith.addi %9, %c128 : index
        %subview_4 = memref.subview %arg1[%10] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
        hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
        hivm.hir.load ins(%subview_4 : memref<128xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%1 : memref<128xf32, #hivm.address_space<ub>>)
        hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
        hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
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
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID2>]
    hivm.hir.copy ins(%0 : memref<128xi32, #hivm.address_space<ub>>) outs(%0 : memref<128xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%3, %cst : memref<128xf32, #hivm.address_space<ub>>, f32) outs(%6 : memref<128xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_1 = memref.subview %arg3[128] [128] [1] : memref<1024xi32, #hivm.address_space<gm>> to memref<128xi32, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%0 : memref<128xi32, #hivm.address_space<ub>>) outs(%subview_1 : memref<128xi32, strided<[1], offset: 128>, #hivm.address_space<gm>>)
    %subview_2 = memref.subview %arg1[384] [128] [1] : memref<1024xf32, #hivm.address_space<gm>> to memref<128xf32, strided<[1], offset: 384>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%6 : memref<128xf32, #hivm.address_space<ub>>) outs(%subview_2 : memref<128xf32, strided<[1], offset: 384>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID1>]
    return
  }
  func.func @p8(%arg0: memref<1600xi32, #hivm.address_space<gm>>, %arg1: memref<512xf32, #hivm.address_space<gm>>, %arg2: memref<512xf16, #hivm.address_space<gm>>, %arg3: memref<576xf32, #hivm.address_space<gm>>, %arg4: memref<576xf32, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.250000e-01 : f32
    %c3168_i64 = arith.constant 3168 : i64
    %c1952_i64 = arith.constant 1952 : i64
    %c1632_i64 = arith.constant 1632 : i64
    %c4736_i64 = arith.constant 4736 : i64
    %0 = hivm.hir.pointer_cast(%c4736_i64) : memref<200xi32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c4736_i64) : memref<64xf32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c1632_i64) : memref<64xf32, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c1952_i64) : memref<64xf16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c3168_i64) : memref<72xf32, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[200] [200] [1] : memref<1600xi32, #hivm.address_space<gm>> to memref<200xi32, strided<[1], offset: 200>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<200xi32, strided<[1], offset: 200>, #hivm.address_space<gm>>) outs(%0 : memref<200xi32, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[128] [64] [1] : memref<512xf32, #hivm.address_space<gm>> to memref<64xf32, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.pipe_barrier[<PIPE_MTE2>]
    hivm.hir.load ins(%subview_0 : memref<64xf32, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%1 : memref<64xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vexp ins(%1 : memref<64xf32, #hivm.address_space<ub>>) outs(%1 : memref<64xf32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vmin ins(%1, %cst : memref<64xf32, #hivm.address_space<ub>>, f32) outs(%2 : memref<64xf32, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vabs ins(%1 : memref<64xf32, #hivm.address_space<ub>>) outs(%1 : memref<64xf32, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg2[192] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<64xf16, strided<[1], offset: 192>, #hivm.address_space<gm>>) outs(%3 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_2 = memref.subview %arg3[72] [72] [1] : memref<576xf32, #hivm.address_space<gm>> to memref<72xf32, strided<[1], offset: 72>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_2 : memref<72xf32, strided<[1], offset: 72>, #hivm.address_space<gm>>) outs(%4 : memref<72xf32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_3 = memref.subview %arg2[0] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%3 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_3 : memref<64xf16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_4 = memref.subview %arg4[72] [72] [1] : memref<576xf32, #hivm.address_space<gm>> to memref<72xf32, strided<[1], offset: 72>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%4 : memref<72xf32, #hivm.address_space<ub>>) outs(%subview_4 : memref<72xf32, strided<[1], offset: 72>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p9(%arg0: memref<192xi32, #hivm.address_space<gm>>, %arg1: memref<512xi16, #hivm.address_space<gm>>, %arg2: memref<512xi16, #hivm.address_space<gm>>, %arg3: memref<512xi16, #hivm.address_space<gm>>, %arg4: memref<512xf16, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c1 = arith.constant 1 : index
    %c0 = arith.constant 0 : index
    %cst = arith.constant 1.250000e-01 : f16
    %c2912_i64 = arith.constant 2912 : i64
    %c5376_i64 = arith.constant 5376 : i64
    %c4416_i64 = arith.constant 4416 : i64
    %c4192_i64 = arith.constant 4192 : i64
    %c3200_i64 = arith.constant 3200 : i64
    %0 = hivm.hir.pointer_cast(%c3200_i64) : memref<24xi32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c4192_i64) : memref<64xi16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c4416_i64) : memref<64xf16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c5376_i64) : memref<64xi16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c2912_i64) : memref<24xi32, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[0] [24] [1] : memref<192xi32, #hivm.address_space<gm>> to memref<24xi32, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<24xi32, strided<[1]>, #hivm.address_space<gm>>) outs(%0 : memref<24xi32, #hivm.address_space<ub>>)
    %subview_0 = memref.subview %arg1[128] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<64xi16, strided<[1], offset: 128>, #hivm.address_space<gm>>) outs(%1 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vadd ins(%1, %1 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%1 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.vbrc ins(%cst : f16) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vadd ins(%2, %2 : memref<64xf16, #hivm.address_space<ub>>, memref<64xf16, #hivm.address_space<ub>>) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg2[0] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_1 : memref<64xi16, strided<[1]>, #hivm.address_space<gm>>) outs(%3 : memref<64xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.vsub ins(%0, %0 : memref<24xi32, #hivm.address_space<ub>>, memref<24xi32, #hivm.address_space<ub>>) outs(%4 : memref<24xi32, #hivm.address_space<ub>>)
    %subview_2 = memref.subview %arg2[192] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%1 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_2 : memref<64xi16, strided<[1], offset: 192>, #hivm.address_space<gm>>)
    hivm.hir.set_flag[<PIPE_MTE3>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE3>, <PIPE_V>, <EVENT_ID0>]
    scf.for %arg5 = %c0 to %c1 step %c1 {
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vdiv ins(%2, %2 : memref<64xf16, #hivm.address_space<ub>>, memref<64xf16, #hivm.address_space<ub>>) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
      hivm.hir.vsub ins(%1, %3 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%1 : memref<64xi16, #hivm.address_space<ub>>)
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vmul ins(%2, %2 : memref<64xf16, #hivm.address_space<ub>>, memref<64xf16, #hivm.address_space<ub>>) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
    }
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_3 = memref.subview %arg3[0] [64] [1] : memref<512xi16, #hivm.address_space<gm>> to memref<64xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%1 : memref<64xi16, #hivm.address_space<ub>>) outs(%subview_3 : memref<64xi16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_4 = memref.subview %arg4[64] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>
    hivm.hir.store ins(%2 : memref<64xf16, #hivm.address_space<ub>>) outs(%subview_4 : memref<64xf16, strided<[1], offset: 64>, #hivm.address_space<gm>>)
    hivm.hir.pipe_barrier[<PIPE_ALL>]
    return
  }
  func.func @p10(%arg0: memref<2048xf16, #hivm.address_space<gm>>, %arg1: memref<576xi32, #hivm.address_space<gm>>, %arg2: memref<512xf16, #hivm.address_space<gm>>, %arg3: memref<128xf16, #hivm.address_space<gm>>, %arg4: memref<1024xf16, #hivm.address_space<gm>>, %arg5: memref<2048xf16, #hivm.address_space<gm>>, %arg6: memref<2048xf16, #hivm.address_space<gm>>, %arg7: memref<128xi16, #hivm.address_space<gm>>, %arg8: memref<576xi32, #hivm.address_space<gm>>) attributes {hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %cst = arith.constant 1.000000e+00 : f16
    %c3584_i64 = arith.constant 3584 : i64
    %c704_i64 = arith.constant 704 : i64
    %c2784_i64 = arith.constant 2784 : i64
    %c4576_i64 = arith.constant 4576 : i64
    %c1920_i64 = arith.constant 1920 : i64
    %c4320_i64 = arith.constant 4320 : i64
    %0 = hivm.hir.pointer_cast(%c4320_i64) : memref<256xf16, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c1920_i64) : memref<72xi32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c4320_i64) : memref<64xf16, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c4576_i64) : memref<16xf16, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%c2784_i64) : memref<128xf16, #hivm.address_space<ub>>
    %5 = hivm.hir.pointer_cast(%c704_i64) : memref<256xf16, #hivm.address_space<ub>>
    %6 = hivm.hir.pointer_cast(%c3584_i64) : memref<16xi16, #hivm.address_space<ub>>
    %subview = memref.subview %arg0[768] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview : memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>) outs(%0 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    hivm.hir.vmul ins(%0, %cst : memref<256xf16, #hivm.address_space<ub>>, f16) outs(%0 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vadd ins(%0, %0 : memref<256xf16, #hivm.address_space<ub>>, memref<256xf16, #hivm.address_space<ub>>) outs(%0 : memref<256xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    %subview_0 = memref.subview %arg1[144] [72] [1] : memref<576xi32, #hivm.address_space<gm>> to memref<72xi32, strided<[1], offset: 144>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_0 : memref<72xi32, strided<[1], offset: 144>, #hivm.address_space<gm>>) outs(%1 : memref<72xi32, #hivm.address_space<ub>>)
    %subview_1 = memref.subview %arg2[0] [64] [1] : memref<512xf16, #hivm.address_space<gm>> to memref<64xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE2>, <EVENT_ID0>]
    hivm.hir.load ins(%subview_1 : memref<64xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%2 : memref<64xf16, #hivm.address_space<ub>>)
    %subview_2 = memref.subview %arg3[0] [16] [1] : memref<128xf16, #hivm.address_space<gm>> to memref<16xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_2 : memref<16xf16, strided<[1]>, #hivm.address_space<gm>>) outs(%3 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID1>]
    hivm.hir.vrelu ins(%3 : memref<16xf16, #hivm.address_space<ub>>) outs(%3 : memref<16xf16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    %subview_3 = memref.subview %arg4[256] [128] [1] : memref<1024xf16, #hivm.address_space<gm>> to memref<128xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_3 : memref<128xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>) outs(%4 : memref<128xf16, #hivm.address_space<ub>>)
    hivm.hir.pipe_barrier[<PIPE_V>]
    hivm.hir.vdiv ins(%0, %0 : memref<256xf16, #hivm.address_space<ub>>, memref<256xf16, #hivm.address_space<ub>>) outs(%5 : memref<256xf16, #hivm.address_space<ub>>)
    %subview_4 = memref.subview %arg5[0] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%0 : memref<256xf16, #hivm.address_space<ub>>) outs(%subview_4 : memref<256xf16, strided<[1]>, #hivm.address_space<gm>>)
    %subview_5 = memref.subview %arg6[256] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>
    hivm.hir.store ins(%0 : memref<256xf16, #hivm.address_space<ub>>) outs(%subview_5 : memref<256xf16, strided<[1], offset: 256>, #hivm.address_space<gm>>)
    %subview_6 = memref.subview %arg7[0] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.load ins(%subview_6 : memref<16xi16, strided<[1]>, #hivm.address_space<gm>>) outs(%6 : memref<16xi16, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.vadd ins(%1, %1 : memref<72xi32, #hivm.address_space<ub>>, memref<72xi32, #hivm.address_space<ub>>) outs(%1 : memref<72xi32, #hivm.address_space<ub>>)
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    %subview_7 = memref.subview %arg7[32] [16] [1] : memref<128xi16, #hivm.address_space<gm>> to memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.store ins(%6 : memref<16xi16, #hivm.address_space<ub>>) outs(%subview_7 : memref<16xi16, strided<[1], offset: 32>, #hivm.address_space<gm>>)
    %subview_8 = memref.subview %arg8[0] [72] [1] : memref<576xi32, #hivm.address_space<gm>> to memref<72xi32, strided<[1]>, #hivm.address_space<gm>>
    hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID1>]
    hivm.hir.store ins(%1 : memref<72xi32, #hivm.address_space<ub>>) outs(%subview_8 : memref<72xi32, strided<[1]>, #hivm.address_space<gm>>)
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
    scf.for %arg8 = %c0 to %c1 step %c1 {
      hivm.hir.vadd ins(%0, %0 : memref<64xi16, #hivm.address_space<ub>>, memref<64xi16, #hivm.address_space<ub>>) outs(%5 : memref<64xi16, #hivm.address_space<ub>>)
      hivm.hir.pipe_barrier[<PIPE_V>]
      hivm.hir.vbrc ins(%cst : f16) outs(%6 : memref<16xf16, #hivm.address_space<ub>>)
      %subview_4 = memref.subview %arg5[768] [256] [1] : memref<2048xf16, #hivm.address_space<gm>> to memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>
      hivm.hir.pipe_barrier[<PIPE_MTE2>]
      hivm.hir.load ins(%subview_4 : memref<256xf16, strided<[1], offset: 768>, #hivm.address_space<gm>>) outs(%7 : memref<256xf16, #hivm.address_space<ub>>)
    }
    hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE3>, <EVENT_ID0>]
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
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

