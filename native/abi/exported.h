// How a function of native/abi/ is exported, and how Python calls it; generate.py reads these
// words.
#pragma once

#define EXPORTED __attribute__((visibility("default")))

// A call of a few microseconds: a thread that releases the GIL may wait for it for milliseconds.
#define EXPORTED_KEEPING_GIL EXPORTED

// The caller chooses between NAME and NAME_keeping_gil, by the work of the call.
#define EXPORTED_BOTH_WAYS EXPORTED
