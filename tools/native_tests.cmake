# `make native-test`: the C++ tests, one program for each room, or for what must
# stand in for a part that other tests need.  They are built when somebody asks
# for native_tests, and there is no such target where GoogleTest is missing.
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  return()
endif()

add_custom_target(native_tests)
# hpmoe_add_tests(name libraries... SOURCES sources...)
function(hpmoe_add_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 tests "" "" "SOURCES")
  add_executable(${name} EXCLUDE_FROM_ALL ${tests_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE
    ${tests_UNPARSED_ARGUMENTS} GTest::gtest_main Threads::Threads)
  # They compile for longer than they run.
  target_compile_options(${name} PRIVATE
    -O1 -g1 -UNDEBUG -Werror -Wno-missing-field-initializers)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(native_tests ${name})
endfunction()

set(twin backend_ascend/twin)
hpmoe_add_tests(twin_test ascend_twin SOURCES
  ${twin}/engine/engine_test.cc
  ${twin}/examples/public_bugs_test.cc
  ${twin}/instructions/calls_test.cc)
# It stands in for the engine.
hpmoe_add_tests(instructions_test ascend_twin SOURCES
  ${twin}/instructions/instructions_test.cc)

set(device backend_ascend/device/megakernel)
hpmoe_add_tests(device_test ascend_twin SOURCES
  backend_ascend/image/worker_test.cc
  ${device}/megakernel_test.cc
  ${device}/symmetric_memory_test.cc
  ${device}/tile_budget_test.cc)
hpmoe_add_tests(float_counts_test ascend_twin SOURCES
  ${device}/megakernel_test.cc)
target_compile_definitions(float_counts_test PRIVATE HPMOE_FLOAT_COUNTS)
# It stands in for Ascend C, and is compiled as a device's compiler would.
file(WRITE ${CMAKE_BINARY_DIR}/no_ascend_c/kernel_operator.h "")
hpmoe_add_tests(read_counter_test SOURCES ${device}/read_counter_test.cc)
target_include_directories(read_counter_test PRIVATE
  ${CMAKE_BINARY_DIR}/no_ascend_c)
target_compile_options(read_counter_test PRIVATE -O3)

hpmoe_add_tests(host_test hpmoe_host SOURCES
  backend_ascend/host/checks/guards_test.cc)
