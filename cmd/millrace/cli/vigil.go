package cli

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A vigil is kept over a command that may have to wait: once nothing has come for
// a while it says what is waited for, and after limit it ends the command.
type vigil struct {
	t     *terminal
	limit time.Duration
	// look returns a figure that changes whenever something has come, and what
	// is waited for; "" is nothing.
	look func() (came uint64, what string)
}

const (
	vigilLook = 100 * time.Millisecond
	// tellAfter is how long nobody wonders.
	tellAfter = 3 * time.Second
)

// keep begins the vigil. The context that it returns ends with a *problem as
// its cause if the wait took too long. End must be called.
func (v *vigil) keep(ctx context.Context) (watched context.Context, end func()) {
	watched, cancel := context.WithCancelCause(ctx)
	var done sync.WaitGroup
	done.Go(func() { v.watch(watched, cancel) })
	return watched, func() {
		cancel(nil)
		done.Wait()
	}
}

func (v *vigil) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(vigilLook)
	defer tick.Stop()
	before, since, told := uint64(0), time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		came, what := v.look()
		waited := time.Since(since)
		switch {
		case what == "" || came != before:
			before, since, told = came, time.Now(), false
		case waited >= v.limit:
			cancel(fail(exitUnreachable, "nothing came for %s: waited for %s", v.limit, what))
			return
		case waited >= tellAfter && !told:
			told = true
			v.tell(what)
		}
	}
}

// tell writes a line to people, over the one that shows progress.
func (v *vigil) tell(what string) {
	over := ""
	if v.t.errTTY {
		over = "\r\033[K"
	}
	fmt.Fprintf(v.t.err, "%swaiting for %s\n", over, what)
}
