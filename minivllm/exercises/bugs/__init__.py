"""The bug lab: one folder an exercise, each with a fault that real engines had."""
