cc_library = native.cc_library
cc_test = native.cc_test
