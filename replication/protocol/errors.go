package protocol

import "errors"

// ErrEpochOrder: epoch lines must rise in epoch and in LSN.
var ErrEpochOrder = errors.New("epoch lines out of order")
