def requirement(name):
    return "@pip//:" + name
