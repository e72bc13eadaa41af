package protocol

import "errors"

// ErrEpochOrder: epoch lines must rise in epoch and in LSN.
var ErrEpochOrder = errors.New("epoch lines out of order")

// ErrRecovered: what recovery found on disk contradicts itself.
var ErrRecovered = errors.New("recovered state contradicts itself")
