package cli

import (
	"fmt"
	"sync"
	"time"
)

// progressEvery is how often a running command tells a person how far it is.
const progressEvery = 200 * time.Millisecond

// progress writes one line over and over, on a terminal only.
type progress struct {
	stop chan struct{}
	done sync.WaitGroup
}

// showProgress calls line until End.
func showProgress(t *terminal, line func() string) *progress {
	p := &progress{stop: make(chan struct{})}
	if !t.errTTY {
		return p
	}
	p.done.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(t.err, "\r\033[K%s", line())
			case <-p.stop:
				fmt.Fprint(t.err, "\r\033[K")
				return
			}
		}
	})
	return p
}

// end takes the line away.
func (p *progress) end() {
	close(p.stop)
	p.done.Wait()
}
