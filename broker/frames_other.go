//go:build !unix

package broker

func (r *frameReader) read() (int, error) { return r.readHeld() }
