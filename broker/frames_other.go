//go:build !unix

package broker

// socketReader is of no use here.
type socketReader struct{}

func (r *frameReader) read() (int, error) { return r.readHeld() }
