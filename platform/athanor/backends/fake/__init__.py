"""A scripted backend for tests: attempts live in a dictionary, answers can be lost, doubled, emptied or delayed."""
