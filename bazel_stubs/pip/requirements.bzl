def requirement(name):
    return "@pip//:interpreter"
